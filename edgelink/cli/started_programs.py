"""Compares what a driver's programs really ask for with what the cluster has, once Python has started them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgelink.cli.compose import read_cluster
from edgelink.cli.layout import say
from edgelink.cli.patience import call
from edgelink.errors import EdgelinkError, PlacementError
from edgelink.frameworks.hydra_words import hydra_config
from edgelink.launch.command_report import StartedProgram, command_reports
from edgelink.placement import Node, plan
from edgelink.process.procfs import directory_of, environment_of
from edgelink.training.driver import DriverControl
from edgelink.training.launch_check import RaysNodes, check_started
from edgelink.training.resources import Demand


@dataclass
class StartedPrograms:
    """The programs that one driver starts.

    Args:
        environment: the driver's.
        nodes: what each node has in Ray.
        compared: what was compared before the start.
        section: the cluster section that was resolved before the start. None: there was none.
        node_socket: the head's daemon is asked there for the nodes that are alive.
        control: ends the driver when one of its programs is refused, also a shell that would go on without it.
    """

    environment: Mapping[str, str]
    nodes: RaysNodes
    compared: Sequence[Demand]
    section: Mapping[str, Any] | None
    node_socket: Path
    control: DriverControl
    refusal: EdgelinkError | None = None
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def heard_at(self, path: Path) -> AbstractContextManager[dict[str, str]]:
        """Hear them at this socket; what is entered is what their environment needs for that."""
        return command_reports(path, self._may_go_on)

    def _may_go_on(self, started: StartedProgram) -> bool:
        with self._one_at_a_time:
            try:
                if started.package == "rlinf":
                    self._check_rlinf(started)
                else:
                    check_started(
                        started.package.partition(".")[0],
                        started.words,
                        started.python,
                        self.environment,
                        self.nodes,
                        say,
                        compared=self.compared,
                    )
            except EdgelinkError as error:
                self.refusal = error
                self.control.end()
                return False
        return True

    def _check_rlinf(self, started: StartedProgram) -> None:
        """Resolve the configuration that a program of RLinf really has; the script may have chosen another.

        Raises:
            PlacementError: it cannot be placed on the nodes that are alive.
        """
        config = hydra_config(started.words, directory_of(started.pid))
        if config is None:
            return
        try:
            read = read_cluster(config.file, config.overrides, Path(started.python), environment_of(started.pid))
        except PlacementError as error:
            say(f"warning: not compared with what the cluster has: {error}")
            return
        if read.section == self.section:
            return
        alive = call(self.node_socket, "GET", "/placement/nodes")
        with read.located():
            plan(read.section, [Node(**node) for node in alive["nodes"]], rules=read.rules)
        if self.section is not None:
            say(f"warning: the program runs {config.file} with another cluster section than that of --cluster")
