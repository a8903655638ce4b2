"""The deadman: from what is wrong to hold, to a safe stop, and back. Pure: time and causes are given to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from edgelink.training.trainer.robot.interface import AUTOMATIC, MANUAL
from edgelink.training.trainer.robot.realtime import NS
from edgelink.training.trainer.setting import setting

_EARNS_BACK = 4  # so many seconds of running give back one second of hold, as in PX4's failsafe


def silent_after_ns(watchdog_s: float) -> int:
    """For so long no control instant may begin, before the process counts as silent, to itself and to its attendant.

    More than the watchdog: a busy machine lets a process of the ordinary class wait for a tenth of a second.
    """
    return round(2 * watchdog_s * NS) + NS // 10


class State(IntEnum):
    """What a robot is doing."""

    WAITING = 0  # for its first policy and a link; it holds
    RUNNING = 1
    HOLDING = 2
    STOPPED = 3


class Cause(IntEnum):
    """Why it does not run."""

    NONE = 0
    LINK = 1  # nothing was heard over the link for too long
    POLICY = 2  # for too long none that is newer has come, nor word that there is none
    WORKER = 3  # the env worker is gone
    NOT_A_NUMBER = 4  # an observation or an action is not finite
    PERSON = 5  # was told to stop
    FAULT = 6  # the robot's own code raised
    STALLED = 7  # the loop was stuck in the robot's code
    CLOSING = 8  # the run is over
    NO_POLICY = 9  # none has come yet
    WORKER_STUCK = 10  # the loop that takes its experience has not come round for too long

    @property
    def needs_a_person(self) -> bool:
        """Nothing that passes by itself."""
        return self in (Cause.PERSON, Cause.FAULT, Cause.STALLED)

    @property
    def stops_at_once(self) -> bool:
        return self.needs_a_person or self is Cause.CLOSING


@dataclass(frozen=True)
class DeadmanSettings:
    """When a robot holds, stops and goes on. An age of 0 means: do not look at it.

    Ages are told by the robot's own clock: weights are as old as it is since they came, or since the driver last said
    that there are no newer ones; whenever they were made.
    """

    link_timeout_s: float = setting(
        0.5,
        "so long may the driver be silent before the robot holds, a round trip included; 0: do not look",
        at_least=0,
    )
    policy_timeout_s: float = setting(
        0.0,
        "so long ago may the robot's weights have come, or the driver have said that they are still the newest, which "
        "it does about once a second; 0: do not look",
        at_least=0,
    )
    worker_timeout_s: float = setting(
        5.0,
        "for so long may the loop that takes the robot's experience and hands over policies not come round before the "
        "robot holds, though its processes live; 0: do not look",
        at_least=0,
    )
    stop_after_s: float = setting(1.0, "a hold whose cause lasts so long becomes a safe stop", at_least=0)
    hold_at_most_s: float | None = setting(
        None,
        "so long may it hold in all before it stops, whatever comes and goes meanwhile, as on a flapping link; each "
        "second that it runs gives back a quarter, a stop gives back all; default: stop_after_s + resume_after_s",
        above=0,
    )
    resume: str = setting(
        "", "automatic, manual (a person says so), or nothing: as the robot says", choices=(AUTOMATIC, MANUAL, "")
    )
    resume_after_s: float = setting(2.0, "all has been well for so long before it goes on by itself", at_least=0)


@dataclass(frozen=True)
class Change:
    """From one state to another, as it is recorded."""

    at_ns: int
    state: State
    cause: Cause
    held_s: float = 0.0  # how long it did not run, of a change to RUNNING; 0: it had not run or been stopped before
    before: State = State.WAITING


class Deadman:
    """State of one robot's deadman.

    Guarantees, for each sequence of causes: a robot never runs in an instant with a cause. Between two stops it holds
    at most ``hold_at_most_s`` and a quarter of the time that it ran. A cause that lasts ``stop_after_s`` stops it.
    """

    def __init__(self, settings: DeadmanSettings, resume: str) -> None:
        self.state = State.WAITING
        self.cause = Cause.NO_POLICY  # of the present state, if it is not RUNNING
        at_most_s = settings.hold_at_most_s
        self._hold_at_most_ns = round(
            (settings.stop_after_s + settings.resume_after_s if at_most_s is None else at_most_s) * NS
        )
        self._stop_after_ns = round(settings.stop_after_s * NS)
        self._resume_after_ns = round(settings.resume_after_s * NS)
        self._is_automatic = (settings.resume or resume) == AUTOMATIC
        self._good_since_ns: int | None = None
        self._bad_since_ns = 0
        self._left_at_ns = 0
        self._hold_left_ns = self._hold_at_most_ns
        self._looked_ns = 0

    def look(self, now_ns: int, cause: Cause, *, may_resume: bool = False) -> Change | None:
        """What changes now.

        Args:
            cause: what is wrong at this moment.
            may_resume: a person has said so.
        """
        self._count_hold(now_ns)
        if cause is Cause.NONE:
            if self._good_since_ns is None:
                self._good_since_ns = now_ns
        elif self._good_since_ns is not None or self._bad_since_ns == 0:
            self._good_since_ns, self._bad_since_ns = None, now_ns
        match self.state:
            case State.WAITING:
                if cause.stops_at_once or cause is Cause.WORKER:  # nobody is left who could bring it a policy
                    self._left_at_ns = self._left_at_ns or now_ns
                    return self._change(now_ns, State.STOPPED, cause)
                return self._go_on(now_ns, cause) if cause is Cause.NONE else None
            case State.RUNNING:
                if cause is Cause.NONE:
                    return None
                self._left_at_ns = now_ns
                return self._change(now_ns, State.STOPPED if cause.stops_at_once else State.HOLDING, cause)
            case State.HOLDING:
                if cause.stops_at_once or (cause and now_ns - self._bad_since_ns >= self._stop_after_ns):
                    return self._change(now_ns, State.STOPPED, cause)
                resumed = self._resumed(now_ns, cause, may_resume=may_resume)
                if resumed is None and self._hold_left_ns <= 0:
                    return self._change(now_ns, State.STOPPED, cause or self.cause)
                return resumed
            case State.STOPPED:
                if cause.stops_at_once and cause is not self.cause:  # it counts, though it came later
                    return self._change(now_ns, State.STOPPED, cause)
        return self._resumed(now_ns, cause, may_resume=may_resume)

    def _count_hold(self, now_ns: int) -> None:
        """Count what has passed since the last look, in the state that it left."""
        passed_ns, self._looked_ns = now_ns - self._looked_ns, now_ns
        if self.state is State.HOLDING:
            self._hold_left_ns -= passed_ns
        elif self.state is State.RUNNING:
            self._hold_left_ns = min(self._hold_at_most_ns, self._hold_left_ns + passed_ns // _EARNS_BACK)
        else:
            self._hold_left_ns = self._hold_at_most_ns

    def _resumed(self, now_ns: int, cause: Cause, *, may_resume: bool) -> Change | None:
        if may_resume and cause is Cause.NO_POLICY and self.state is State.STOPPED:
            return self._change(now_ns, State.WAITING, cause)  # a person's word is kept until the first policy comes
        if cause is not Cause.NONE or self._good_since_ns is None or self.cause is Cause.CLOSING:
            return None
        is_over = now_ns - self._good_since_ns >= self._resume_after_ns
        if may_resume or (self._is_automatic and is_over and not self.cause.needs_a_person):
            return self._go_on(now_ns, self.cause)
        return None

    def _go_on(self, now_ns: int, cause: Cause) -> Change:
        held_s = (now_ns - self._left_at_ns) / NS if self._left_at_ns else 0.0
        self._left_at_ns = 0
        return self._change(now_ns, State.RUNNING, cause, held_s)

    def _change(self, now_ns: int, state: State, cause: Cause, held_s: float = 0.0) -> Change:
        before = self.state
        self.state, self.cause = state, Cause.NONE if state is State.RUNNING else cause
        return Change(now_ns, state, cause, held_s, before)
