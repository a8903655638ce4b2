"""Limits of actions, enforced where the robot is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Bools, Floats
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.interface import Limits


class ActionLimits:
    """Clamps actions to a box and to a rate of change; remembers what was last commanded.

    Raises:
        ValueError: limits that do not fit the spaces.
    """

    def __init__(self, limits: Limits, spaces: Spaces, rate_hz: float) -> None:
        self._spaces = spaces
        self._last: Actions | None = None
        self._low = self._high = self._step = _floats(())
        if spaces.action_count is not None:
            if limits != Limits():
                raise ValueError("limits are for continuous actions; this robot's are discrete")
            return
        dimensions = len(spaces.action_low)
        self._low = np.maximum(_floats(limits.low or spaces.action_low), _floats(spaces.action_low))
        self._high = np.minimum(_floats(limits.high or spaces.action_high), _floats(spaces.action_high))
        self._step = _floats(limits.max_change_per_s or [np.inf] * dimensions) / np.float32(rate_hz)
        for name, found in (("low", self._low), ("high", self._high), ("max_change_per_s", self._step)):
            if found.shape != (dimensions,):
                raise ValueError(f"limits.{name} has {found.size} numbers, an action of this robot has {dimensions}")
        if not (self._low <= self._high).all() or not (self._step > 0).all():
            raise ValueError("limits must have low <= high and rates of change above 0")

    def apply(self, actions: Actions) -> tuple[Actions, bool, bool]:
        """What may be commanded of finite ``actions``, and whether box and rate changed it."""
        boxed = self.boxed(actions)
        if self._spaces.action_count is not None or self._last is None:
            return boxed, bool((boxed != actions).any()), False
        slowed = self.boxed(np.clip(boxed, self._last - self._step, self._last + self._step))
        return slowed, bool((boxed != actions).any()), bool((slowed != boxed).any())

    def boxed(self, actions: Actions) -> Actions:
        """Inside the box, which comes last and wins over the rate of change: from outside, the way in is at once."""
        if self._spaces.action_count is not None:
            chosen: Actions = np.clip(actions, 0, self._spaces.action_count - 1)
            return chosen
        within: Actions = np.clip(actions, self._low, self._high)
        return within

    def commanded(self, actions: Actions, rigs: Bools | None = None) -> None:
        """What went to the robot, or what it rests at, finite: the next change is counted from here.

        Args:
            rigs: those that this is about; None: all.
        """
        if rigs is None or self._last is None or self._spaces.action_count is not None:
            self._last = np.array(actions)
        else:
            self._last[rigs] = actions[rigs]


def _floats(values: Sequence[float]) -> Floats:
    return np.asarray(values, np.float32)
