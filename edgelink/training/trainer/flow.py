"""Who collects, what is learned from and what is too old: the asynchronous loop as decisions, without doing anything.

Each pair of a rollout and an env worker has ``max_policy_lag`` + 1 fragments under way at most. One more is asked for
when the learner has used one up and made a version from it, and a simulator begins it with that version or a newer one.
So what a simulator sends is never older than the bound, however fast it is, and no queue grows: whoever runs ahead of
the learner waits, and nobody waits for the network as long as weights arrive within ``max_policy_lag`` fragments.
How many are under way follows the link: one more when the learner had to wait for the pair, one less when for long
there was another one left over, so that nothing is learned from that is older than the link makes it.
Robots begin at once, with the weights that they have, and have one fragment under way: the steps that they take
meanwhile wait in their ring, where the oldest can still be left out, and not at the learner. What is too old at the
learner is dropped, and counted, and the next fragments of a worker that was too slow are shorter, so that it takes part
with what it can give. The learner asks a robot with its version. Once there is a newer one, the others have gone ahead
without that robot, and it gives what it has, before that is too old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from edgelink.training.trainer.setting import setting

_PATIENCE_INTERVALS = 3.0
_LEAST_PATIENCE_S = 2.0
_SMOOTHING = 0.3  # weight of the newest interval in the usual one
_LEAST_SHARE = 1 / 16
_GROWS_AFTER = 8  # fragments in a row that were in time
_LEAST_DEPTH = 2  # fragments under way: one to learn from, while another one is collected
_WAITED_SHARE = 0.1  # of the usual interval: for so long the learner waited
_CALM = 64  # updates in a row with a fragment to spare; a lossy link has its pauses about as rarely
_HOPELESS_AFTER = 10  # fragments in a row that came too late, each shorter than the one before as far as that goes


@dataclass(frozen=True)
class FlowSettings:
    """How experience and weights flow between the edges and the learner."""

    max_policy_lag: int = setting(
        6,
        "versions that experience may be behind when it is learned from, where the link needs it; 0: the loop waits "
        "for every step",
        at_least=0,
    )
    straggler_patience_s: float = setting(
        0.0, "how long the others wait for a late worker; 0: three times the usual interval, 2 s at least", at_least=0
    )
    fragment_steps: int = setting(64, "steps of a robot in one fragment; simulators take as many or more", at_least=1)
    frame_stack: int = setting(
        1, "newest observations that the policy sees at once; each crosses the link once", at_least=1
    )
    wanted_env_steps_per_s: float = setting(
        0.0, "of all workers: links that do not carry them end the run; 0: any", at_least=0
    )
    chunk_kib: int = setting(
        512, "new weights, and large experience, are fetched in pieces of so many KiB", at_least=16
    )

    @property
    def is_synchronous(self) -> bool:
        return self.max_policy_lag == 0

    @property
    def chunk_bytes(self) -> int:
        return self.chunk_kib * 1024


@dataclass(frozen=True)
class Credit:
    """Leave for a pair to collect one more fragment."""

    pair: int
    ticket: int
    least_version: int | None  # begin with this version of the weights or a newer one; None: with any
    share: float = 1.0  # of the usual steps


@dataclass(frozen=True)
class Arrival:
    """A fragment that is ready to be learned from; ``what`` is the caller's."""

    pair: int
    ticket: int
    version: int  # of the weights it was begun with
    samples: int
    what: object = None


@dataclass
class Counts:
    """What became of the fragments that came."""

    used: int = 0
    dropped: int = 0
    dropped_samples: int = 0
    left_out: int = 0  # updates made without a pair that was late
    lost: int = 0  # under way at a worker that died
    lag_sum: int = 0
    lag_max: int = 0

    @property
    def mean_lag(self) -> float:
        return self.lag_sum / self.used if self.used else 0.0


