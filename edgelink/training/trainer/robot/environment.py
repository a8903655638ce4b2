"""A robot, as the env worker has it: hands weights to the control process and takes experience from it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.learning.policy import Weights
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.attempts import COMPLETE, Attempt, AttemptCounter
from edgelink.training.trainer.robot.deadman import Cause, State
from edgelink.training.trainer.robot.figures import SILENT, STALLED, STOPPING, condition
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.robot.interface import MANUAL
from edgelink.training.trainer.robot.link import LinkWatch
from edgelink.training.trainer.robot.realtime import now_ns
from edgelink.training.trainer.robot.settings import LOCK_TIMEOUT_S, MAKE_TIMEOUT_S, ControlSettings
from edgelink.training.trainer.robot.shared import Layout, RingReader, SharedBlock, WeightsWriter

_MESSAGE_BYTES = 1 << 20
_HELLO_TIMEOUT_S = LOCK_TIMEOUT_S + MAKE_TIMEOUT_S + 20.0  # more than the attendant waits
_REPORT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 60.0  # the longest hook, and some
_START_S = 3.0  # before that the link may not have been heard yet
_LOOK_S = 0.005
_BACKLOG = 2  # stretches that may wait; older experience is of no use to anybody
_BATCH = 64  # steps looked through at once
_UNKNOWN = {  # what it does, for as long as it does not come back
    STOPPING: "is being stopped, but stop() has not returned: it may be moving; use the robot's own stop",
    STALLED: "is stalled: its code does not come back; stop() was called beside it; once it is back, a person lets it "
    "go on",
    SILENT: "is silent: its process stands still, or waits for a processor; it may be moving; use the robot's own stop",
}
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
        if settings.ticks_at:
            _check_writable(settings.ticks_at)
        self.name = settings.name
        self._watchdog_s = settings.watchdog_s
        self._last_report: dict[str, Any] = {}
        self._link: socket.socket | None = _start(settings)
        hello, descriptor = self._hello()
        self.spaces = Spaces.from_dict(hello["spaces"])
        self.rigs: int = hello["rigs"]
        self.pid: int = hello["pid"]
        self.notice = _stopped(settings.name, hello["stop"])
        self._is_manual = hello["resumes"] == MANUAL
        self.steps_per_s: float = hello["rate_hz"] / hello["action_repeat"]
        self._block = SharedBlock(
            Layout(self.spaces, self.rigs, settings.ring_rows, hello["action_repeat"]), descriptor
        )
        self._weights = WeightsWriter(self._block)
        self._reader = RingReader(self._block)
        self._stale = 0
        self._parts: list[Any] = []  # of a stretch that is not complete
        self._counter = AttemptCounter(self.rigs)
        self._ended: list[Attempt] = []  # in the stretch that is not complete
        self._begun_s = time.monotonic()
        self._watch = LinkWatch(self._block.words, echo[0], echo[1], settings.deadman.link_timeout_s)

    @property
    def policy_version(self) -> int:
        """Which weights the robot acts by; 0 before the first."""
        return self._block.words.policy_version

    def beat(self) -> None:
        """Show the robot that the loop which serves it comes round. Whoever has called this, or anything that hands
        over a policy or takes experience, does so again within ``deadman.worker_timeout_s``, or the robot holds."""
        self._block.words.add("worker_steps")

    def load_policy(self, version: int, weights: Weights) -> None:
        """Hand over, in the middle of anything. The control process copies 128 KiB of them at each control instant, and
        then acts by them, unless newer ones came before it began."""
        self.beat()
        self._weights.publish(version, weights)

    def confirm_policy(self, version: int) -> None:
        """``version`` is still the newest that there is. Only a word: the weights are not copied again."""
        if version == self._block.words.weights_version:
            self._block.words.weights_confirmed_ns = now_ns()

    def take(
        self, steps: int, patience_s: float, least_version: int = 0, enough: int | None = None
    ) -> dict[str, Any] | None:
        """Return the next ``steps`` steps, as the parts of a fragment that are the environment's.

        None, if they are not there within ``patience_s``: what has come is kept for the next call. A robot that holds
        gives none.

        Args:
            enough: with so many steps it does not wait for more. None: for all of them.
            least_version: steps by older weights are left out at the beginning, and counted, also those that were
                kept before: after a long hold they would make what comes with them too old.

        Raises:
            ConnectionError: the control process has ended.
        """
        ends_s = time.monotonic() + patience_s
        enough = steps if enough is None else enough
        self._stale += self._reader.skip_to(_BACKLOG * steps)
        self._leave_older(least_version)
        while (have := sum(len(part) for part in self._parts)) < steps:
            rows = self.rows(steps - have, ends_s if have < enough else 0.0, 0 if have else least_version)
            if not len(rows):
                if have >= enough:
                    break
                return None
            self._parts.append(rows)
            self._ended += self._counter.add(rows)
        rows, ended = np.concatenate(self._parts), self._ended
        self._parts, self._ended = [], []
        return _stretch(rows, ended)

    def _leave_older(self, version: int) -> None:
        """Of what is kept, up to the first step that is not by weights before ``version``."""
        while self._parts:
            is_new = self._parts[0]["version"] >= version
            left = int(is_new.argmax()) if is_new.any() else len(is_new)
            self._stale += left
            if left < len(is_new):
                self._parts[0] = self._parts[0][left:]
                return
            del self._parts[0]

    def attempts(self, patience_s: float) -> list[Attempt]:
        """Those that ended since the last call of this method or of ``take``, waited for at most ``patience_s``; what
        they consist of is not kept.

        Raises:
            ConnectionError: the control process has ended.
        """
        ends_s = time.monotonic() + patience_s
        while len(rows := self.rows(_BATCH, ends_s)):
            if ended := self._counter.add(rows):
                return ended
        return []

    def begin(self) -> None:
        """Of a robot that is to replay: now it may."""
        self._block.words.may_begin = 1

    @property
    def replay_is_over(self) -> bool:
        """Nothing more of it is commanded; its rows are there."""
        return bool(self._block.words.replay_is_over)

    @property
    def came_to_rest(self) -> bool:
        """Of one that is closed: its control process has stopped it and let go of it."""
        words = self._block.words
        return bool(words.ended) and not (words.stop_fails or words.stopping_since_ns)

    @property
    def state(self) -> tuple[State, Cause]:
        """What the robot does, and why it does not run."""
        words = self._block.words
        return State(words.state), Cause(words.cause)

    @property
    def hindered_by(self) -> Cause:
        """What is wrong at this moment, whatever it does."""
        return Cause(self._block.words.hindrance)

    def hindrance(self) -> Hindrance:
        """Why it does not run."""
        state, cause = self.state
        if why := _UNKNOWN.get(condition(self._block.words, self._watchdog_s)):
            return Hindrance(f"robot {self.name} on {socket.gethostname()} {why}", needs_person=True)
        if state is not State.STOPPED:
            return self._idleness(state, cause)
        if self.notice and cause is Cause.PERSON and not self._block.words.rows:
            return Hindrance(self.notice, needs_person=True)  # since before this run
        host = socket.gethostname()
        needs_person = cause is not Cause.CLOSING and (self._is_manual or cause.needs_a_person)
        if needs_person:
            on = f"`edgelink robot resume {self.name}` on {host} lets it go on"
        elif cause is Cause.CLOSING:
            on = "its run, or its machine, is being ended"
        else:
            on = "it goes on by itself once that is over"
        message = self._block.read_message()
        why = f"{_said(cause)}{f' ({message})' if message else ''}"
        return Hindrance(f"robot {self.name} on {host} is stopped, because of: {why}; {on}", needs_person)

    def _idleness(self, state: State, cause: Cause) -> Hindrance:
        """Why it waits or holds, where that lasts and nobody would look after it."""
        hindrance, host = self.hindered_by, socket.gethostname()
        if state is State.HOLDING and self._is_manual and hindrance is Cause.NONE:
            return Hindrance(
                f"robot {self.name} on {host} holds, because of: {_said(cause)}, which is over; "
                f"`edgelink robot resume {self.name}` on {host} lets it go on",
                needs_person=True,
            )
        is_starting = time.monotonic() - self._begun_s < _START_S
        if state is State.WAITING and not is_starting and hindrance not in (Cause.NONE, Cause.NO_POLICY):
            return Hindrance(
                f"robot {self.name} on {host} has not begun, because of: {_said(hindrance)}; "
                "it does by itself once that is over"
            )
        return Hindrance()

    def rows(self, most: int, ends_s: float, least_version: int = 0) -> Any:
        """The oldest in the ring, as ``Layout.row`` has them; none, if there are none until ``ends_s``.

        Args:
            ends_s: on the monotonic clock.

        Raises:
            ConnectionError: the control process has ended.
        """
        while True:
            self.beat()
            self._stale += self._reader.skip_older(least_version) if least_version else 0
            rows = self._reader.take(most)
            if len(rows):
                return rows
            self._check_alive()
            if time.monotonic() >= ends_s:
                return rows
            time.sleep(_LOOK_S)

    def report(self) -> dict[str, Any]:
        """All figures; the last known ones once it is closed."""
        link = self._link
        if link is not None:
            with contextlib.suppress(OSError):
                self._drain(link)  # an answer that was late is not the one to this question
                link.send(b"report")
                self._receive_report(link, _REPORT_TIMEOUT_S)
        own = {"dropped_steps": self._reader.dropped, "stale_steps": self._stale, "episodes": self._counter.counts}
        return {**self._last_report, **own}

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
        try:
            packet = link.recv(_MESSAGE_BYTES)
        except ConnectionResetError:  # said once, when it ended with a question unread; its last words come after that
            packet = link.recv(_MESSAGE_BYTES)
        if packet:
            self._last_report = json.loads(packet)["report"]
        return bool(packet)

    def _drain(self, link: socket.socket) -> bool:
        """Take what nobody waits for: reports that came late, or the last one. False: the other end is gone."""
        try:
            while self._receive_report(link, 0.0):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _check_alive(self) -> None:
        if self._link is None:
            raise ConnectionError(f"robot {self.name} is closed")
        if not self._drain(self._link):
            events = self._last_report.get("events") or [{}]
            raise ConnectionError(f"robot {self.name}: its control process has ended: {events[-1]}")


def _stretch(rows: Any, ended: Sequence[Attempt]) -> dict[str, Any]:
    """The parts of a fragment; only whole attempts have a return."""
    is_broken = (rows["follows"][1:] == 0) | (np.diff(rows["number"]) != 1)
    terminated, truncated = rows["terminated"].copy(), rows["truncated"].copy()
    truncated[:-1] |= is_broken[:, None] & ~terminated[:-1]
    complete = [attempt for attempt in ended if attempt.how == COMPLETE]
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
        "episode_returns": tuple(attempt.value for attempt in complete),
        "episode_lengths": tuple(attempt.steps for attempt in complete),
    }


def _said(cause: Cause) -> str:
    return cause.name.lower().replace("_", " ")


def _stopped(name: str, stop: dict[str, str] | None) -> str:
    """Whoever trains is not where the robot is, and would wait without a word."""
    if stop is None:
        return ""
    return (
        f"robot {name} is stopped since {stop['time']}, because of: {stop['cause']}; nothing moves it before "
        f"`edgelink robot resume {name}` on {socket.gethostname()}"
    )


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
