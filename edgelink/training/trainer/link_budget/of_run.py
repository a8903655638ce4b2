"""The link budget of one run of the trainer: told before its first update, held against what happened at its end."""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgelink.training.trainer.failure import TRY_AGAIN, TrainerError
from edgelink.training.trainer.link_budget.links import Measured
from edgelink.training.trainer.link_budget.predict import Prediction, better, predict, reducing_s, traffic
from edgelink.training.trainer.link_budget.traffic import (
    ACTION_BYTES,
    CHUNK_BYTES,
    DISCRETE_ACTION_BYTES,
    Seats,
    Work,
    observation_bytes,
)
from edgelink.training.trainer.link_budget.words import duration, lines, mbit, rounded, to_dict, warning

if TYPE_CHECKING:  # they need numpy, which the command line has to do without
    from edgelink.training.trainer.learning.spaces import Spaces
    from edgelink.training.trainer.offers import Told

IdleWay = Callable[[int], float]  # what an offer's way takes with so many bytes while nothing else is on it, in seconds

LINKS_VARIABLE = "EDGELINK_LINKS"
_MOST_WINDOWS = 240  # two hours: a run may take weeks
_SAME_CLOCK_S = 60.0  # no offer is under way for longer and counts
_WINDOW_S = 30.0  # in which two clocks do not drift apart by a millisecond
_STARTING = 2  # updates that are not counted: connections, caches and code are new


@dataclass
class _Window:
    """Exchanges with one worker in a time in which two clocks do not drift apart by a millisecond."""

    began_s: float
    quickest: Told  # there and back
    soonest: Told  # there, as far as two clocks can tell
    count: int = 0
    sum_s: float = 0.0  # from the making by our clock to the note by the worker's

    def has_room_for(self, told: Told) -> bool:
        """Soon enough, and by the same clock: a machine that has booted again has another one."""
        drift_s = _there_s(told) - _there_s(self.quickest)
        return told.made_s - self.began_s <= _WINDOW_S and abs(drift_s) <= _SAME_CLOCK_S

    def add(self, told: Told) -> None:
        self.count += 1
        self.sum_s += _there_s(told)
        self.quickest = min(self.quickest, told, key=_round_trip_s)
        self.soonest = min(self.soonest, told, key=_there_s)

    def mean_s(self, idle_s: IdleWay | None) -> float:
        return max(0.0, self.sum_s / self.count - self._ahead_s(idle_s))

    def _ahead_s(self, idle_s: IdleWay | None) -> float:
        """By how much the worker's clock is before ours."""
        of_both_ways_s = _round_trip_s(self.quickest)
        if idle_s is None:
            return _there_s(self.quickest) - of_both_ways_s / 2
        known_s = idle_s(self.quickest.enclosed_bytes)
        there_s = (of_both_ways_s + known_s - idle_s(0)) / 2  # what it brings takes its time on one way only
        if there_s <= known_s:
            return _there_s(self.quickest) - there_s
        # Answers wait behind experience, for seconds: whose way back was the quickest says nothing of its way there.
        return _there_s(self.soonest) - idle_s(self.soonest.enclosed_bytes)


class Offered:
    """How long it takes until one worker knows of new weights, its clock being another one than ours.

    Of the quickest exchange of half a minute, half is taken for each way, as NTP does (RFC 5905, section 8), beside
    what it brings; where every answer waits behind experience, the one that was there the soonest had the way for
    itself. Either tells how the clocks differ, and so how long the others took.
    """

    def __init__(self) -> None:
        self._windows: deque[_Window] = deque(maxlen=_MOST_WINDOWS)

    def add(self, told: Told) -> None:
        if not self._windows or not self._windows[-1].has_room_for(told):
            self._windows.append(_Window(told.made_s, told, told))
        self._windows[-1].add(told)

    def mean_s(self, idle_s: IdleWay | None) -> float:
        """``idle_s``: None where the link is not known."""
        count = sum(window.count for window in self._windows)
        return sum(window.mean_s(idle_s) * window.count for window in self._windows) / max(1, count)


