"""Compares what a driver's programs really ask for with what the cluster has, once Python has started them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from edgelink.cli.layout import say
from edgelink.errors import EdgelinkError
from edgelink.launch.command_report import StartedProgram, command_reports
from edgelink.training.driver import DriverControl
from edgelink.training.launch_check import check_started
from edgelink.training.resources import Demand


class StartedPrograms:
    """The programs that one driver starts.

    Args:
        environment: the driver's.
        nodes: as the head granted them.
        compared: what was compared before the start.
        control: ends the driver when one of its programs is refused, also a shell that would go on without it.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        nodes: Sequence[Mapping[str, Any]],
        compared: Sequence[Demand],
        control: DriverControl,
    ) -> None:
        self.refusal: EdgelinkError | None = None
        self._environment = environment
        self._nodes = nodes
        self._compared = compared
        self._control = control
        self._one_at_a_time = threading.Lock()

    def heard_at(self, path: Path) -> AbstractContextManager[dict[str, str]]:
        """Hear them at this socket; what is entered is what their environment needs for that."""
        return command_reports(path, self._may_go_on)

    def _may_go_on(self, started: StartedProgram) -> bool:
        with self._one_at_a_time:
            try:
                check_started(
                    started.words,
                    started.package,
                    started.python,
                    self._environment,
                    self._nodes,
                    say,
                    compared=self._compared,
                )
            except EdgelinkError as error:
                self.refusal = error
                self._control.end()
                return False
        return True
