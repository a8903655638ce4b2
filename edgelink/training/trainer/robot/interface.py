"""The interface behind which a robot stands. Bring your own: a subclass of :class:`Robot`, and a factory that is given
:class:`RobotSettings`, named as ``package.module:factory`` or by an entry point of the group ``edgelink.robots``.

A robot lives in a control process of its own (see ``control.py``), which asks and commands it at a fixed rate by the
newest policy at hand. That process never waits for a network, for Ray or for a disk; a robot's methods must not either.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Bools, Floats, Observations
from edgelink.training.trainer.learning.spaces import Spaces

ENTRY_POINTS = "edgelink.robots"
MIN_RATE_HZ, MAX_RATE_HZ = 50.0, 500.0
AUTOMATIC, MANUAL = "automatic", "manual"  # who lets a robot go on after a hold or a stop


@dataclass(frozen=True)
class RobotSettings:
    """What a robot's factory gets. It is called in the control process, on the node that the robot is attached to."""

    rank: int = 0  # process rank of the env worker
    rigs: int = 1  # how many the robot is to have, where that is a choice
    rate_hz: float | None = None  # of the control loop; None: the robot's own
    seed: int = 0
    options: dict[str, str] = field(default_factory=dict)  # robot.options.NAME=VALUE


@dataclass(frozen=True)
class Limits:
    """What an action may be, whatever the policy says; enforced in the control process, each time counted.

    ``low`` and ``high`` in the units of the action; empty: those of the robot's ``spaces``. ``max_change_per_s``: how
    fast each dimension may change, units per second; empty: at any speed. For discrete actions all are empty.
    """

    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    max_change_per_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        # An array would do as well, but for one of a single zero: that counts as empty, which is no limit.
        for name in ("low", "high", "max_change_per_s"):
            object.__setattr__(self, name, tuple(float(limit) for limit in getattr(self, name)))


@dataclass(frozen=True)
class Sensed:
    """What a robot's sensors say at one control instant; a row a rig.

    ``terminated`` and ``truncated`` stay true until ``reset`` is called for that rig.
    """

    observations: Observations  # (rigs, *spaces.observation_shape)
    rewards: Floats  # (rigs,), of the period that ends now
    terminated: Bools  # (rigs,): the attempt has failed, or has reached its goal
    truncated: Bools  # (rigs,): it ended for another reason, such as its time; what would have followed has a value
    is_ready: bool = True  # false: on its way to the start of an attempt, and not to be commanded


class Robot(ABC):
    """One robot, made of one or more rigs that are commanded together; most have one.

    All methods but ``stop`` are called by one thread, at ``rate_hz``; together they must fit well into one period. An
    exception from any of them leads to ``stop`` and to a person. ``stop`` may be called at any time, also by another
    thread while ``observe`` or ``act`` hangs.
    """

    spaces: Spaces
    # For datasets: a name for each number, for pixels the camera's alone. Empty: observation_0 …, camera, action_0 ….
    observation_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    limits: Limits = Limits()
    rigs: int = 1
    rate_hz: float = 100.0  # control instants per second, 50 to 500
    action_repeat: int = 1  # control periods for which an action of the policy is in force
    resumes: str = MANUAL  # who lets it go on, unless the settings say; AUTOMATIC is for what cannot hurt anybody

    @classmethod
    def device(cls, settings: RobotSettings) -> str:
        """What of this robot there is only one of, such as the address of its controller; empty: it does not matter.

        While one control process of this machine commands it, no other does, whatever its user and its name; those of a
        container that has not the machine's network are not seen. Asked before the robot is made. A factory that is a
        function may have it as an attribute.
        """
        del settings
        return ""

    @abstractmethod
    def reset(self, rigs: Bools) -> None:
        """Begin to bring the chosen rigs to the start of a new attempt; returns at once.

        Also leaves the others at rest: nothing is commanded until all are ready, and a speed may not stay in force.
        """

    @abstractmethod
    def observe(self) -> Sensed:
        """The newest that the sensors say; does not wait for anything new."""

    @abstractmethod
    def act(self, actions: Actions) -> None:
        """Command one action a rig, within the limits; in force until the next call. Returns at once."""

    @abstractmethod
    def hold(self) -> None:
        """Keep still where it is, under power. Called at every control instant for as long as the hold lasts."""

    @abstractmethod
    def stop(self) -> None:
        """Come to the safest rest there is, such as brakes on. May be called twice, and by another thread."""

    def workspace(self, sensed: Sensed, actions: Actions) -> Actions:
        """``actions`` changed such that no rig leaves its workspace; changes are counted. By default none."""
        del sensed
        return actions

    def rest(self, sensed: Sensed) -> Actions:
        """The actions that keep it where it is, from which the rate of change is counted after a hold.

        Zeros, which suits speeds and torques; a robot that is commanded by positions gives its present ones.
        """
        return np.zeros((len(sensed.rewards), len(self.spaces.action_low)), np.float32)

    def close(self) -> None:
        """Let go of the hardware; called once, after ``stop``. After a minute its process is killed."""
        return

    def report(self) -> dict[str, Any]:
        """Figures of its own for the run's report, 64 KiB at most as JSON; asked for at the end, after ``stop``.

        Numpy's numbers and arrays become plain ones, what is not finite null. A name that EdgeLink's figures have is
        EdgeLink's.
        """
        return {}


RobotFactory = Callable[[RobotSettings], Robot]


def load_robot(name: str) -> RobotFactory:
    """The factory of that name: ``package.module:attribute``, or an entry point of the group ``edgelink.robots``.

    Raises:
        ValueError: there is no such thing on this node.
    """
    if ":" not in name:
        found = importlib.metadata.entry_points(group=ENTRY_POINTS)
        if name in found.names:
            name = found[name].value
        elif name in BUILT_IN:
            name = BUILT_IN[name]
        else:
            known = ", ".join(sorted({*found.names, *BUILT_IN}))
            raise ValueError(f"no robot is called {name!r} here; known are {known}, or name package.module:factory")
    module_name, _, attribute = name.partition(":")
    try:
        factory: RobotFactory = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"robot {name!r} cannot be loaded here: {error}") from error
    return factory


BUILT_IN = {
    "cart-pole": "edgelink.training.trainer.robot.cart_pole:CartPoleCell",
    "arm": "edgelink.training.trainer.robot.arm.robot:ArmRobot",
}
