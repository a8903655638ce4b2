"""Experience on its way into the ring: one row for each step of the policy."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Bools, Floats, Observations
from edgelink.training.trainer.robot.interface import Sensed
from edgelink.training.trainer.robot.shared import SharedBlock, row_checksum

_BROKEN_OFF = -1  # instead of a number of steps: of an attempt that is not whole any more


class StepRecorder:
    """Collects one step and writes it when it is complete; overwrites the oldest row when the ring is full."""

    def __init__(self, block: SharedBlock) -> None:
        self._words = block.words
        self._row_bytes, self._checksums = block.row_bytes, block.row_checksums
        ring = block.ring
        self._capacity = len(ring)
        self._fields: dict[str, Any] = {name: ring[name] for name in ring.dtype.names or ()}
        self._begun: tuple[int, int, Observations, Actions, Floats] | None = None
        self._rewards: Floats | None = None
        self._follows = False
        self._executed: Any = np.zeros_like(ring["executed"][0])
        self._steps = np.full(block.layout.rigs, _BROKEN_OFF)  # of each rig's attempt, so far

    def reset(self, rigs: Bools) -> None:
        """New attempts of these rigs begin with the next step."""
        self._steps[rigs] = 0

    def begin(self, at_ns: int, version: int, observations: Observations, actions: Actions, log_probs: Floats) -> None:
        # Copies: a robot may give the same arrays again with other numbers in them.
        self._begun = at_ns, version, observations.copy(), actions.copy(), log_probs.copy()
        self._rewards = None

    def commanded(self, instant: int, actions: Actions) -> None:
        """What went to the robot at one control instant of the step."""
        self._executed[:, instant] = actions

    def reward(self, sensed: Sensed) -> None:
        """Of a control period that belongs to the step."""
        # Of a robot that counts them in small integers, the sum may be no such integer.
        rewards = sensed.rewards.astype(np.float32)
        self._rewards = rewards if self._rewards is None else self._rewards + rewards

    def finish(self, sensed: Sensed) -> None:
        """The step led to what is sensed now."""
        if self._begun is None:
            return
        self._steps[self._steps != _BROKEN_OFF] += 1
        fields, row = self._fields, self._words.rows
        index = row % self._capacity
        at_ns, version, observations, actions, log_probs = self._begun
        fields["number"][index] = 0
        fields["at_ns"][index], fields["version"][index] = at_ns, version
        fields["follows"][index] = self._follows
        fields["step"][index] = np.maximum(self._steps, 0)
        fields["observations"][index], fields["next_observations"][index] = observations, sensed.observations
        fields["actions"][index], fields["executed"][index] = actions, self._executed
        fields["log_probs"][index], fields["rewards"][index] = log_probs, self._rewards
        fields["terminated"][index] = sensed.terminated
        fields["truncated"][index] = sensed.truncated & ~sensed.terminated
        self._checksums[index] = row_checksum(self._row_bytes[index], row + 1)
        fields["number"][index] = row + 1
        self._words.rows = row + 1
        self._begun, self._follows = None, True

    def pause(self) -> None:
        """Nothing is commanded for now, such as while a rig is on its way to its start: the next step does not follow
        from what is recorded."""
        self._begun, self._follows = None, False

    def break_off(self) -> None:
        """A hold or a stop: besides, no attempt that is under way is a whole one any more."""
        self.pause()
        self._steps[:] = _BROKEN_OFF
