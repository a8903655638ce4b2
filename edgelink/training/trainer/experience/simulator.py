"""A simulator: several gymnasium CartPole environments stepped together."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Floats, Ints, Step

TASK = "CartPole-v1"


class Simulator:
    """``count`` environments with their own seeds. An ended episode starts anew within the same step.

    Plain environments instead of gymnasium's vector classes, whose reset rules differ between its versions.
    """

    def __init__(self, count: int, seed: int) -> None:
        import gymnasium

        self.count = count
        self._environments: list[Any] = [gymnasium.make(TASK, disable_env_checker=True) for _ in range(count)]
        self._seed = seed

    def reset(self) -> Floats:
        rows = [
            environment.reset(seed=self._seed * 1000 + index)[0] for index, environment in enumerate(self._environments)
        ]
        return np.asarray(rows, dtype=np.float32)

    def step(self, actions: Ints) -> Step:
        rows, finals, rewards, terminated, truncated = [], [], [], [], []
        for environment, action in zip(self._environments, actions, strict=True):
            row, reward, failed, cut, _ = environment.step(int(action))
            finals.append(row)
            rewards.append(reward)
            terminated.append(failed)
            truncated.append(cut and not failed)
            rows.append(environment.reset()[0] if failed or cut else row)
        return Step(
            np.asarray(rows, dtype=np.float32),
            np.asarray(rewards, dtype=np.float32),
            np.asarray(terminated, dtype=np.bool_),
            np.asarray(truncated, dtype=np.bool_),
            np.asarray(finals, dtype=np.float32),
        )

    def report(self) -> dict[str, Any]:
        return {"task": TASK, "environments": self.count}

    def close(self) -> None:
        for environment in self._environments:
            environment.close()
