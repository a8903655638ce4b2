"""The env worker: a Ray actor that owns a simulator or a robot, next to the rollout worker that acts in it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Floats, Observations, Step
from edgelink.training.trainer.experience.simulator import Simulator, Task
from edgelink.training.trainer.experience.stepping import StepServer
from edgelink.training.trainer.learning.evaluation import evaluation_seed
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.interface import RobotDriver, RobotSettings
from edgelink.training.trainer.whereabouts import Located, Whereabouts

SIMULATOR, ROBOT = "sim", "robot"
TRAINING, EVALUATION = "training", "evaluation"
BUILT_IN_DRIVER = "edgelink.training.trainer.robot.cell_driver:CellDriver"


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


class RobotEnvironment:
    """A robot as an environment: one step is one of its control periods, in real time."""

    def __init__(self, driver: RobotDriver) -> None:
        self._driver = driver
        self.count = driver.rigs
        self.spaces = driver.spaces
        self._states: Floats | None = None

    def reset(self) -> Floats:
        """Attempts cannot be taken back on a robot: the first call connects, later ones go on from what was seen."""
        if self._states is None:
            self._states = self._driver.connect().states
        return self._states

    def step(self, actions: Actions) -> Step:
        self._driver.command(actions)
        seen = self._driver.observe()
        self._states = seen.states
        return Step(
            seen.states,
            np.ones(self.count, dtype=np.float32),
            seen.failed,
            seen.cut & ~seen.failed,
            np.where((seen.failed | seen.cut)[:, None], seen.final_states, seen.states),
        )

    def report(self) -> dict[str, Any]:
        return self._driver.report()

    def close(self) -> None:
        self._driver.close()


class EnvWorker(Located):
    """Owns its environment. It is stepped by the rollout worker next to it, over a socket; the rest is asked by Ray."""

    def __init__(
        self, kind: str, count: int, robot: RobotSettings, driver: str, seed: int, task: Task | None = None
    ) -> None:
        self.kind = kind
        self._count = count
        self._robot = robot
        self._driver = driver
        self._seed = seed
        self._task = task
        self._opened: Environment | None = None
        self._apart: Environment | None = None  # while a policy is evaluated
        self._server: StepServer | None = None
        self._lock = threading.Lock()  # one at a time is in the environment

    def whereabouts(self) -> Whereabouts:
        """As first question to a worker, also the moment at which its environment is made.

        Not in the constructor: Ray prints what goes wrong there on the driver's output, by the page.
        """
        with self._lock:
            self._open()
        return super().whereabouts()

    def spaces(self) -> Spaces:
        """What its environment shows and lets do."""
        with self._lock:
            return self._open().spaces

    def serve(self) -> str:
        """Where the one rollout worker that steps this environment finds it."""
        if self._server is None:
            self._server = StepServer(self._handle)
        return self._server.address

    def report(self) -> dict[str, Any]:
        with self._lock:
            return {"kind": self.kind, **self._open().report()}

    def close(self) -> None:
        with self._lock:
            if self._apart is not None:
                self._apart.close()
            if self._opened is not None:
                self._opened.close()

    def _handle(self, method: str, *arguments: Any) -> Any:
        """A request of the rollout worker's."""
        with self._lock:
            if method == "step":
                return (self._apart or self._open()).step(*arguments)
            assert method == "reset", method
            environment = self._chosen(*arguments)
            return environment.count, environment.reset()

    def _chosen(self, purpose: str = TRAINING) -> Environment:
        """The environment, or simulators apart with seeds of their own; a robot is the one that there is."""
        if self._apart is not None:
            self._apart.close()
            self._apart = None
        environment = self._open()
        if purpose == EVALUATION and self.kind != ROBOT:
            self._apart = environment = Simulator(self._count, evaluation_seed(self._seed), self._task)
        return environment

    def _open(self) -> Environment:
        if self._opened is None:
            if self.kind == ROBOT:
                self._opened = RobotEnvironment(load_driver(self._driver)(self._robot))
            else:
                self._opened = Simulator(self._count, self._seed, self._task)
        return self._opened


def load_driver(name: str) -> Callable[[RobotSettings], RobotDriver]:
    """The factory ``package.module:attribute``.

    Raises:
        ValueError: there is no such thing on this node.
    """
    module_name, _, attribute = name.partition(":")
    try:
        factory: Callable[[RobotSettings], RobotDriver] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"robot driver {name!r} cannot be loaded here: {error}") from error
    return factory
