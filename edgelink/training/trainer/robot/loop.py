"""The control loop: at each control instant observe → actor → limits → act, watched by the deadman.

It touches the robot and the shared memory, and nothing else: no file, no socket, no Ray.
"""

from __future__ import annotations

import os
import threading
import time

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Bools
from edgelink.training.trainer.robot.acting import Actor
from edgelink.training.trainer.robot.deadman import Cause, Change, Deadman, DeadmanSettings, State, silent_after_ns
from edgelink.training.trainer.robot.interface import AUTOMATIC, MANUAL, MAX_RATE_HZ, MIN_RATE_HZ, Robot, Sensed
from edgelink.training.trainer.robot.limits import ActionLimits
from edgelink.training.trainer.robot.realtime import NS, leave_cpu, next_instant, now_ns, sleep_until, suspended_ns
from edgelink.training.trainer.robot.shared import SharedBlock
from edgelink.training.trainer.robot.step_recorder import StepRecorder

_WATCH_S = 0.005
_STOP_PATIENCE_S = 10.0  # so long is a stop() that raises tried again when nobody is left; then the process ends


class _StuckError(Exception):
    """The watchdog has stopped the robot meanwhile."""


class ControlLoop:
    """One robot's loop; ``run`` is the life of its process.

    Args:
        actor: whence its actions come.
        watchdog_s: how long the robot's own code may take in one control instant before it counts as stuck.
        parent: process id of the attendant, without whom the robot comes to rest; None: there is none.

    Raises:
        ValueError: the robot's rate or limits are not possible, or who resumes it is not known.
    """

    def __init__(
        self,
        robot: Robot,
        block: SharedBlock,
        deadman: DeadmanSettings,
        actor: Actor,
        *,
        watchdog_s: float = 0.1,
        parent: int | None = None,
    ) -> None:
        if not MIN_RATE_HZ <= robot.rate_hz <= MAX_RATE_HZ:
            raise ValueError(
                f"the robot wants {robot.rate_hz:g} control instants per second; "
                f"possible are {MIN_RATE_HZ:g} to {MAX_RATE_HZ:g}"
            )
        if robot.action_repeat < 1:
            raise ValueError(f"the robot's action_repeat is {robot.action_repeat}; it is 1 or more control instants")
        if robot.resumes not in (AUTOMATIC, MANUAL):
            raise ValueError(f"the robot's resumes is {robot.resumes!r}; it is {AUTOMATIC!r} or {MANUAL!r}")
        self._robot = robot
        self._block, self._words = block, block.words
        self._settings = deadman
        self._deadman = Deadman(deadman, robot.resumes)
        self._period_ns = round(NS / robot.rate_hz)
        self._watchdog_ns = round(watchdog_s * NS)
        self._silent_ns = silent_after_ns(watchdog_s)
        self._limits = ActionLimits(robot.limits, robot.spaces, robot.rate_hz)
        self._actor = actor
        self._recorder = StepRecorder(block)
        self._actions: Actions | None = None  # of the actor, in force since the step began
        self._instant = 0  # of the step
        self._must_reset = True  # an attempt begins anew after a stop, as at first
        self._fault = Cause.NONE  # lasts until a person says so
        self._spoiled_version: int | None = None  # of the actor, by which something became no number
        self._resumes_seen, self._stops_seen = self._words.resume_requests, self._words.stop_requests
        self._is_rest_spoiled = False  # rest() gave what is no number
        self._is_stuck = False  # set by the watchdog, or by the loop where that had no time to
        self._counted_ns = 0  # the instant that counts as a stall
        self._reason = self._stop_failure = ""  # in words, for people
        self._stop_patience = round(_STOP_PATIENCE_S * robot.rate_hz)
        self._worker_steps = self._worker_ns = 0  # of the worker's loop: as it was seen last, and since when
        self._suspended_ns = suspended_ns()
        self._parent = parent
        self._is_over = False
        # What the robot did when the attendant was found gone; None: it was not.
        self.left_alone_in: State | None = None

    def run(self) -> None:
        """Until it is told to close, or its worker is gone and the robot at rest."""
        words, period_ns = self._words, self._period_ns
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        due_ns = next_instant(now_ns(), period_ns)
        while not self._is_over:
            sleep_until(due_ns)
            begun_ns = now_ns()
            words.heartbeat_ns = words.busy_since_ns = begun_ns
            self._block.note_lateness(begun_ns - due_ns)
            self._note_gap(begun_ns - due_ns, suspended_ns())
            self.tick(begun_ns)
            ended_ns = now_ns()
            self._note_overrun()
            words.busy_since_ns = 0
            words.add("ticks")
            words.max_busy_ns = max(words.max_busy_ns, ended_ns - begun_ns)
            due_ns += period_ns
            if ended_ns > due_ns:  # what is missed is not made up for
                missed = (ended_ns - due_ns) // period_ns + 1
                words.add("missed", missed)
                due_ns += missed * period_ns

    def tick(self, at_ns: int) -> None:
        """One control instant."""
        words = self._words
        may_resume = self._take_resume()
        try:
            if self._stop_failure:
                self.stop()
            sensed = None if self._fault else self._robot.observe()
            self._poll(at_ns)
            self._look(at_ns, self._cause(at_ns, sensed), may_resume=may_resume)
            if sensed is not None and self._deadman.state is not State.STOPPED:
                self._drive(at_ns, sensed)
        except _StuckError:
            self._is_stuck, self._fault = False, Cause.STALLED
            self._look(at_ns, Cause.STALLED)
        except BaseException as error:  # others' code: whatever it raises, the robot comes to rest
            self._fault = Cause.FAULT
            self._look(at_ns, Cause.FAULT, error=error)
        is_at_rest = self._deadman.state is State.STOPPED and (
            not self._stop_failure or words.stop_fails > self._stop_patience
        )
        self._is_over = is_at_rest and bool(words.close_request or words.worker_is_gone)

    def _poll(self, at_ns: int) -> None:
        """Is there a newer policy, or word that there is none?"""
        words = self._words
        if self._actor.poll():
            words.policy_version = self._actor.version
            words.policy_ns = words.policy_confirmed_ns = at_ns
        elif words.policy_version == words.weights_version:  # and not one that is still being copied
            words.policy_confirmed_ns = max(words.policy_confirmed_ns, words.weights_confirmed_ns)

    def _note_gap(self, late_ns: int, suspended_ns: int) -> None:
        """Has this process, or the machine, stood still since the last instant? Nobody knows what the robot did."""
        gap_ns = late_ns + max(0, suspended_ns - self._suspended_ns)
        self._suspended_ns = suspended_ns
        if gap_ns > self._silent_ns and not self._is_stuck and self._deadman.state in (State.RUNNING, State.HOLDING):
            self._is_stuck = True
            self._words.add("stalls")

    def _note_overrun(self) -> bool:
        """Has this instant lasted longer than the watchdog allows? Its thread may have stood still with this one."""
        since_ns = self._words.busy_since_ns
        asleep_ns = max(0, suspended_ns() - self._suspended_ns)
        if since_ns == 0 or now_ns() - since_ns + asleep_ns <= self._watchdog_ns:
            return False
        self._note_stuck(since_ns)
        return True

    def _note_stuck(self, since_ns: int) -> None:
        if since_ns != self._counted_ns:
            self._counted_ns = since_ns
            self._is_stuck = True
            self._words.add("stalls")

    def _take_resume(self) -> bool:
        """Has a person said that it may go on? That lifts what only a person can lift."""
        if self._words.resume_requests <= self._resumes_seen:
            return False
        self._resumes_seen = self._words.resume_requests
        self._fault, self._spoiled_version, self._reason = Cause.NONE, None, ""
        self._write_reason()
        return True

    def _cause(self, at_ns: int, sensed: Sensed | None) -> Cause:
        words, settings = self._words, self._settings
        # Also where a worse cause comes first: what a person resumes later is all that was before.
        stops = words.stop_requests  # read once: another may come at any moment
        is_told_to_stop, self._stops_seen = stops > self._stops_seen, stops
        if words.close_request:
            return Cause.CLOSING
        if self._is_stuck:
            self._is_stuck, self._fault = False, Cause.STALLED
        if self._fault is not Cause.NONE:
            return self._fault
        if self._stop_failure:
            return Cause.FAULT
        if is_told_to_stop:
            return Cause.PERSON
        if words.worker_is_gone:
            return Cause.WORKER
        if settings.link_timeout_s and at_ns - words.link_ns > settings.link_timeout_s * NS:
            return Cause.LINK
        if self._is_worker_stuck(at_ns):
            return Cause.WORKER_STUCK
        if not self._actor.is_there:
            return Cause.NO_POLICY
        if settings.policy_timeout_s and at_ns - words.policy_confirmed_ns > settings.policy_timeout_s * NS:
            return Cause.POLICY
        if self._spoiled_version == self._actor.version:
            return Cause.NOT_A_NUMBER
        if sensed is not None and not self._is_number(sensed):
            return Cause.NOT_A_NUMBER
        return Cause.NOT_A_NUMBER if self._is_rest_spoiled else Cause.NONE

    def _is_worker_stuck(self, at_ns: int) -> bool:
        """Has the worker's loop not come round for too long? A thread beside it would live on, so that loop counts."""
        if (steps := self._words.worker_steps) != self._worker_steps:
            self._worker_steps, self._worker_ns = steps, at_ns
        timeout_s = self._settings.worker_timeout_s
        return bool(timeout_s and steps) and at_ns - self._worker_ns > timeout_s * NS

    def _is_number(self, sensed: Sensed) -> bool:
        if np.isfinite(sensed.observations).all() and np.isfinite(sensed.rewards).all():
            return True
        self._words.add("not_numbers")
        return False

    def _look(self, at_ns: int, cause: Cause, *, may_resume: bool = False, error: BaseException | None = None) -> None:
        """Ask the deadman, and do what it says; first that, then words about it."""
        change = self._deadman.look(at_ns, cause, may_resume=may_resume)
        if change is not None:
            self._do(change)
        self._words.state, self._words.cause, self._words.hindrance = self._deadman.state, self._deadman.cause, cause
        if error is not None:
            self._reason = _told(error)
            self._write_reason()
        if change is not None:
            self._note(change)

    def _do(self, change: Change) -> None:
        self._recorder.break_off()
        self._actor.broken_off()
        self._instant, self._actions = 0, None
        if change.state is State.STOPPED:
            self._must_reset, self._is_rest_spoiled = True, False
            self._resumes_seen = self._words.resume_requests  # what was said before this stop does not lift it
            if not self._stop_failure:  # otherwise it is called at every instant
                self.stop()

    def stop(self) -> bool:
        """False if the robot's code raised; then it is called again, and people are told. Any thread may call it."""
        begun_ns = now_ns()
        self._words.stopping_since_ns = self._words.stopping_since_ns or begun_ns
        try:
            self._robot.stop()
        except BaseException as error:  # others' code again; there is nothing safer to do than the same again
            if self._words.stopping_since_ns == begun_ns:  # otherwise another call has not come back
                self._words.stopping_since_ns = 0
            self._words.add("stop_fails")
            self._fault = self._fault or Cause.FAULT  # also once it returns: what the robot did meanwhile nobody knows
            failure = f"stop() fails: {_told(error)}"
        else:
            self._words.stop_fails, self._words.stopping_since_ns, failure = 0, 0, ""
        if failure != self._stop_failure:
            self._stop_failure = failure
            self._write_reason()
        return not failure

    def _write_reason(self) -> None:
        self._block.write_message("; ".join(filter(None, (self._reason, self._stop_failure))))

    def _note(self, change: Change) -> None:
        words = self._words
        if change.state is State.HOLDING:
            words.add("holds")
        elif change.state is State.STOPPED:
            words.add("stops", change.before is not State.STOPPED)
        elif change.held_s:
            words.add("resumes")
        self._block.write_change(change.at_ns, change.state, change.cause, change.held_s)

    def _drive(self, at_ns: int, sensed: Sensed) -> None:
        if self._deadman.state is State.RUNNING and self._run(at_ns, sensed):
            return
        if self._deadman.state is not State.RUNNING:
            if not sensed.is_ready or (sensed.terminated | sensed.truncated).any():
                self._must_reset = True  # the hold breaks off its way to the start; and nobody goes on after an end
            self._check_not_stuck()
            self._robot.hold()
        self._note_rest(sensed)

    def _run(self, at_ns: int, sensed: Sensed) -> bool:
        """Go on with the attempt, or begin one; false if the robot is not to be commanded now."""
        if self._must_reset:
            begun = self._begin(at_ns, np.ones(self._robot.rigs, dtype=np.bool_))
            if begun is None:
                return False
            sensed, self._must_reset = begun, False
        if self._run_step(at_ns, sensed):
            return True
        self._recorder.pause()
        self._actor.broken_off()
        self._instant, self._actions = 0, None
        return False

    def _begin(self, at_ns: int, rigs: Bools) -> Sensed | None:
        """An attempt of those rigs; None if what they say then is no number, which is a hold."""
        self._check_not_stuck()
        self._recorder.reset(rigs)
        self._robot.reset(rigs)
        sensed = self._robot.observe()
        if not self._is_number(sensed):  # remembered: it would be seen again only after the next way to the start
            self._hold_version(at_ns)
            return None
        if not self._note_rest(sensed, rigs):
            self._look(at_ns, Cause.NOT_A_NUMBER)
            return None
        return sensed

    def _hold_version(self, at_ns: int) -> None:
        """For what is no number; by the same weights nothing goes on, unless a person says so."""
        self._spoiled_version = self._actor.version
        self._look(at_ns, Cause.NOT_A_NUMBER)

    def _note_rest(self, sensed: Sensed, rigs: Bools | None = None) -> bool:
        """From where the rate of change counts, of some rigs or all; false if the robot does not know: no run then."""
        rest = self._robot.rest(sensed)
        spaces = self._robot.spaces
        if spaces.action_count is None:
            self._is_rest_spoiled = not _is_sound(rest, (self._robot.rigs, len(spaces.action_low)))
            if self._is_rest_spoiled:
                self._words.add("not_numbers")
                return False
        self._limits.commanded(rest, rigs)
        return True

    def _run_step(self, at_ns: int, sensed: Sensed) -> bool:
        """Act; false if the robot is not to be commanded now."""
        if self._actions is not None:
            self._recorder.reward(sensed)
        if self._instant and not sensed.is_ready:  # the step is not gone on with, nor an attempt that has ended in it
            self._recorder.break_off()
            self._must_reset = bool((sensed.terminated | sensed.truncated).any())
            return False
        if self._instant == 0:
            if self._actions is not None:
                self._recorder.finish(sensed)
                ended = sensed.terminated | sensed.truncated
                if ended.any():
                    if not self._actor.attempt_ended():
                        self._look(at_ns, Cause.NO_POLICY)
                        return False
                    begun = self._begin(at_ns, ended)
                    if begun is None:
                        return False
                    sensed = begun
            if not sensed.is_ready:
                return False
            if self._actions is None and not self._note_rest(sensed):  # it has not been commanded since: it rested
                self._look(at_ns, Cause.NOT_A_NUMBER)
                return False
            if not self._decide(at_ns, sensed):
                return False
        kept = self._allowed(at_ns, sensed)
        if kept is None:
            return False
        self._check_not_stuck()
        self._robot.act(kept.copy())  # which it may convert in place
        self._recorder.commanded(self._instant, kept)
        self._instant = (self._instant + 1) % self._block.layout.action_repeat
        return True

    def _allowed(self, at_ns: int, sensed: Sensed) -> Actions | None:
        """What may be commanded; None if the robot's own code made it what is no number, which is a hold."""
        assert self._actions is not None
        allowed, is_boxed, is_slowed = self._limits.apply(self._actor.at(self._instant, self._actions))
        kept = self._robot.workspace(sensed, allowed.copy())
        if not _is_sound(kept, allowed.shape):
            self._words.add("not_numbers")
            self._hold_version(at_ns)
            return None
        self._words.add("clamped_workspace", bool((kept != allowed).any()))
        within = self._limits.boxed(np.asarray(kept, allowed.dtype))
        self._words.add("clamped_box", is_boxed or bool((within != kept).any()))
        self._words.add("clamped_rate", is_slowed)
        self._limits.commanded(within)
        return within

    def _check_not_stuck(self) -> None:
        """Before anything that may move the robot: the watchdog may have stopped it in this very instant; or this
        process stood still in it, and what was observed is old.

        Raises:
            _StuckError: so it is.
        """
        if self._note_overrun() or self._is_stuck:
            raise _StuckError

    def _decide(self, at_ns: int, sensed: Sensed) -> bool:
        """A new action; false if there is none, or it is not a number, which is a hold."""
        decided = self._actor.decide(sensed.observations)
        if decided is None:
            self._look(at_ns, Cause.NO_POLICY)
            return False
        actions, log_probs = decided
        if not np.isfinite(actions).all() or not np.isfinite(log_probs).all():
            self._words.add("not_numbers")
            self._hold_version(at_ns)
            return False
        self._actions = actions
        self._recorder.begin(at_ns, self._actor.version, sensed.observations, actions, log_probs)
        return True

    def _watch(self) -> None:
        """Stop the robot from here when its own code does not come back; a thread of its own."""
        leave_cpu()
        words = self._words
        stopped_ns = 0  # the instant that was stuck, and in which stop() has returned
        while not self._is_over:
            time.sleep(_WATCH_S)
            if self.left_alone_in is None and self._parent not in (None, os.getppid()):
                self.left_alone_in = State(words.state)
                words.worker_is_gone = 1  # nobody is left who could hear it, or a person
            since_ns = words.busy_since_ns
            if since_ns in (0, stopped_ns) or now_ns() - since_ns <= self._watchdog_ns:
                continue
            self._note_stuck(since_ns)
            if self.stop():
                stopped_ns = since_ns


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # its own words fail, too
        return type(error).__name__


def _is_sound(actions: Actions, shape: tuple[int, ...]) -> bool:
    """Of a robot's own code: numbers, and as many as there are to be."""
    return np.shape(actions) == shape and bool(np.isfinite(actions).all())
