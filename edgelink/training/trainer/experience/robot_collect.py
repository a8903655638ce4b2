"""How a rollout worker has experience from a robot: it hands over weights and takes what the robot did by them.

The robot acts by itself, in its control process; so nothing here is in time with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from edgelink.training.trainer.learning.policy import Weights

_PATIENCE_S = 0.1  # so long, at most, new weights wait for steps that are being taken
_EVALUATION_STEPS = 10


class RobotCollector:
    """One robot, asked through its env worker.

    Args:
        ask: calls a method of the env worker.
        policy: the newest version at hand, and its weights.
        least_version: steps by weights before this version are of no use at present.
    """

    def __init__(
        self,
        ask: Callable[..., Any],
        policy: Callable[[], tuple[int, Weights]],
        least_version: Callable[[], int] = lambda: 0,
    ) -> None:
        self._ask = ask
        self._policy = policy
        self._least_version = least_version
        self._handed = -1
        self._lock = threading.Lock()

    def collect(self, steps: int) -> dict[str, Any]:
        """The parts of a fragment of ``steps`` steps; waits while the robot holds."""
        least_version = self._least_version()
        while True:
            self._hand_over()
            parts: dict[str, Any] | None = self._ask("take", steps, _PATIENCE_S, least_version)
            if parts is not None:
                return parts

    def evaluate(self, episodes: int) -> list[float]:
        """Returns of about ``episodes`` episodes by the policy at hand; each rig plays the same number to the end."""
        version = self._policy()[0]
        running: Any = None
        finished: list[list[float]] = []
        while not finished or any(len(returns) < -(-episodes // len(finished)) for returns in finished):
            parts = self.collect(_EVALUATION_STEPS)
            if parts["weights_version"] < version:
                continue
            if running is None:
                running = np.zeros(parts["rewards"].shape[1])
                finished = [[] for _ in running]
            for rewards, ended in zip(parts["rewards"], parts["terminated"] | parts["truncated"], strict=True):
                running += rewards
                for rig in np.flatnonzero(ended):
                    finished[rig].append(float(running[rig]))
                running[ended] = 0.0
        return [value for returns in finished for value in returns[: -(-episodes // len(finished))]]

    def hand_over_each(self, wait_for: Callable[[int], Any]) -> None:
        """Hand over each version that comes, also while nobody collects; a thread's work. Ends with the robot.

        Args:
            wait_for: returns when there are weights of this version or a newer one.
        """
        with contextlib.suppress(Exception):  # whoever collects meets it, too
            while True:
                wait_for(self._handed + 1)
                self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            version, weights = self._policy()
            if version > self._handed:
                self._ask("load_policy", version, weights)
                self._handed = version
