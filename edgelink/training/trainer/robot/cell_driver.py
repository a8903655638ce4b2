"""The driver of the built-in robot cell: starts the cell's process and talks to it over a socket pair."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.interface import Observation, RobotSettings

_ANSWER_TIMEOUT_S = 20.0  # a loaded machine may take seconds to start a process
_STOP_TIMEOUT_S = 3.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[4]


class CellDriver:
    """A :class:`~edgelink.training.trainer.robot.RobotDriver`.

    The cell sees the end of the socket when this process ends, even by SIGKILL, and ends too.
    """

    def __init__(self, settings: RobotSettings) -> None:
        self._settings = settings
        self._cell: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None
        self._last_report: dict[str, Any] = {}

    @property
    def rigs(self) -> int:
        return self._settings.rigs

    @property
    def spaces(self) -> Spaces:
        """Cart position and speed, pole angle and speed; push left, push right."""
        return Spaces((4,), "float32", action_count=2)

    @property
    def pid(self) -> int | None:
        """Process id of the cell."""
        return self._cell.pid if self._cell else None

    def connect(self) -> Observation:
        settings = self._settings
        command = [sys.executable, "-m", "edgelink.training.trainer.robot.cart_pole_cell"]
        command += [f"--rigs={settings.rigs}", f"--tick-hz={settings.tick_hz}", f"--seed={settings.seed}"]
        if settings.tick_file:
            _check_writable(Path(settings.tick_file))
            command.append(f"--tick-file={settings.tick_file}")
        path = os.pathsep.join([str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # A session of its own: a Ctrl+C meant for the training does not stop the robot's clock in mid-motion.
            self._cell = subprocess.Popen(command, stdin=theirs.fileno(), env=environment, start_new_session=True)
        self._link = ours
        return _observation(self._receive())

    def observe(self) -> Observation:
        return _observation(self._receive())

    def command(self, actions: Actions) -> None:
        self._send({"actions": [int(action) for action in actions]})

    def report(self) -> dict[str, Any]:
        """The cell's own figures; the last known ones once it is closed."""
        if self._link is not None:
            self._send({"report": True})
            deadline_s = time.monotonic() + _ANSWER_TIMEOUT_S
            while time.monotonic() < deadline_s:  # an observation may still be under way before it
                message = self._receive()
                if "report" in message:
                    self._last_report = {**message["report"], "pid": self.pid}
                    break
        return self._last_report

    def close(self) -> None:
        link, cell, self._link, self._cell = self._link, self._cell, None, None
        if link is not None:
            link.close()
        if cell is None:
            return
        try:
            cell.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            cell.kill()
            cell.wait()

    def _send(self, message: dict[str, Any]) -> None:
        if self._link is None:
            raise ConnectionError("the robot cell is not connected")
        try:
            self._link.send(json.dumps(message).encode())
        except ConnectionError as error:
            raise self._gone() from error

    def _receive(self) -> dict[str, Any]:
        if self._link is None:
            raise ConnectionError("the robot cell is not connected")
        readable, _, _ = select.select([self._link], [], [], _ANSWER_TIMEOUT_S)
        if not readable:
            raise TimeoutError(f"the robot cell has not answered for {_ANSWER_TIMEOUT_S:.0f} s")
        packet = b""
        with contextlib.suppress(ConnectionError):
            packet = self._link.recv(1 << 20)
        if not packet:
            raise self._gone()
        message: dict[str, Any] = json.loads(packet)
        return message

    def _gone(self) -> ConnectionError:
        status = self._cell.wait(_STOP_TIMEOUT_S) if self._cell else None
        return ConnectionError(f"the robot cell has ended with status {status}")


def _check_writable(path: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(
            f"the robot's tick file {path} cannot be written on {socket.gethostname()}: {error.strerror}"
        ) from error


def _observation(message: dict[str, Any]) -> Observation:
    return Observation(
        tick=message["tick"],
        states=np.asarray(message["states"], dtype=np.float32),
        failed=np.asarray(message["failed"], dtype=np.bool_),
        cut=np.asarray(message["cut"], dtype=np.bool_),
        final_states=np.asarray(message["final_states"], dtype=np.float32),
    )