@dataclass
class _Pair:
    is_robot: bool
    tickets: int = 0  # issued so far
    under_way: int = 0  # issued and not used, dropped or lost yet
    is_late: bool = False
    is_straggler: bool = False  # the others went ahead without it since it was last in time
    share: float = 1.0
    depth: int = _LEAST_DEPTH  # fragments that are wanted under way
    calm: int = 0  # updates in a row with one left over
    evaluates: bool = False
    is_excused: bool = False  # that it is waited for says nothing of its link
    too_old: int = 0  # fragments in a row, as they came
    in_time: int = 0  # fragments in a row
    ready: deque[Arrival] = field(default_factory=deque)
    came_s: float = 0.0  # when it last had something ready, after nothing
    missed: int = 0  # updates in a row, made without it
    missed_since_s: float = 0.0  # when the first of these began


class Flow:
    """Times are a monotonic clock's seconds, given by the caller."""

    def __init__(self, settings: FlowSettings, robots: Iterable[bool], updates: int) -> None:
        """``robots``: of each pair, whether it is one; ``updates``: how many are to be made."""
        self.settings = settings
        self.counts = Counts()
        self.version = 0
        self._left = updates
        self._pairs: dict[int, _Pair] = {index: _Pair(is_robot) for index, is_robot in enumerate(robots)}
        self._tickets: dict[int, int] = {}  # of pairs that are gone: a ticket is never given twice
        self._began_s: float | None = None  # since when the learner could be learning
        self._missing: set[int] = set()  # pairs that had nothing for it then
        self._usual_s: float | None = None

    @property
    def pairs(self) -> tuple[int, ...]:
        """Those that live."""
        return tuple(self._pairs)

    @property
    def left(self) -> int:
        """Updates still to be made."""
        return self._left

    @property
    def patience_s(self) -> float:
        if self.settings.is_synchronous:
            return float("inf")  # what comes later would be too old in any case
        if self.settings.straggler_patience_s:
            return self.settings.straggler_patience_s
        return max(_LEAST_PATIENCE_S, _PATIENCE_INTERVALS * (self._usual_s or 0.0))

    def begin(self, version: int, now_s: float) -> None:
        """The learner has this version and waits for experience."""
        self.version = version
        self._began_s = now_s
        self._missing = set(self.waited_for())

    def credits(self) -> list[Credit]:
        """Those to be issued now; each is told once."""
        found = []
        for index, pair in self._pairs.items():
            while pair.under_way < min(1 if pair.is_robot else pair.depth, self._most_under_way, self._left):
                pair.under_way += 1
                pair.tickets += 1
                is_any_good = pair.is_robot and not self.settings.is_synchronous
                found.append(Credit(index, pair.tickets, None if is_any_good else self.version, pair.share))
        return found

    def arrived(self, arrival: Arrival, now_s: float) -> None:
        """A fragment is there. Those of a pair that is gone are not taken."""
        if (pair := self._pairs.get(arrival.pair)) is not None:
            if not pair.ready:
                pair.came_s = now_s
            pair.ready.append(arrival)
            # Of what is too old the next ones are shorter, and worth waiting for: but not for ever.
            pair.too_old = pair.too_old + 1 if self.is_too_old(arrival.version) else 0
            if pair.too_old < _HOPELESS_AFTER:
                pair.is_late = False

    def choose(self, now_s: float) -> list[Arrival]:
        """The fragments of the next update, one of each pair that is not late; empty: not yet."""
        self._drop_old()
        ready = [pair for pair in self._pairs.values() if pair.ready]
        if not ready:
            return []
        missing = [pair for pair in self._pairs.values() if not pair.ready and not pair.is_late]
        began_s = now_s if self._began_s is None else self._began_s
        if missing and now_s - began_s < self.patience_s:
            return []
        for pair in missing:
            pair.is_late = pair.is_straggler = True
        for pair in self._pairs.values():
            if not pair.ready:
                self.counts.left_out += 1
                pair.missed_since_s = pair.missed_since_s if pair.missed else began_s
                pair.missed += 1
        chosen = [pair.ready.popleft() for pair in ready]
        for arrival in chosen:
            pair = self._pairs[arrival.pair]
            self._fit(arrival.pair, pair.came_s - began_s)
            self._in_time(pair)
            lag = self.version - arrival.version
            self.counts.lag_sum += lag
            self.counts.lag_max = max(self.counts.lag_max, lag)
        self.counts.used += len(chosen)
        return chosen

    def learned(self, version: int, now_s: float) -> None:
        """The update is done; ``version`` is what came out."""
        if self._began_s is not None:
            interval_s = now_s - self._began_s
            usual_s = interval_s if self._usual_s is None else self._usual_s
            self._usual_s = usual_s + _SMOOTHING * (interval_s - usual_s)
        self._left -= 1
        self.begin(version, now_s)

    def evaluates(self, index: int) -> None:
        """A pair collects nothing until `evaluated`, and is waited for because of that."""
        if (pair := self._pairs.get(index)) is not None:
            pair.evaluates = pair.is_excused = True

    def evaluated(self, index: int) -> None:
        """It collects again."""
        if (pair := self._pairs.get(index)) is not None:
            pair.evaluates = False

    def lost(self, index: int) -> None:
        """A pair is gone, and with it what it had under way."""
        pair = self._pairs.pop(index, None)
        if pair is None:
            return
        self.counts.lost += pair.under_way
        self._tickets[index] = pair.tickets

    def joined(self, index: int, *, is_robot: bool) -> None:
        """A new pair, or one that was gone, can collect from now on."""
        self._pairs[index] = _Pair(is_robot, tickets=self._tickets.get(index, 0))

    def missed(self) -> dict[int, tuple[int, float]]:
        """Return the pairs that the last updates were made without: how many updates, and since when."""
        return {index: (pair.missed, pair.missed_since_s) for index, pair in self._pairs.items() if pair.missed}

    def is_too_old(self, version: int) -> bool:
        """Of experience that was begun with that version."""
        return self.version - version > self.settings.max_policy_lag

    def waited_for(self) -> list[int]:
        """Pairs without anything to learn from."""
        return [index for index, pair in self._pairs.items() if not pair.ready]

    @property
    def _most_under_way(self) -> int:
        return self.settings.max_policy_lag + 1

    def _fit(self, index: int, waited_s: float) -> None:
        """As many fragments under way as its link needs, judged by how it was this time."""
        pair = self._pairs[index]
        if pair.is_excused:
            pair.is_excused = pair.evaluates
            return
        if index in self._missing and self._usual_s and waited_s > _WAITED_SHARE * self._usual_s:
            pair.depth, pair.calm = min(pair.depth + 1, self._most_under_way), 0
            return
        pair.calm = pair.calm + 1 if pair.ready else 0
        if pair.calm >= _CALM:
            pair.depth, pair.calm = max(pair.depth - 1, _LEAST_DEPTH), 0

    def _in_time(self, pair: _Pair) -> None:
        pair.under_way -= 1
        if pair.is_straggler and pair.is_robot:
            self._shorten(pair)
        pair.in_time += 1
        pair.is_straggler, pair.missed = False, 0
        if pair.in_time >= _GROWS_AFTER and pair.share < 1:
            pair.share, pair.in_time = pair.share * 2, 0

    def _shorten(self, pair: _Pair) -> None:
        # A robot that decides once a second makes one or two steps within the patience, not a sixteenth of a fragment.
        least = 1 / self.settings.fragment_steps if pair.is_robot else _LEAST_SHARE
        pair.share, pair.in_time = max(min(least, _LEAST_SHARE), pair.share / 2), 0

    def _drop_old(self) -> None:
        for pair in self._pairs.values():
            while pair.ready and self.is_too_old(pair.ready[0].version):
                old = pair.ready.popleft()
                pair.under_way -= 1
                if pair.is_straggler or not pair.is_robot:  # a robot's pace is its clock's: too slow, or not to blame
                    self._shorten(pair)
                self.counts.dropped += 1
                self.counts.dropped_samples += old.samples
