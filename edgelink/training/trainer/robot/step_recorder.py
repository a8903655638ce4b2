"""Experience on its way into the ring: one row for each step of the policy."""

from __future__ import annotations

from typing import Any

from edgelink.training.trainer.experience.fragment import Actions, Floats, Observations
from edgelink.training.trainer.robot.interface import Sensed
from edgelink.training.trainer.robot.shared import SharedBlock


class StepRecorder:
    """Collects one step and writes it when it is complete; overwrites the oldest row when the ring is full."""

    def __init__(self, block: SharedBlock) -> None:
        self._words = block.words
        ring = block.ring
        self._capacity = len(ring)
        self._fields: dict[str, Any] = {name: ring[name] for name in ring.dtype.names or ()}
        self._begun: tuple[int, int, Observations, Actions, Floats] | None = None
        self._rewards: Floats | None = None
        self._follows = False
        self.executed: Actions | None = None

    def begin(self, at_ns: int, version: int, observations: Observations, actions: Actions, log_probs: Floats) -> None:
        # Copies: a robot may give the same arrays again with other numbers in them.
        self._begun = at_ns, version, observations.copy(), actions.copy(), log_probs.copy()
        self._rewards = None

    def reward(self, sensed: Sensed) -> None:
        """Of a control period that belongs to the step."""
        self._rewards = sensed.rewards.copy() if self._rewards is None else self._rewards + sensed.rewards

    def finish(self, sensed: Sensed) -> None:
        """The step led to what is sensed now."""
        if self._begun is None:
            return
        fields, row = self._fields, self._words.rows
        index = row % self._capacity
        at_ns, version, observations, actions, log_probs = self._begun
        fields["number"][index] = 0
        fields["at_ns"][index], fields["version"][index] = at_ns, version
        fields["follows"][index] = self._follows
        fields["observations"][index], fields["next_observations"][index] = observations, sensed.observations
        fields["actions"][index], fields["executed"][index] = actions, self.executed
        fields["log_probs"][index], fields["rewards"][index] = log_probs, self._rewards
        fields["terminated"][index] = sensed.terminated
        fields["truncated"][index] = sensed.truncated & ~sensed.terminated
        fields["number"][index] = row + 1
        self._words.rows = row + 1
        self._begun, self._follows = None, True

    def break_off(self) -> None:
        """The step will not be completed; the next one does not follow from what is recorded."""
        self._begun, self._follows = None, False
