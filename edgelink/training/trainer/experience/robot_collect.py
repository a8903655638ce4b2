"""How a rollout worker has experience from a robot: it hands over weights and takes what the robot did by them.

The robot acts by itself, in its control process; so nothing here is in time with it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from edgelink.training.trainer.learning.evaluation import Played
from edgelink.training.trainer.learning.policy import Weights
from edgelink.training.trainer.robot.attempts import BROKEN_OFF, COMPLETE, Attempt

_PATIENCE_S = 0.1  # so long, at most, new weights wait for steps that are being taken


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
        while True:
            self._hand_over()
            parts: dict[str, Any] | None = self._ask("take", steps, _PATIENCE_S, self._least_version())
            if parts is not None:
                return parts

    def evaluate(self, episodes: int) -> Played:
        """About ``episodes`` episodes by the policy at hand; each rig plays the same number to the end.

        Only those count that were played from a reset to their end by this policy or a newer one.
        """
        version, rigs = self._policy()[0], self._ask("rigs")
        each = -(-episodes // rigs)
        finished: list[list[float]] = [[] for _ in range(rigs)]
        broken_off = 0
        while any(len(returns) < each for returns in finished):
            self._hand_over()
            attempts: list[Attempt] = self._ask("attempts", _PATIENCE_S)
            for attempt in attempts:
                if attempt.version >= version and attempt.how == COMPLETE:
                    finished[attempt.rig].append(attempt.value)
                elif attempt.version >= version and attempt.how == BROKEN_OFF:
                    broken_off += 1
        return Played([value for returns in finished for value in returns[:each]], version, broken_off)

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
