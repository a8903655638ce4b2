"""A robot for tests that notes what is done to it, and misbehaves on demand; found by control processes by its name."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Bools
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.acting import PolicyActor
from edgelink.training.trainer.robot.interface import Limits, Robot, RobotSettings, Sensed
from edgelink.training.trainer.robot.shared import SharedBlock, WeightsReader

SPACES = Spaces((2,), "float32", None, (-1.0,), (1.0,))


class ObedientRobot(Robot):
    """Two features, one action. ``hang``: a file; while it is there, observe() does not return."""

    spaces = SPACES
    observation_names = ("rail.pos", "rail.vel")
    action_names = ("rail.vel",)

    def __init__(self, settings: RobotSettings) -> None:
        self.rate_hz = settings.rate_hz or 100.0
        self.limits = Limits(max_change_per_s=(50.0,))
        self.calls: list[str] = []
        self.acted: list[float] = []
        self.seen = np.zeros((1, 2), np.float32)
        self.ends = False
        self.is_ready = True
        self.fault: Exception | None = None
        self._hang = settings.options.get("hang")

    def reset(self, rigs: Bools) -> None:
        self.calls.append("reset")
        self.ends = False

    def observe(self) -> Sensed:
        while self._hang and Path(self._hang).exists():
            time.sleep(0.01)
        if self.fault is not None:
            raise self.fault
        no = np.zeros(1, np.bool_)
        return Sensed(self.seen.copy(), np.ones(1, np.float32), np.asarray([self.ends]), no, self.is_ready)

    def act(self, actions: Actions) -> None:
        self.calls.append("act")
        self.acted.append(float(actions[0, 0]))

    def hold(self) -> None:
        self.calls.append("hold")

    def stop(self) -> None:
        self.calls.append("stop")


def absent(_: RobotSettings) -> Robot:
    raise ConnectionError("no robot at 192.0.2.7")


def policy(robot: Robot, block: SharedBlock) -> PolicyActor:
    """By what is published in ``block``."""
    return PolicyActor(WeightsReader(block), robot.spaces, seed=0)


def weights(mean: float = 0.0, log_std: float = -20.0) -> dict[str, Any]:
    """A policy for ObedientRobot that always does about ``mean``."""
    return {
        "policy/head/weight": np.zeros((1, 2), np.float32),
        "policy/head/bias": np.full(1, mean, np.float32),
        "policy/log_std": np.full(1, log_std, np.float32),
    }
