"""The attendant of one robot's control process: files, hooks, recordings, and people's commands.

Everything that may take its time is done here, so that the control loop never does it. The attendant is no child of
the env worker's: what kills that one, and Ray its children, leaves robot and attendant alive to come to rest in order.
It ends when the control process has ended. If that one dies, or hangs, unasked, it runs the stop hook in its place.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.robot.deadman import Cause, State, silent_after_ns
from edgelink.training.trainer.robot.event_log import EventLog
from edgelink.training.trainer.robot.figures import figures
from edgelink.training.trainer.robot.interface import MANUAL
from edgelink.training.trainer.robot.realtime import NS, now_ns
from edgelink.training.trainer.robot.recording import Recorder
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import CHANGES, Layout, SharedBlock

_MESSAGE_BYTES = 1 << 20
_HELLO_TIMEOUT_S = 60.0  # a real robot may have to be switched on first
_LOOK_MS = 20
_TICK_FILE_NS = NS // 10
_LOCK_TIMEOUT_S = 40
_STALLED = "the robot's code did not come back, or its process stood still; stop() was called"
_END_TIMEOUT_S = 15.0  # of a control process that nobody wants: it stops its robot, also if that takes some tries


class Attendant:
    """State of the attendant once its control process runs."""

    def __init__(
        self,
        settings: ControlSettings,
        hello: dict[str, Any],
        block: SharedBlock,
        control: subprocess.Popen[bytes],
        control_link: socket.socket,
        worker: socket.socket,
    ) -> None:
        self._settings, self._hello = settings, hello
        self._block, self._words = block, block.words
        self._control, self._control_link = control, control_link
        self._worker: socket.socket | None = worker
        directory = settings.own_directory
        self._events = EventLog(directory / f"{settings.name}.events.jsonl", settings)
        self._recorder = Recorder(Path(settings.record), settings, hello, block) if settings.record else None
        self._socket_path = directory / f"{settings.name}.sock"
        self._people = _listen(self._socket_path)
        self._seen_changes = self._seen_stalls = 0
        self._is_silent = self._is_stop_failing = False
        self._tick_file_at_ns = 0

    def run(self) -> None:
        """Until the control process has ended and everything about that is written."""
        while self._control.poll() is None:
            self._wait()
            self._look()
        self._look()
        if not self._words.ended:
            how = f"the control process has ended with status {self._control.returncode}"
            self._events.add("died", reason=how)
            self._events.run_hook(self._settings.stop_hook, "died", Cause.FAULT.name.lower())
        own_report: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            own_report = json.loads(self._control_link.recv(_MESSAGE_BYTES)).get("report", {})
        self._events.finish()
        if self._recorder is not None:
            self._recorder.close()
        self._write_tick_file()
        if self._worker is not None:
            with contextlib.suppress(OSError):
                self._worker.send(json.dumps({"report": {**self.report(), **own_report}}).encode())
        self._socket_path.unlink(missing_ok=True)

    def report(self) -> dict[str, Any]:
        """All that is known of the robot now."""
        return {
            **figures(self._block, self._hello),
            "name": self._settings.name,
            "robot": self._settings.robot,
            "resumed_by": self._hello["resumes"],
            "needs_a_person": self._hello["resumes"] == MANUAL or Cause(self._words.cause).needs_a_person,
            "notes": self._hello["notes"],
            "pid": self._hello["pid"],
            "message": self._block.read_message(),
            "recorded_steps": self._recorder.steps if self._recorder else 0,
            "events": self._events.recent(),
        }

    def _wait(self) -> None:
        waiting = select.poll()
        for link in (self._worker, self._people):
            if link is not None:
                waiting.register(link, select.POLLIN)
        for descriptor, _ in waiting.poll(_LOOK_MS):
            if descriptor == self._people.fileno():
                self._serve_person()
            else:
                self._hear_worker()

    def _hear_worker(self) -> None:
        assert self._worker is not None
        packet = b""
        with contextlib.suppress(ConnectionError):
            packet = self._worker.recv(_MESSAGE_BYTES)
        if packet == b"close":
            self._words.close_request = 1
        elif packet == b"report":
            with contextlib.suppress(OSError):
                self._worker.send(json.dumps({"report": self.report()}).encode())
        elif not packet:
            self._worker = None
            self._words.worker_is_gone = 1

    def _serve_person(self) -> None:
        connection, _ = self._people.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(1.0)
            asked = connection.recv(100).decode(errors="replace").strip()
            if asked == "resume":
                self._words.add("resume_requests")
                self._await_instants(2)
            elif asked == "stop":
                self._words.add("stop_requests")
                self._await_instants(2)
            connection.sendall(json.dumps(self.report()).encode() + b"\n")

    def _await_instants(self, count: int) -> None:
        """So that a person is told what became of the word; bounded, for a loop that is stuck."""
        wanted, ends_ns = self._words.ticks + count, now_ns() + NS // 4
        while self._words.ticks < wanted and now_ns() < ends_ns:
            select.select([], [], [], 0.002)

    def _look(self) -> None:
        """What has the loop done since?"""
        while self._seen_changes < self._words.changes:
            self._note_change()
        words, now = self._words, now_ns()
        if words.stalls > self._seen_stalls:
            self._seen_stalls = words.stalls
            self._events.add("stalled", reason=_STALLED)
            self._events.run_hook(self._settings.stop_hook, "stalled", Cause.STALLED.name.lower())
        if words.stop_fails and not self._is_stop_failing:
            self._events.add("stop_failed", reason=self._block.read_message())
        self._is_stop_failing = words.stop_fails > 0
        # Twice the watchdog's time: its own thread comes first, if it can.
        is_silent = words.ticks > 0 and now - words.heartbeat_ns > silent_after_ns(self._settings.watchdog_s)
        if is_silent and not self._is_silent and not words.ended and self._control.poll() is None:
            self._events.add("silent", reason="no control instant has begun for longer than the watchdog allows")
            self._events.run_hook(self._settings.stop_hook, "silent", Cause.STALLED.name.lower())
        self._is_silent = is_silent
        self._events.look()
        if self._recorder is not None:
            self._recorder.look()
        if now >= self._tick_file_at_ns:
            self._tick_file_at_ns = now + _TICK_FILE_NS
            self._write_tick_file()

    def _note_change(self) -> None:
        entry = self._block.changes[self._seen_changes % CHANGES]
        self._seen_changes += 1
        state, cause = State(int(entry["state"])), Cause(int(entry["cause"]))
        about: dict[str, Any] = {"cause": cause.name.lower(), "at_ns": int(entry["at_ns"])}
        if cause is Cause.FAULT:
            about["reason"] = self._block.read_message()
        if state is State.RUNNING:
            about["held_s"] = round(float(entry["held_s"]), 3)
        self._events.add(state.name.lower(), **about)
        if state is State.STOPPED and cause is not Cause.STALLED:  # whose hook has run
            self._events.run_hook(self._settings.stop_hook, "stopped", cause.name.lower())
        elif state is State.RUNNING and about["held_s"]:
            self._events.run_hook(self._settings.resume_hook, "running", cause.name.lower())

    def _write_tick_file(self) -> None:
        """Whole or not at all, for readers at any moment; needs no fsync, it is about this very second."""
        if not self._settings.tick_file:
            return
        path = Path(self._settings.tick_file)
        temporary = path.with_name(f".{path.name}.new")
        with contextlib.suppress(OSError):  # for those who watch; the robot does not depend on it
            temporary.write_text(json.dumps(figures(self._block, self._hello)) + "\n")
            temporary.replace(path)


def _listen(path: Path) -> socket.socket:
    people = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    people.bind(str(path))
    path.chmod(0o600)
    people.listen(5)
    return people


def _only_one(settings: ControlSettings) -> TextIO:
    """The lock without which nobody commands this robot: a run before this one may still bring it to rest.

    Raises:
        OSError: somebody else has it and keeps it.
    """
    lock = (settings.own_directory / f"{settings.name}.lock").open("a+")
    ends_ns = now_ns() + _LOCK_TIMEOUT_S * NS
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if now_ns() > ends_ns:
                lock.seek(0)
                holder = lock.read().strip()
                lock.close()
                raise OSError(
                    f"another control process commands it (pid {holder}) and has not come to rest for "
                    f"{_LOCK_TIMEOUT_S} s; look at `edgelink robot status`"
                ) from None
            select.select([], [], [], 0.05)
            continue
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return lock


def _start_control(settings: ControlSettings) -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        control = subprocess.Popen(
            [sys.executable, "-m", "edgelink.training.trainer.robot.control"], stdin=theirs.fileno()
        )
    ours.settimeout(_HELLO_TIMEOUT_S)
    ours.send(settings.to_json().encode())
    return control, ours


def main() -> None:
    """The life of the process; its standard input is the socket to the env worker."""
    if os.fork() != 0:
        os._exit(0)  # so that init, or a container's first process, becomes the parent
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    worker = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    settings = ControlSettings.from_json(worker.recv(_MESSAGE_BYTES).decode())
    try:
        lock = _only_one(settings)
    except OSError as error:
        worker.send(json.dumps({"error": str(error)}).encode())
        return
    with lock:
        _attend(settings, worker)


def _attend(settings: ControlSettings, worker: socket.socket) -> None:
    control, link = _start_control(settings)
    block: SharedBlock | None = None
    try:
        packet, descriptors, _, _ = socket.recv_fds(link, _MESSAGE_BYTES, 1)
        hello: dict[str, Any] = json.loads(packet or "{}")
        if not packet:
            raise OSError(f"its control process has ended with status {control.wait()}")
        if "error" in hello:
            raise OSError(hello["error"])
        layout = Layout(Spaces.from_dict(hello["spaces"]), hello["rigs"], settings.ring_rows)
        block = SharedBlock(layout, descriptors[0])
        attendant = Attendant(settings, hello, block, control, link, worker)
    except OSError as error:
        with contextlib.suppress(OSError):  # who wanted it may be gone
            worker.send(json.dumps({"error": str(error)}).encode())
        _end(control, link, block)
        return
    # What a stopping machine sends is a wish to come to rest: the robot does, and everything ends after it.
    signal.signal(signal.SIGTERM, lambda *_: setattr(block.words, "close_request", 1))
    with contextlib.suppress(OSError):  # who wanted it may be gone: its end of the socket says so, and ends us in order
        socket.send_fds(worker, [packet], [block.descriptor])
    attendant.run()


def _end(control: subprocess.Popen[bytes], link: socket.socket, block: SharedBlock | None) -> None:
    """Of a control process that came too late, or to nobody: it stops its robot; killed only if it does not end."""
    if block is not None:
        block.words.close_request = 1
    link.close()  # a hello that comes now fails
    try:
        control.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        control.kill()
        control.wait()


if __name__ == "__main__":
    main()
