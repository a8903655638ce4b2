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

_BEAT_S = 0.2  # how often the robot is shown that there is somebody
_PATIENCE_S = 0.05  # so long, at most, new weights wait for steps that are being taken


class RobotCollector:
    """One robot, asked through its env worker.

    Args:
        ask: calls a method of the env worker.
        policy: the newest version at hand, and its weights.
        newest: the learner's version, as far as is known here.
        max_policy_lag: versions that a step may be behind that.
    """

    def __init__(
        self,
        ask: Callable[..., Any],
        policy: Callable[[], tuple[int, Weights]],
        newest: Callable[[], int],
        max_policy_lag: int,
    ) -> None:
        self._ask = ask
        self._policy = policy
        self._newest = newest
        self._max_lag = max_policy_lag
        self._handed = -1
        self._lock = threading.Lock()
        self._evaluated = -1  # the version that the last evaluation was of
        self._finished: list[list[float]] = []  # of that one: what each rig played that no request has been given

    def collect(self, steps: int, asked_by: int) -> dict[str, Any]:
        """Return the parts of a fragment of ``steps`` steps. Waits while the robot holds.

        Once the learner has made an update without this robot, the fragment has the steps that there are: each further
        update makes them older, and steps that are too old are lost.

        Args:
            asked_by: the learner's version when it asked.
        """
        while True:
            self._hand_over()
            newest = self._newest()
            enough = 1 if newest > asked_by else steps
            parts: dict[str, Any] | None = self._ask("take", steps, _PATIENCE_S, newest - self._max_lag, enough)
            if parts is not None:
                return parts

    def evaluate(self, episodes: int) -> Played:
        """About ``episodes`` episodes by the policy at hand; each rig plays the same number to the end.

        Only those count that were played from a reset to their end by this policy or a newer one. Requests by one
        version are one evaluation, and the next one goes on where the last one ended: were what a rig has played beyond
        its number left out each time, short episodes would be left out more often than long ones.
        """
        version, rigs = self._policy()[0], self._ask("rigs")
        if version != self._evaluated:
            self._evaluated, self._finished = version, [[] for _ in range(rigs)]
        each = -(-episodes // rigs)
        broken_off = 0
        while any(len(returns) < each for returns in self._finished):
            self._hand_over()
            attempts: list[Attempt] = self._ask("attempts", _PATIENCE_S)
            for attempt in attempts:
                if attempt.version >= version and attempt.how == COMPLETE:
                    self._finished[attempt.rig].append(attempt.value)
                elif attempt.version >= version and attempt.how == BROKEN_OFF:
                    broken_off += 1
        played = [value for returns in self._finished for value in returns[:each]]
        self._finished = [returns[each:] for returns in self._finished]
        return Played(played, version, broken_off)

    def hand_over_each(self, wait_for: Callable[[int, float], Any]) -> None:
        """Hand over each version that comes, also while nobody collects, and show the robot that this goes on: if this
        thread, the env worker's or what is between them is stuck, the robot holds. A thread's work; ends with the
        robot.

        Args:
            wait_for: returns when there are weights of this version or a newer one, or after so many seconds.
        """
        with contextlib.suppress(Exception):  # whoever collects meets it, too
            while True:
                wait_for(self._handed + 1, _BEAT_S)
                self._hand_over()
                self._ask("beat")

    def confirm(self, version: int) -> None:
        """``version`` is the newest that there is. Says nothing of another one that the robot has."""
        with self._lock:
            if version == self._handed:
                self._ask("confirm_policy", version)

    def _hand_over(self) -> None:
        with self._lock:
            version, weights = self._policy()
            if version > self._handed:
                self._ask("load_policy", version, weights)
                self._handed = version
