"""A robot, as the env worker has it: hands weights to the control process and takes experience from it."""

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

from edgelink.training.trainer.learning.policy import Weights
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.link import LinkWatch
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout, RingReader, SharedBlock, WeightsWriter

_MESSAGE_BYTES = 1 << 20
_HELLO_TIMEOUT_S = 120.0  # more than the attendant waits, for the run before this one and then for the robot
_REPORT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 60.0  # the longest hook, and some
_LOOK_S = 0.005
_BACKLOG = 2  # stretches that may wait; older experience is of no use to anybody
_PACKAGE_ROOT = Path(__file__).resolve().parents[4]


class RobotEnvironment:
    """One robot, whose control process goes on by itself; all methods may be called by any thread.

    Args:
        echo: address and token of the driver's :class:`~edgelink.training.trainer.robot.link.EchoServer`; empty: the
            robot goes on without a driver for as long as this process lives.

    Raises:
        OSError: the robot is not there, or its code or its settings are wrong.
    """

    def __init__(self, settings: ControlSettings, echo: tuple[str, str] = ("", "")) -> None:
        if settings.tick_file:
            _check_writable(Path(settings.tick_file))
        self.name = settings.name
        self._last_report: dict[str, Any] = {}
        self._link: socket.socket | None = _start(settings)
        hello, descriptor = self._hello()
        self.spaces = Spaces.from_dict(hello["spaces"])
        self.rigs: int = hello["rigs"]
        self.pid: int = hello["pid"]
        self.steps_per_s: float = hello["rate_hz"] / hello["action_repeat"]
        self._block = SharedBlock(Layout(self.spaces, self.rigs, settings.ring_rows), descriptor)
        self._weights = WeightsWriter(self._block)
        self._reader = RingReader(self._block)
        self._stale = 0
        self._parts: list[Any] = []  # of a stretch that is not complete
        self._episodes = _Episodes(self.rigs)
        self._watch = LinkWatch(self._block.words, echo[0], echo[1], settings.deadman.link_timeout_s)

    @property
    def policy_version(self) -> int:
        """Which weights the robot acts by; 0 before the first."""
        return self._block.words.policy_version

    def load_policy(self, version: int, weights: Weights) -> None:
        """Hand over; the control process acts by them within a few control instants, in the middle of anything."""
        self._weights.publish(version, weights)

    def take(self, steps: int, patience_s: float, least_version: int = 0) -> dict[str, Any] | None:
        """The next ``steps`` steps, as the parts of a fragment that are the environment's.

        None, if they are not there within ``patience_s``: what has come is kept for the next call. A robot that holds
        gives none.

        Args:
            least_version: steps by older weights are left out at the beginning, and counted.

        Raises:
            ConnectionError: the control process has ended.
        """
        ends_s = time.monotonic() + patience_s
        self._stale += self._reader.skip_to(_BACKLOG * steps)
        while (have := sum(len(part) for part in self._parts)) < steps:
            if not have:
                self._stale += self._reader.skip_older(least_version)
            rows = self._reader.take(steps - have)
            if len(rows):
                self._parts.append(rows)
                continue
            self._check_alive()
            if time.monotonic() >= ends_s:
                return None
            time.sleep(_LOOK_S)
        rows = np.concatenate(self._parts)
        self._parts = []
        return self._episodes.stretch(rows)

    def report(self) -> dict[str, Any]:
        """All figures; the last known ones once it is closed."""
        link = self._link
        if link is not None:
            with contextlib.suppress(OSError):
                link.send(b"report")
                self._receive_report(link, _REPORT_TIMEOUT_S)
        return {**self._last_report, "dropped_steps": self._reader.dropped, "stale_steps": self._stale}

    def close(self) -> None:
        """A safe stop, its hook, and the end of the robot's processes. May be called twice."""
        link, self._link = self._link, None
        if link is None:
            return
        with link, contextlib.suppress(OSError):
            link.send(b"close")
            while self._receive_report(link, _CLOSE_TIMEOUT_S):
                pass
        self._watch.close()

    def _hello(self) -> tuple[dict[str, Any], int]:
        assert self._link is not None
        self._link.settimeout(_HELLO_TIMEOUT_S)
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._link, _MESSAGE_BYTES, 1)
        except TimeoutError as error:
            raise TimeoutError(f"robot {self.name} has not answered for {_HELLO_TIMEOUT_S:.0f} s") from error
        hello: dict[str, Any] = json.loads(packet) if packet else {"error": "its processes have ended"}
        if "error" in hello:
            raise OSError(f"robot {self.name} on {socket.gethostname()}: {hello['error']}")
        return hello, descriptors[0]

    def _receive_report(self, link: socket.socket, timeout_s: float) -> bool:
        """False: the other end is gone."""
        link.settimeout(timeout_s)
        packet = link.recv(_MESSAGE_BYTES)
        if packet:
            self._last_report = json.loads(packet)["report"]
        return bool(packet)

    def _check_alive(self) -> None:
        if self._link is None:
            raise ConnectionError(f"robot {self.name} is closed")
        readable, _, _ = select.select([self._link], [], [], 0)
        if readable:  # nothing was asked: it is the last report, or the end
            with contextlib.suppress(OSError):
                while self._receive_report(self._link, 0.0):
                    pass
            events = self._last_report.get("events") or [{}]
            raise ConnectionError(f"robot {self.name}: its control process has ended: {events[-1]}")


