"""A simulator: several gymnasium environments of one task, stepped together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Observations, Step
from edgelink.training.trainer.learning.spaces import spaces_of, viewed
from edgelink.training.trainer.seeds import derived

TASK = "CartPole-v1"


@dataclass(frozen=True)
class Task:
    """What the simulators simulate."""

    env_id: str = TASK  # as registered with gymnasium; "package.module:Name-v0" imports the module first
    options: Mapping[str, Any] = field(default_factory=dict)  # keyword arguments of ``gymnasium.make``


class Simulator:
    """``count`` environments with their own seeds. An ended episode starts anew within the same step.

    Plain environments instead of gymnasium's vector classes, whose reset rules differ between its versions.

    Raises:
        ValueError: there is no such task on this node, or its spaces are not supported.
    """

    def __init__(self, count: int, seed: int, task: Task | None = None) -> None:
        import gymnasium

        self._task = task or Task()
        self.count = count
        self._seed = seed
        self._is_fresh = True
        try:
            self._environments: list[Any] = [
                gymnasium.make(self._task.env_id, disable_env_checker=True, **self._task.options) for _ in range(count)
            ]
        except (gymnasium.error.Error, ImportError, TypeError) as error:
            raise ValueError(f"the task {self._task.env_id!r} cannot be made here: {error}") from error
        self.spaces = spaces_of(self._environments[0], self._task.env_id)
        self._action_space = self._environments[0].action_space
        self._first_action = int(getattr(self._action_space, "start", 0))

    def reset(self) -> Observations:
        numbers = range(self.count)
        seeds = [derived(self._seed, number) if self._is_fresh else None for number in numbers]
        self._is_fresh = False  # later ones go on with the random numbers that there are
        rows = [environment.reset(seed=seed)[0] for environment, seed in zip(self._environments, seeds, strict=True)]
        return viewed(self.spaces, rows)

    def step(self, actions: Actions) -> Step:
        """Continuous actions are cut to the task's limits."""
        if self.spaces.is_discrete:
            chosen = [int(action) + self._first_action for action in actions]
        else:
            # To its own limits, in its own type: those of 64 bits may lie just inside of ours, which have 32.
            space = self._action_space
            chosen = list(np.clip(actions.reshape(self.count, *space.shape), space.low, space.high).astype(space.dtype))
        rows, finals, rewards, terminated, truncated = [], [], [], [], []
        for environment, action in zip(self._environments, chosen, strict=True):
            row, reward, failed, cut, _ = environment.step(action)
            failed, cut = self._one("terminated", failed), self._one("truncated", cut)
            finals.append(np.array(row) if failed or cut else row)  # a reset may write into the same array
            rewards.append(self._one("reward", reward))
            terminated.append(failed)
            truncated.append(cut and not failed)
            rows.append(environment.reset()[0] if failed or cut else row)
        has_ended = any(terminated) or any(truncated)
        observations = viewed(self.spaces, rows)
        return Step(
            observations,
            np.asarray(rewards, dtype=np.float32),
            np.asarray(terminated, dtype=np.bool_),
            np.asarray(truncated, dtype=np.bool_),
            viewed(self.spaces, finals) if has_ended else observations,
        )

    def _one(self, name: str, value: Any) -> Any:
        """As a plain number. An array of one counts as that, for tasks that are written in numpy often give one.

        Raises:
            ValueError: it is not one number.
        """
        if isinstance(value, bool | int | float):  # asked of each step
            return value
        found = np.asarray(value)
        if found.size != 1:
            raise ValueError(f"step() of {self._task.env_id} gave {name} of shape {found.shape}; it is one number")
        return found.item()

    def report(self) -> dict[str, Any]:
        return {"task": self._task.env_id, "environments": self.count}

    def close(self) -> None:
        for environment in self._environments:
            environment.close()
