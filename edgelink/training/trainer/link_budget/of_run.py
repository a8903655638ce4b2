"""The link budget of one run of the trainer: told before its first update, held against what happened at its end."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelink.training.trainer.failure import TRY_AGAIN, TrainerError
from edgelink.training.trainer.link_budget.links import Measured
from edgelink.training.trainer.link_budget.predict import Prediction, better, predict
from edgelink.training.trainer.link_budget.traffic import ACTION_BYTES, DISCRETE_ACTION_BYTES, Seats, Work
from edgelink.training.trainer.link_budget.words import lines, rounded, to_dict, warning

LINKS_VARIABLE = "EDGELINK_LINKS"
_FORMAT = 1
_STARTING = 2  # updates that are not counted: connections, caches and code are new


@dataclass
class Tally:
    """What the updates of a run were like, as the driver sees them."""

    samples: dict[int, list[int]] = field(default_factory=dict)  # of each fragment, by worker
    collect_s: dict[int, list[float]] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=dict)  # of fragments, by component
    raw_bytes: dict[str, int] = field(default_factory=dict)
    weights_bytes: list[int] = field(default_factory=list)  # of each version, as most workers fetch it
    update_s: list[float] = field(default_factory=list)
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
        self.update_s.append(learned.seconds)
        offer = learned.made.offer
        self.weights_bytes.append(offer.difference_bytes or offer.whole_bytes)
        for about in learned.abouts:
            self.samples.setdefault(about.rank, []).append(about.samples)
            self.collect_s.setdefault(about.rank, []).append(about.collect_s)
            for counted, sizes in ((self.sent_bytes, about.sent_bytes), (self.raw_bytes, about.raw_bytes)):
                for what, size in sizes.items():
                    counted[what] = counted.get(what, 0) + size

    @property
    def steps(self) -> int:
        return sum(sum(each) for each in self.samples.values())

    @property
    def env_steps_per_s(self) -> float | None:
        """Of all workers together; None: too short to tell."""
        if self.first_s is None or self.last_s <= self.first_s:
            return None
        return self.steps / (self.last_s - self.first_s)

    def work(self, workers: int, max_policy_lag: int, wanted_env_steps_per_s: float | None = None) -> Work | None:
        """What the run was, for a prediction on other links; None: too short to tell."""
        updates = len(self.update_s)
        if not updates or not self.steps:
            return None
        observations = self.sent_bytes.get("observations", 0)
        return Work(
            observation_bytes=observations / self.steps,
            action_bytes=(sum(self.sent_bytes.values()) - observations) / self.steps,
            weights_bytes=statistics.fmean(self.weights_bytes),
            fragment_steps=tuple(round(sum(self.samples.get(worker, ())) / updates) for worker in range(workers)),
            max_policy_lag=max_policy_lag,
            env_steps_per_s=tuple(self._pace(worker) for worker in range(workers)),
            update_s=statistics.fmean(self.update_s),
            wanted_env_steps_per_s=wanted_env_steps_per_s,
            rest_bytes=0.0,
        )

    def _pace(self, worker: int) -> float | None:
        seconds = sum(self.collect_s.get(worker, ()))
        return sum(self.samples[worker]) / seconds if seconds else None


def expected_work(
    observation_bytes: float,
    action_dimensions: int | None,
    weights_bytes: float,
    fragment_steps: Sequence[int],
    max_policy_lag: int,
    wanted_env_steps_per_s: float | None,
) -> Work:
    """What is known before the first update. ``action_dimensions``: None for discrete actions."""
    actions = DISCRETE_ACTION_BYTES if action_dimensions is None else ACTION_BYTES * action_dimensions
    return Work(
        observation_bytes,
        actions,
        weights_bytes,
        tuple(fragment_steps),
        max_policy_lag=max_policy_lag,
        wanted_env_steps_per_s=wanted_env_steps_per_s,
    )


class RunBudget:
    """Links that were measured for this run, and what is to be expected of them."""

    def __init__(self, seats: Seats, measured: Measured, *, env_may_move: bool) -> None:
        self._seats = seats
        self._measured = measured
        self._env_may_move = env_may_move

    @classmethod
    def from_environment(cls, seats: Seats, *, env_may_move: bool) -> RunBudget | None:
        """None where nothing was measured: ``--no-preflight``, or one node alone."""
        file = os.environ.get(LINKS_VARIABLE)
        if not file:
            return None
        try:
            return cls(seats, Measured.from_dict(json.loads(Path(file).read_text())), env_may_move=env_may_move)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # whoever wrote it knows another format; training does not depend on it

    def before(self, work: Work) -> list[str]:
        """What is told before the first update.

        Raises:
            TrainerError: the links do not carry the env steps that are wanted; it names the better placement.
        """
        prediction = predict(self._seats, work, self._measured)
        others = better(self._seats, work, self._measured, env_may_move=self._env_may_move)
        if not prediction.loads:
            return []
        warned = warning(prediction, work, self._measured, others)
        if prediction.is_too_much:
            raise TrainerError(f"the links do not carry this training: {warned}", exit_status=TRY_AGAIN)
        told = ["link budget:", *(f"  {line}" for line in lines(prediction, work, self._measured))]
        # Free-running, a link is used as much as it can be: it is a fault only where a pace is wanted.
        return [*told, f"warning: {warned}"] if warned and work.wanted_env_steps_per_s is not None else told

    def after(self, tally: Tally, max_policy_lag: int) -> tuple[list[str], dict[str, Any]]:
        """What happened, beside what the measured links let expect of workers and a learner as fast as these."""
        work = tally.work(len(self._seats.env), max_policy_lag)
        if work is None or tally.env_steps_per_s is None:
            return [], {}
        prediction = predict(self._seats, work, self._measured)
        return [_compared(prediction, tally.env_steps_per_s)], to_dict(prediction, work, self._measured)


def report(tally: Tally, workers: int, max_policy_lag: int, predicted: Mapping[str, Any]) -> dict[str, Any]:
    """For the run's report: what was seen, what was predicted, and what another prediction needs."""
    work = tally.work(workers, max_policy_lag)
    return {
        "format": _FORMAT,
        "env_steps_per_s": tally.env_steps_per_s and round(tally.env_steps_per_s, 2),
        "sent_bytes": tally.sent_bytes,
        "raw_bytes": tally.raw_bytes,
        "work": None if work is None else work.to_dict(),
        "predicted": dict(predicted) or None,
    }


def work_of_report(content: Mapping[str, Any]) -> Work:
    """What a run's report tells of it. Raises KeyError, TypeError: it tells nothing of that."""
    return Work.from_dict(content["link_budget"]["work"])


def _compared(prediction: Prediction, env_steps_per_s: float) -> str:
    if prediction.env_steps_per_s is None:
        return f"link budget: {rounded(env_steps_per_s)} env steps/s; no link limits them"
    return (
        f"link budget: {rounded(env_steps_per_s)} env steps/s, predicted {rounded(prediction.env_steps_per_s)}, "
        f"limited by {prediction.limit}"
    )
