"""The interface behind which a robot stands. Bring your own by ``--robot-driver package.module:factory``.

A robot ticks on its own clock and never waits for the learner: whoever commands it late finds that it has gone on,
with its last command at first and, when that has grown stale, with an action that is safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from edgelink.training.trainer.experience.fragment import Actions, Bools, Floats
from edgelink.training.trainer.learning.spaces import Spaces


@dataclass(frozen=True)
class RobotSettings:
    """What a driver's factory gets. Paths are on the node that the robot is attached to."""

    rank: int  # process rank of the env worker
    rigs: int = 8
    tick_hz: float = 100.0
    seed: int = 0
    tick_file: str | None = None  # where the robot's tick counter is to be written
    options: dict[str, str] = field(default_factory=dict)  # --robot-option NAME=VALUE


@dataclass(frozen=True)
class Observation:
    """The state of all rigs of a robot at one tick, and what has happened since the observation before.

    A rig whose attempt ended has started a new one: ``states`` is from the new attempt, ``final_states`` holds the
    last state of the old one.
    """

    tick: int
    states: Floats  # (rigs, features)
    failed: Bools  # the attempt ended because the task failed
    cut: Bools  # it ended for another reason: time is up, or the robot had to go to its safe action
    final_states: Floats


class RobotDriver(Protocol):
    """One robot, made of one or more rigs that are commanded together.

    All calls come from one thread. ``OSError`` from any of them means that the robot is gone, which ends the run.
    """

    @property
    def rigs(self) -> int:
        """How many rigs are commanded together."""

    @property
    def spaces(self) -> Spaces:
        """What one rig shows and lets do."""

    def connect(self) -> Observation:
        """Reach the robot and begin new attempts; blocks until it answers."""

    def observe(self) -> Observation:
        """Wait for the next control instant and give what the robot's sensors say.

        Never returns an observation twice; if control instants were missed, gives the latest.
        """

    def command(self, actions: Actions) -> None:
        """Hand over one action a rig; takes effect at the robot's next tick. Does not block."""

    def report(self) -> dict[str, Any]:
        """Figures for the run's report, at least ``ticks``, ``max_tick_gap_s`` and ``tick_hz``."""

    def close(self) -> None:
        """Leave the robot in its safe action and let go of it. May be called twice."""
