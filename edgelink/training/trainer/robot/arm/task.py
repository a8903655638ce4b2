"""The arm's reach task as a gymnasium environment: importing this module registers it as :data:`TASK`.

``gymnasium.make("edgelink.training.trainer.robot.arm.task:ArmReach-v0")`` does both.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from edgelink.training.trainer.robot.arm.model import (
    ATTEMPT_STEPS,
    FEATURES,
    JOINTS,
    NEAR_M,
    STEP_S,
    TIMESTEP_S,
    ArmModel,
    reward,
)

TASK = "ArmReach-v0"


class ArmReach(gymnasium.Env):  # type: ignore[misc]
    """Bring the finger tip to a point and keep it there; physics and reward are those of the robot in real time."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-20.0, 20.0, (FEATURES,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (JOINTS,), np.float32)
        self._arm = ArmModel()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._arm.begin(self.np_random)
        return self._arm.observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """``STEP_S`` of physics. Never fails; cut off after ``ATTEMPT_STEPS`` by gymnasium's time limit."""
        self._arm.advance(action, round(STEP_S / TIMESTEP_S))
        distance_m = self._arm.distance_m
        return (
            self._arm.observation(),
            reward(distance_m, action),
            False,
            False,
            {"distance_m": distance_m, "is_success": distance_m < NEAR_M},
        )


if TASK not in gymnasium.registry:
    gymnasium.register(
        TASK, entry_point=ArmReach, max_episode_steps=ATTEMPT_STEPS, disable_env_checker=True, order_enforce=False
    )
