"""Frame stacking: the policy sees the newest observations at once, side by side along their last axis.

Done by us on both ends instead of by a wrapper of the environment, so that each frame crosses the link once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Bools, Observations
from edgelink.training.trainer.learning.spaces import Spaces


class Stack:
    """The last ``depth`` observations of several environments; an episode begins with its first one repeated."""

    def __init__(self, depth: int, first: Observations, history: Observations | None = None) -> None:
        """``history``: what was before ``first``, oldest first; None: episodes begin here."""
        before = [first] * (depth - 1) if history is None else list(history)
        self._frames: list[Any] = [*before, first]

    @property
    def seen(self) -> Observations:
        """What the policy sees."""
        return side_by_side(self._frames)

    @property
    def history(self) -> Observations:
        """All but the newest, oldest first: (depth - 1, environments, …)."""
        newest = self._frames[-1]
        return np.stack(self._frames[:-1]) if len(self._frames) > 1 else newest[None][:0]

    def push(self, observations: Observations, ended: Bools) -> None:
        """The next observation of each environment; where an episode ``ended``, the first one of the next."""
        self._frames = [*self._frames[1:], observations]
        if ended.any():
            chosen = ended.reshape(-1, *[1] * (observations.ndim - 1))
            self._frames = [np.where(chosen, observations, frame) for frame in self._frames]

    def final(self, observations: Observations, ended: Bools) -> Observations:
        """What the policy would have seen at the end of the episodes that ``ended``; ``observations`` are theirs."""
        return side_by_side([*(frame[ended] for frame in self._frames[1:]), observations])


def side_by_side(frames: list[Any]) -> Observations:
    result: Observations = frames[0] if len(frames) == 1 else np.concatenate(frames, axis=-1)
    return result


def stacked(spaces: Spaces, depth: int) -> Spaces:
    """The spaces that the policy has, of environments that have ``spaces``."""
    *others, last = spaces.observation_shape
    return replace(spaces, observation_shape=(*others, last * depth))
