"""The env worker: a Ray actor that owns a simulator or a robot, next to the rollout worker that acts in it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from edgelink.training.trainer.accelerators import Accelerators
from edgelink.training.trainer.experience.fragment import Actions, Observations, Step
from edgelink.training.trainer.experience.owner_thread import OwnerThread
from edgelink.training.trainer.experience.simulator import Simulator, Task
from edgelink.training.trainer.experience.stepping import StepServer
from edgelink.training.trainer.learning.evaluation import evaluation_seed
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.needs import check_modules
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.whereabouts import Located, Whereabouts

SIMULATOR, ROBOT = "sim", "robot"
TRAINING, EVALUATION = "training", "evaluation"


class Environment(Protocol):
    """Several environments that are stepped together."""

    count: int
    spaces: Spaces

    def reset(self) -> Observations:
        """Begin new episodes everywhere."""

    def step(self, actions: Actions) -> Step:
        """One action each, as the policy drew it: the environment keeps to its own limits."""

    def report(self) -> dict[str, Any]:
        """Figures for the run's report."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True)
class Introduced:
    """What an env worker says of itself when it is made."""

    whereabouts: Whereabouts
    spaces: Spaces


class EnvWorker(Located):
    """Owns its environment. It is stepped by the rollout worker next to it, over a socket; the rest is asked by Ray.

    One thread makes the environment and is in it ever after: an OpenGL context, for one, belongs to its thread.
    """

    def __init__(
        self,
        kind: str,
        count: int,
        robot: ControlSettings,
        echo: tuple[str, str],
        seed: int,
        task: Task | None = None,
        accelerators: Accelerators | None = None,
    ) -> None:
        """``echo``: address and token of the driver's echo server, by which a robot knows that it is there."""
        self.kind = kind
        self._count = count
        self._robot = robot
        self._echo = echo
        self._seed = seed
        self._task = task
        self._accelerators = accelerators or Accelerators()
        self._environment = dict(os.environ)  # the node's, as nobody else is in this process
        self._opened: Environment | RobotEnvironment | None = None
        self._apart: Environment | None = None  # while a policy is evaluated
        self._server: StepServer | None = None
        self._owner = OwnerThread("environment")

    def whereabouts(self) -> Whereabouts:
        """As first question to a worker, also the moment at which its environment is made.

        Not in the constructor: Ray prints what goes wrong there on the driver's output, by the page.
        """
        opened = self._owner.call(self._open)
        return replace(super().whereabouts(), notice=getattr(opened, "notice", ""))

    def spaces(self) -> Spaces:
        """What its environment shows and lets do."""
        return self._owner.call(self._open).spaces

    def introduced(self) -> Introduced:
        """Where it is, and what its task is like."""
        return Introduced(self.whereabouts(), self.spaces())

    def count(self) -> int:
        """Environments, or rigs of the robot, that each step is of."""
        opened = self._owner.call(self._open)
        return opened.rigs if isinstance(opened, RobotEnvironment) else opened.count

    def serve(self) -> str:
        """Where the one rollout worker that steps this environment finds it."""
        if self._server is None:
            self._server = StepServer(self._handle)
        return self._server.address

    def report(self) -> dict[str, Any]:
        return {"kind": self.kind, **self._owner.call(lambda: self._open().report())}

    def hindrance(self) -> Hindrance:
        """What keeps a robot from going on, if anything that lasts does."""
        return self._owner.call(self._hindrance)

    def _hindrance(self) -> Hindrance:
        return self._opened.hindrance() if isinstance(self._opened, RobotEnvironment) else Hindrance()

    def close(self) -> None:
        self._owner.call(self._close)

    def _close(self) -> None:
        for environment in (self._apart, self._opened):
            if environment is not None:
                environment.close()

    def _handle(self, method: str, *arguments: Any) -> Any:
        """A request of the rollout worker's."""
        return self._owner.call(lambda: self._requests()[method](*arguments))

    def _requests(self) -> dict[str, Callable[..., Any]]:
        if self.kind == ROBOT:  # acts by itself, by the policy that it is given
            robot = self._open()
            assert isinstance(robot, RobotEnvironment)
            return {
                "is_robot": lambda: True,
                "rigs": lambda: robot.rigs,
                "beat": robot.beat,
                "load_policy": robot.load_policy,
                "confirm_policy": robot.confirm_policy,
                "take": robot.take,
                "attempts": robot.attempts,
            }
        return {
            "is_robot": lambda: False,
            "step": lambda actions: self._stepped().step(actions),
            "reset": self._reset,
            "evaluated": self._evaluated,
        }

    def _reset(self, purpose: str = TRAINING) -> tuple[int, Observations]:
        """The simulators, or others apart with seeds of their own: how many, and what they look like."""
        self._evaluated()
        if purpose == EVALUATION:
            self._apart = Simulator(self._count, evaluation_seed(self._seed), self._task)
        environment = self._stepped()
        return environment.count, environment.reset()

    def _evaluated(self) -> None:
        """Those apart are let go of; the others are as they were."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None

    def _stepped(self) -> Environment:
        environment = self._apart or self._open()
        assert not isinstance(environment, RobotEnvironment)
        return environment

    def _open(self) -> Environment | RobotEnvironment:
        if self._opened is None:
            # Before anything is imported that renders or computes by them.
            os.environ.update(self._accelerators.variables(self._environment))
            # The rollout worker beside needs Zstandard, too: known before a robot is started, or anything is played.
            check_modules(*([] if self.kind == ROBOT else ["gymnasium"]), "zstandard")
            if self.kind == ROBOT:
                named = replace(self._robot, name=f"{socket.gethostname()}-{self._robot.name}")
                self._opened = RobotEnvironment(named, self._echo)
            else:
                self._opened = Simulator(self._count, self._seed, self._task)
        return self._opened
