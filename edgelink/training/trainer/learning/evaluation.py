"""What a policy is worth: the seeds of the episodes that judge it, and how sure their mean is; pure numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_SEED_OFFSET = 1_000_003  # training never draws from these
# Two-sided 95 % points of Student's t by degrees of freedom; between them the next smaller counts, which is wider.
_STUDENT = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228, 12: 2.179,
    14: 2.145, 16: 2.120, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980,
}  # fmt: skip


@dataclass(frozen=True)
class Played:
    """What an evaluation brought."""

    returns: Sequence[float]  # of whole episodes
    version: int  # of the policy; of a robot's, which changes as it plays, the oldest
    broken_off: int = 0  # attempts of a robot that a hold or a stop ended; they do not count


@dataclass(frozen=True)
class Estimate:
    """A mean, and half the width of its 95 % interval."""

    mean: float
    margin: float
    episodes: int

    def __str__(self) -> str:
        return f"{figure_text(self.mean)} ± {figure_text(self.margin)}"


def figure_text(value: float) -> str:
    """For people: tenths, and three digits of what is small, as returns of a task are that pays 1 at its end."""
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def evaluation_seed(seed: int) -> int:
    """Of simulators that are for evaluation only, for a training with ``seed``."""
    return seed + _SEED_OFFSET


def estimate(returns: Sequence[float]) -> Estimate:
    """Mean and interval of independent episodes. One episode says nothing of the others: its margin is infinite."""
    count = len(returns)
    if count < 2:
        return Estimate(float(np.mean(returns)) if count else math.nan, math.inf, count)
    quantile = _STUDENT[max(degrees for degrees in _STUDENT if degrees < count)]
    return Estimate(float(np.mean(returns)), float(quantile * np.std(returns, ddof=1) / math.sqrt(count)), count)
