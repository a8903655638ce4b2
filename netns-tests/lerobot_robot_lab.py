"""A robot without hardware, as a plugin of LeRobot's: joints that follow at once, and a camera if one is wanted.

Each command is a line of ``log``: when it came (seconds since the epoch), and its numbers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lerobot.robots import Robot, RobotConfig


@RobotConfig.register_subclass("lab")
@dataclass(kw_only=True)
class LabRobotConfig(RobotConfig):
    """Settings of :class:`LabRobot`, ``--robot.NAME=VALUE``."""

    log: str
    joints: str = "pan.pos,lift.pos"
    side: int = 0  # pixels of the camera's picture; 0: no camera


class LabRobot(Robot):
    """LeRobot finds it by the name of its configuration."""

    config_class = LabRobotConfig
    name = "lab"

    def __init__(self, config: LabRobotConfig) -> None:
        super().__init__(config)
        self._joints = dict.fromkeys(config.joints.split(","), 0.0)
        self._side = config.side
        self._log = Path(config.log)
        self._seen = 0

    @property
    def observation_features(self) -> dict[str, Any]:
        camera = {"front": (self._side, self._side, 3)} if self._side else {}
        return {**dict.fromkeys(self._joints, float), **camera}

    @property
    def action_features(self) -> dict[str, Any]:
        return dict.fromkeys(self._joints, float)

    @property
    def is_connected(self) -> bool:
        return True

    @property
    def is_calibrated(self) -> bool:
        return True

    def connect(self, calibrate: bool = True) -> None:
        return

    def calibrate(self) -> None:
        return

    def configure(self) -> None:
        return

    def disconnect(self) -> None:
        return

    def get_observation(self) -> dict[str, Any]:
        self._seen += 1
        camera = {"front": np.full((self._side, self._side, 3), self._seen % 256, np.uint8)} if self._side else {}
        return {**self._joints, **camera}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self._joints = {joint: float(action[joint]) for joint in self._joints}
        with self._log.open("a") as log:
            print(time.time(), *self._joints.values(), file=log)
        return action
