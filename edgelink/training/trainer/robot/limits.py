"""Limits of actions, enforced where the robot is."""

from __future__ import annotations

from typing import Any

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
        for name, found in vars(limits).items():
            if found and len(found) != dimensions:
                raise ValueError(f"limits.{name} has {len(found)} numbers, an action of this robot has {dimensions}")
        low = np.maximum(limits.low or spaces.action_low, spaces.action_low)
        high = np.minimum(limits.high or spaces.action_high, spaces.action_high)
        self._step = _floats(limits.max_change_per_s or [np.inf] * dimensions) / np.float32(rate_hz)
        if not (_floats(low) <= _floats(high)).all() or not (self._step > 0).all():
            raise ValueError("limits must have low <= high and rates of change above 0")
        self._low, self._high = _inside(low, high)

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


def _floats(values: Any) -> Floats:
    with np.errstate(over="ignore"):  # the largest number of a type stands for none
        return np.asarray(values, np.float32)


def _inside(low: Any, high: Any) -> tuple[Floats, Floats]:
    """Limits of 64 bits as numbers of 32 bits, which actions are; none is outside, where that is possible at all."""
    nearest_low, nearest_high = _floats(low), _floats(high)
    inner_low = np.where(nearest_low < low, np.nextafter(nearest_low, np.float32(np.inf)), nearest_low)
    inner_high = np.where(nearest_high > high, np.nextafter(nearest_high, np.float32(-np.inf)), nearest_high)
    is_between = inner_low > inner_high  # two numbers of 32 bits: one is allowed, and it is none of them
    return np.where(is_between, nearest_low, inner_low), np.where(is_between, nearest_low, inner_high)