def _there_s(told: Told) -> float:
    return told.noted_s - told.made_s


def _round_trip_s(told: Told) -> float:
    return told.answered_s - told.made_s


@dataclass
class Tally:
    """What the updates of a run were like, as the driver sees them: sums, for there may be millions."""

    samples: Counter[int] = field(default_factory=Counter)  # by worker
    collect_s: dict[int, float] = field(default_factory=dict)
    sent_bytes: Counter[str] = field(default_factory=Counter)  # of fragments, by component
    fetch_s: dict[int, float] = field(default_factory=dict)  # of new weights once they were offered, summed by worker
    offers: dict[int, Offered] = field(default_factory=dict)  # by worker
    fragments: Counter[int] = field(default_factory=Counter)  # by worker
    weights_bytes: int = 0  # of all versions, as most workers fetch them
    update_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    seen: int = 0

    def add(self, learned: Any, now_s: float) -> None:
        """One update (a ``Learned``), at this moment of a monotonic clock."""
        self.seen += 1
        if self.seen <= _STARTING:
            self.first_s = now_s
            return
        self.last_s = now_s
        self.update_s += learned.seconds
        offer = learned.made.offer
        self.weights_bytes += offer.difference_bytes or offer.whole_bytes
        for about in learned.abouts:
            self.samples[about.rank] += about.samples
            self.collect_s[about.rank] = self.collect_s.get(about.rank, 0.0) + about.collect_s
            self.fetch_s[about.rank] = self.fetch_s.get(about.rank, 0.0) + about.fetch_s
            self.fragments[about.rank] += 1
            self.sent_bytes.update(about.sent_bytes)

    @property
    def steps(self) -> int:
        return self.samples.total()

    def offered(self, worker: int, told: Told) -> None:
        """It knows of new weights."""
        if self.seen > _STARTING:
            self.offers.setdefault(worker, Offered()).add(told)

    def sync_s(self, nodes: Sequence[int], idle_s: Mapping[int, IdleWay]) -> dict[int, float]:
        """By node: the mean time from the making of new weights until its rollout workers had them.

        Args:
            nodes: of each worker.
            idle_s: by node, where that is known.
        """
        found: dict[int, list[float]] = {}
        for worker, seconds in self.fetch_s.items():
            if worker < len(nodes):  # what has joined is in no prediction
                offered = self.offers.get(worker, Offered())
                told_s = offered.mean_s(idle_s.get(nodes[worker]))
                found.setdefault(nodes[worker], []).append(told_s + seconds / self.fragments[worker])
        return {node: sum(means) / len(means) for node, means in found.items()}

    @property
    def env_steps_per_s(self) -> float | None:
        """Of all workers together; None: too short to tell."""
        if self.first_s is None or self.last_s <= self.first_s:
            return None
        return self.steps / (self.last_s - self.first_s)

    def work(self, workers: int, max_policy_lag: int, *, chunk_bytes: int = CHUNK_BYTES) -> Work | None:
        """What the run was, for a prediction on other links; None: too short to tell."""
        updates = self.seen - _STARTING
        # A slow robot gives less than one env step an update; what has joined is in no prediction.
        fragment_steps = tuple(self.samples[worker] / max(1, updates) for worker in range(workers))
        if updates <= 0 or not any(fragment_steps):
            return None
        observations = self.sent_bytes["observations"]
        return Work(
            observation_bytes=observations / self.steps,
            action_bytes=(self.sent_bytes.total() - observations) / self.steps,
            weights_bytes=self.weights_bytes / updates,
            fragment_steps=fragment_steps,
            max_policy_lag=max_policy_lag,
            env_steps_per_s=tuple(self._pace(worker) for worker in range(workers)),
            update_s=self.update_s / updates,
            rest_bytes=0.0,
            chunk_bytes=chunk_bytes,
        )

    def _pace(self, worker: int) -> float | None:
        seconds = self.collect_s.get(worker, 0.0)
        return self.samples[worker] / seconds if seconds else None