class _Episodes:
    """Makes stretches of steps out of rows, and counts what each rig's episodes brought."""

    def __init__(self, rigs: int) -> None:
        self._returns = np.zeros(rigs)
        self._lengths = np.zeros(rigs, np.int64)

    def stretch(self, rows: Any) -> dict[str, Any]:
        is_broken = (rows["follows"][1:] == 0) | (np.diff(rows["number"]) != 1)
        terminated, truncated = rows["terminated"].copy(), rows["truncated"].copy()
        returns, lengths = self._ends(rows, np.concatenate([rows["follows"][:1] == 0, is_broken]))
        truncated[:-1] |= is_broken[:, None] & ~terminated[:-1]
        return {
            "weights_version": int(rows["version"].min()),
            "observations": rows["observations"].copy(),
            "actions": rows["actions"].copy(),
            "log_probs": rows["log_probs"].copy(),
            "rewards": rows["rewards"].copy(),
            "terminated": terminated,
            "truncated": truncated,
            "cut_observations": rows["next_observations"][truncated],
            "last_observations": rows["next_observations"][-1].copy(),
            "episode_returns": tuple(returns),
            "episode_lengths": tuple(lengths),
        }

    def _ends(self, rows: Any, begins_anew: Any) -> tuple[list[float], list[int]]:
        returns, lengths = [], []
        for row, is_anew in zip(rows, begins_anew, strict=True):
            if is_anew:  # what was broken off was no episode
                self._returns[:], self._lengths[:] = 0.0, 0
            self._returns += row["rewards"]
            self._lengths += 1
            for rig in np.flatnonzero(row["terminated"] | row["truncated"]):
                returns.append(float(self._returns[rig]))
                lengths.append(int(self._lengths[rig]))
                self._returns[rig], self._lengths[rig] = 0.0, 0
        return returns, lengths


def _start(settings: ControlSettings) -> socket.socket:
    """The attendant's process, which is no child of ours: the end of its socket."""
    # Where this process finds its code: a robot's own package may have come with the run.
    path = os.pathsep.join([str(_PACKAGE_ROOT), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # A session of its own: a Ctrl+C meant for the training does not stop the robot's clock in mid-motion.
        command = [sys.executable, "-m", "edgelink.training.trainer.robot.attendant_process"]
        launcher = subprocess.Popen(command, stdin=theirs.fileno(), env=environment, start_new_session=True)
    ours.send(settings.to_json().encode())
    launcher.wait()
    return ours


def _check_writable(path: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(
            f"the robot's tick file {path} cannot be written on {socket.gethostname()}: {error.strerror}"
        ) from error
