"""Means and deviations of everything seen so far, and their way into the weights; pure numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgelink.training.trainer.experience.fragment import Bools, Floats
from edgelink.training.trainer.learning.policy import MEAN, STD

_LEAST_DEVIATION = 1e-3  # of an observation that hardly ever changes
_LEAST_SHARE = 1e-3  # of the mean of the rewards' sums: their deviation counts for so much, at least
_SMALLEST = float(np.finfo(np.float32).tiny)  # whose inverse is still a number of 32 bits


@dataclass
class Moments:
    """Count, mean and sum of squared differences, merged by Chan's method."""

    width: int
    count: float = 0.0
    mean: Any = field(init=False)
    squares: Any = field(init=False)

    def __post_init__(self) -> None:
        self.mean = np.zeros(self.width, np.float64)
        self.squares = np.zeros(self.width, np.float64)

    def merge(self, count: float, mean: Any, squares: Any) -> None:
        if not count:
            return
        total = self.count + count
        difference = mean - self.mean
        self.mean = self.mean + difference * (count / total)
        self.squares = self.squares + squares + difference**2 * (self.count * count / total)
        self.count = total

    def row(self) -> NDArray[np.float64]:
        """As one array, to be told to others or written down."""
        row: NDArray[np.float64] = np.concatenate([[self.count], self.mean, self.squares])
        return row

    def merge_row(self, row: NDArray[np.float64]) -> None:
        self.merge(float(row[0]), row[1 : 1 + self.width], row[1 + self.width :])

    def load(self, row: NDArray[np.float64]) -> None:
        """Forget everything but ``row``."""
        self.count = 0.0
        self.__post_init__()
        self.merge_row(row)

    @property
    def deviation(self) -> NDArray[np.float64]:
        """0 of what never changes; 1 while nothing is known."""
        deviation: NDArray[np.float64] = np.sqrt(self.squares / self.count) if self.count else np.ones(self.width)
        return deviation


def moments_of(rows: Any) -> Moments:
    """Of ``rows``, shape (samples, width)."""
    moments = Moments(rows.shape[1])
    if len(rows):
        mean = rows.mean(axis=0, dtype=np.float64)
        centred = rows - mean.astype(rows.dtype)
        moments.merge(len(rows), mean, np.einsum("ij,ij->j", centred, centred, dtype=np.float64))
    return moments


def normalisation(moments: Moments) -> dict[str, Floats]:
    """What the edges need of it: vectors, which travel in 32 bits; a mean far from 0 would be lost in bfloat16."""
    deviation = np.maximum(moments.deviation, _LEAST_DEVIATION)
    return {MEAN: moments.mean.astype(np.float32), STD: deviation.astype(np.float32)}


def reward_scale(sums: Moments) -> float:
    """What rewards are multiplied by, given the moments of their discounted sums: ten times as large ones get a tenth.

    1 where there were no rewards at all.
    """
    deviation = max(float(sums.deviation[0]), _LEAST_SHARE * abs(float(sums.mean[0])))
    return 1.0 / deviation if deviation > _SMALLEST else 1.0


def discounted_sums(
    rewards: Floats, ended: Bools, discount: float, before: Any
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums of past rewards at each step, and those with which the next step of each environment begins.

    Args:
        rewards: (steps, environments).
        ended: where an episode ended with this step.
        before: with what the first step begins: of the fragment before, so that it does not matter where one ends.
    """
    running: Any = before
    sums = np.empty(rewards.shape, np.float64)
    for index, (reward, end) in enumerate(zip(rewards, ended, strict=True)):
        sums[index] = running = running * discount + reward
        running = np.where(end, 0.0, running)
    return sums.reshape(-1), running