@dataclass(frozen=True)
class Gradients:
    """What several learners add up: of all parameters, and after each minibatch of each epoch."""

    size_bytes: float = 0.0
    epochs: int = 0
    rounds: Callable[[float], int] = lambda _steps: 0  # of an epoch over so many env steps

    def reductions(self, steps: float) -> int:
        """In an update of so many env steps."""
        return self.epochs * self.rounds(steps)


class RunBudget:
    """What the links let expect of one run, and what came of it.

    Without links that were measured (``--no-preflight``, or one node alone) nothing is expected; what came is told all
    the same, because another run may be predicted from it.
    """

    def __init__(self, seats: Seats, measured: Measured | None, names: Mapping[int, str], *, env_may_move: bool = True,
                 max_policy_lag: int = 0, wanted_env_steps_per_s: float | None = None,
                 chunk_bytes: int = CHUNK_BYTES) -> None:  # fmt: skip
        self._seats = seats
        self._measured = measured
        self._names = names  # of nodes, by rank; also where nothing was measured
        self._env_may_move = env_may_move
        self._lag = max_policy_lag
        self._wanted = wanted_env_steps_per_s
        self._chunk_bytes = chunk_bytes
        self._tally = Tally()
        self._gradients = Gradients()
        self._counted: dict[int, tuple[float, float]] = {}
        self._before: dict[str, Any] | None = None

    def begin(
        self,
        spaces: Spaces,
        weights_bytes: float,
        fragment_steps: Sequence[int],
        gradients: Gradients | None = None,
    ) -> list[str]:
        """What is told before the first update. ``spaces``: of one frame, which crosses the link once; ``gradients``
        where there are several learners.

        Raises:
            TrainerError: the links do not carry the env steps that are wanted; it names the better placement.
        """
        self._gradients = gradients or Gradients()
        if self._measured is None:
            return []
        dimensions = len(spaces.action_low)
        work = Work(
            observation_bytes(spaces.observation_shape, spaces.observation_dtype),
            DISCRETE_ACTION_BYTES if spaces.action_count is not None else ACTION_BYTES * dimensions,
            weights_bytes,
            tuple(fragment_steps),
            max_policy_lag=self._lag,
            wanted_env_steps_per_s=self._wanted,
            chunk_bytes=self._chunk_bytes,
            gradient_bytes=self._gradients.size_bytes,
            reductions=self._gradients.reductions(sum(fragment_steps)),
        )
        prediction = predict(self._seats, work, self._measured)
        others = better(self._seats, work, self._measured, env_may_move=self._env_may_move)
        if not prediction.loads:
            return []
        warned = warning(prediction, work, self._measured, others)
        if prediction.is_too_much:
            raise TrainerError(f"the links do not carry this training: {warned}", exit_status=TRY_AGAIN)
        self._before = to_dict(prediction, work, self._measured, others)
        told = ["link budget, observations as they are:"]
        told += [f"  {line}" for line in lines(prediction, work, self._measured)]
        # Free-running, a link is used as much as it can be: it is a fault only where a pace is wanted.
        return [*told, f"warning: {warned}"] if warned and self._wanted else told

    def add(self, learned: Any, now_s: float) -> None:
        """Count an update."""
        self._tally.add(learned, now_s)

    def offered(self, worker: int, told: Told) -> None:
        """See :meth:`Tally.offered`."""
        self._tally.offered(worker, told)

    def counted(self, mbit_per_s: Mapping[int, tuple[float, float]]) -> None:
        """What the overlay's device of each node has sent and received from the first update to the last."""
        self._counted = dict(mbit_per_s)

    def end(self) -> list[str]:
        """What came, beside what the measured links let expect of workers and a learner as fast as these."""
        happened, prediction = self._tally.env_steps_per_s, self._predicted()
        if happened is None or prediction is None:
            return []
        if prediction.env_steps_per_s is None:
            return [f"link budget: {rounded(happened)} env steps/s; no link limits them"]
        first = (
            f"link budget: {rounded(happened)} env steps/s, predicted {rounded(prediction.env_steps_per_s)}, "
            f"limited by {prediction.limit}"
        )
        return [first, *(f"  {line}" for line in self._by_node(prediction))]

    def _by_node(self, prediction: Prediction) -> list[str]:
        """Of each node away from the first learner, what was and, in brackets, what was predicted."""
        sync_s, told = self._sync_s(), []
        for node in sorted({load.source for load in prediction.loads} - {self._seats.actor[0]}):
            parts = []
            if node in sync_s and node in prediction.sync_s:
                parts.append(f"a new policy after {duration(sync_s[node])} ({duration(prediction.sync_s[node])})")
            if node in self._counted:
                sent, received = self._counted[node]
                expected_sent, expected_received = traffic(prediction, node)
                parts.append(f"sent {mbit(sent)} ({mbit(expected_sent)})")
                parts.append(f"received {mbit(received)} ({mbit(expected_received)})")
            if parts:
                told.append(f"{self._name(node)}: {', '.join(parts)}")
        return told

    def _name(self, node: int) -> str:
        return self._names.get(node) or f"node {node}"  # one that joined later is in no placement

    def to_dict(self) -> dict[str, Any]:
        """For the run's report: what was expected, what came, and what another prediction needs."""
        tally, work, prediction = self._tally, self._work(), self._predicted()
        predicted = None
        if work is not None and prediction is not None and self._measured is not None:
            predicted = to_dict(prediction, work, self._measured)
            work = replace(work, rest_s=self._rest_s(work, prediction), sync_rest_s=self._sync_rest_s(prediction))
        return {
            "before": self._before,
            "predicted": predicted,
            "env_steps_per_s": tally.env_steps_per_s and round(tally.env_steps_per_s, 2),
            "sync_s": {self._name(node): round(seconds, 4) for node, seconds in self._sync_s().items()},
            "mbit_per_s": {
                self._name(node): {"sent": round(sent, 4), "received": round(received, 4)}
                for node, (sent, received) in self._counted.items()
            },
            "work": None if work is None else work.to_dict(),
        }

    def _rest_s(self, work: Work, prediction: Prediction) -> float:
        """What a turn took beyond what is known of it. With a lag, turns overlap, and a turn's length is not seen."""
        happened, expected = self._tally.env_steps_per_s, prediction.env_steps_per_s
        if work.max_policy_lag or prediction.unmeasured or not happened or not expected:
            return 0.0
        return max(0.0, work.steps / happened - work.steps / expected)

    def _sync_s(self) -> dict[int, float]:
        links = {} if self._measured is None else self._measured.links
        idle_s = {target: link.message_s for (source, target), link in links.items() if source == self._seats.actor[0]}
        return self._tally.sync_s(self._seats.rollout, idle_s)

    def _sync_rest_s(self, prediction: Prediction) -> float:
        """What new weights took beyond what is known of the way; the mean over the nodes."""
        happened = self._sync_s()
        beyond = [max(0.0, happened[node] - known) for node, known in prediction.sync_s.items() if node in happened]
        return sum(beyond) / len(beyond) if beyond else 0.0

    def _work(self) -> Work | None:
        work = self._tally.work(len(self._seats.env), self._lag, chunk_bytes=self._chunk_bytes)
        if work is None or (update_s := work.update_s) is None or self._measured is None:
            return work  # whose updates have the learners' exchange in them, if there was one
        gradients = self._gradients
        work = replace(work, gradient_bytes=gradients.size_bytes, reductions=gradients.reductions(work.steps))
        return replace(work, update_s=max(0.0, update_s - reducing_s(self._seats, work, self._measured)))

    def _predicted(self) -> Prediction | None:
        work = self._work()
        return None if work is None or self._measured is None else predict(self._seats, work, self._measured)


def links_of_run() -> Measured | None:
    """What `edgelink run` has measured; None where it has not, or another version of it wrote another format."""
    try:
        return Measured.from_dict(json.loads(Path(os.environ[LINKS_VARIABLE]).read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def work_of_report(content: Mapping[str, Any]) -> Work:
    """What a run's report tells of it. Raises KeyError, TypeError, ValueError: it tells nothing of that."""
    return Work.from_dict(content["link_budget"]["work"])
