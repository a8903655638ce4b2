"""CartPole at a pace, for trainings that only have to go on: it sleeps where the simulator would take a whole core."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

NAME = "Paced-v0"


class Paced(CartPoleEnv):
    def __init__(self, *, step_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._step_s = step_s

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._step_s)  # what the simulation would take
        row, reward, failed, cut, info = super().step(action)
        return row, float(reward), failed, cut, info


gymnasium.register(NAME, Paced, max_episode_steps=200)
