"""Whence a robot's actions come: from the newest policy, or from the commands of an episode that is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Floats, Observations
from edgelink.training.trainer.learning.policy import act
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.interface import Robot
from edgelink.training.trainer.robot.shared import WeightsReader, Words

_SAME_RATE_HZ = 0.5  # datasets have their frames per second as a whole number


class Actor(Protocol):
    """Asked by the control loop, in its own process."""

    @property
    def version(self) -> int:
        """Of what it acts by."""

    @property
    def is_there(self) -> bool:
        """Whether there is anything to act by."""

    def poll(self) -> bool:
        """Once each control instant; true: there is something newer to act by, from which its age counts."""

    def decide(self, observations: Observations) -> tuple[Actions, Floats] | None:
        """The action of the next step, of each rig, with its log probability; None: nothing is left to do."""

    def at(self, instant: int, actions: Actions) -> Actions:
        """What of ``actions`` is to be commanded at one control instant of the step."""

    def attempt_ended(self) -> bool:
        """The robot says so; false: no other one is to begin."""

    def broken_off(self) -> None:
        """A hold, a stop, or the robot's way to its start: what comes next does not follow from what was."""


class PolicyActor:
    """By the newest whole weights in shared memory."""

    def __init__(self, weights: WeightsReader, spaces: Spaces, seed: int) -> None:
        self._weights = weights
        self._spaces = spaces
        self._generator = np.random.default_rng([seed, 1])  # not the stream of a robot that is simulated

    @property
    def version(self) -> int:
        return self._weights.version

    @property
    def is_there(self) -> bool:
        return self._weights.weights is not None

    def poll(self) -> bool:
        return self._weights.poll()

    def decide(self, observations: Observations) -> tuple[Actions, Floats] | None:
        assert self._weights.weights is not None, "no policy is a cause not to run"
        return act(self._spaces, self._weights.weights, observations, self._generator)

    def at(self, instant: int, actions: Actions) -> Actions:
        del instant
        return actions

    def attempt_ended(self) -> bool:
        return True

    def broken_off(self) -> None:
        return


class ReplayActor:
    """By recorded commands of one rig, once, from when the worker lets it begin; what is broken off is over.

    Args:
        commands: (steps, action_repeat, …).
    """

    version = 0

    def __init__(self, words: Words, commands: Actions) -> None:
        self._words = words
        self._commands = commands
        self._begun = 0  # steps
        self._is_over = False

    @property
    def is_there(self) -> bool:
        return bool(self._words.may_begin) and not self._is_over

    def poll(self) -> bool:
        return self.is_there  # recorded commands do not grow old

    def decide(self, observations: Observations) -> tuple[Actions, Floats] | None:
        if self._begun == len(self._commands):
            self._end()
            return None
        self._begun += 1
        return self.at(0, observations), np.zeros(1, np.float32)

    def at(self, instant: int, actions: Actions) -> Actions:
        del actions
        command: Actions = self._commands[self._begun - 1, instant][None]
        return command

    def attempt_ended(self) -> bool:
        self._end()
        return False

    def broken_off(self) -> None:
        if self._begun:
            self._end()

    def _end(self) -> None:
        self._is_over = True
        self._words.replay_is_over = 1


def read_commands(path: Path, robot: Robot) -> Any:
    """What :class:`~edgelink.training.trainer.robot.replay.Script` has written, as this robot takes it.

    Raises:
        ValueError: it is not for a robot like this one.
    """
    with np.load(path, allow_pickle=False) as script:
        commands, steps_per_s = script["commands"], float(script["steps_per_s"])
    spaces, own_steps_per_s = robot.spaces, robot.rate_hz / robot.action_repeat
    if robot.rigs != 1:
        raise ValueError(f"an episode is one rig's, and this robot has {robot.rigs}")
    if abs(steps_per_s - own_steps_per_s) > _SAME_RATE_HZ:
        raise ValueError(
            f"the episode has {steps_per_s:g} steps a second, this robot makes {own_steps_per_s:g} "
            f"({robot.rate_hz:g} control instants, {robot.action_repeat} a step); see robot.rate_hz"
        )
    if commands.shape[1] == 1:
        commands = np.repeat(commands, robot.action_repeat, axis=1)
    one = () if spaces.is_discrete else (len(spaces.action_low),)
    wanted = (len(commands), robot.action_repeat, *one)
    if commands.shape != wanted:
        raise ValueError(f"the episode's commands are of shape {commands.shape[1:]}, this robot's of {wanted[1:]}")
    if not len(commands) or not np.isfinite(commands).all():
        raise ValueError("the episode has no steps, or commands that are no numbers")
    if spaces.action_count is None:
        return commands.astype(np.float32)
    if commands.min() < 0 or commands.max() >= spaces.action_count:
        raise ValueError(f"the episode has actions beyond 0 to {spaces.action_count - 1}, which are this robot's")
    return commands.astype(np.int64)
