"""The attendant of one robot's control process: files, hooks, recordings, and people's commands.

Everything that may take its time is done here, so that the control loop never does it; and what may hang, a disk or a
hook, has a thread of its own, so that it delays no person's stop. The attendant is no child of the env worker's: what
kills that one, and Ray its children, leaves robot and attendant alive to come to rest in order. It ends when the
control process has ended. If that one dies, or hangs, unasked, it runs the stop hook in its place.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edgelink.training.trainer.robot.deadman import Cause, State, silent_after_ns
from edgelink.training.trainer.robot.directory import FILE_MODE, SOCKET, make_run_directory
from edgelink.training.trainer.robot.disk_thread import DiskThread
from edgelink.training.trainer.robot.event_log import EventLog
from edgelink.training.trainer.robot.figures import DEAD, figures
from edgelink.training.trainer.robot.hooks import Hooks
from edgelink.training.trainer.robot.interface import MANUAL
from edgelink.training.trainer.robot.latch import SUFFIX, Latch
from edgelink.training.trainer.robot.realtime import NS, now_ns
from edgelink.training.trainer.robot.recording import Recorder
from edgelink.training.trainer.robot.settings import LEAVE_TIMEOUT_S, ControlSettings
from edgelink.training.trainer.robot.shared import SharedBlock

_MESSAGE_BYTES = 1 << 20
_LOOK_MS = 20
_TICK_FILE_NS = NS // 10
_LATCH_TIMEOUT_S = 1.0
_PERSON_TIMEOUT_S = 1.0
_DISK_TIMEOUT_S = 10.0
_REPORT_TIMEOUT_S = 10.0
_STALLED = "the robot's code did not come back, or its process stood still; stop() was called"


class Attendant:
    """State of the attendant. Whatever of it can fail does so here, before the robot is given power.

    Raises:
        OSError: a directory is not there, cannot be written, or is somebody else's.
    """

    def __init__(self, settings: ControlSettings, worker: socket.socket) -> None:
        self._settings = settings
        self._worker: socket.socket | None = worker
        directory = make_run_directory()
        if settings.record:
            _check_writable(Path(settings.record))
        self._disk = DiskThread(self._record, self._write_tick_file)
        self._latch_disk = DiskThread(self._settle)  # recordings may be on another disk, and that one hang
        self._events = EventLog(settings.events_file, self._disk.put)
        self._hooks = Hooks(settings, self._events.add)
        self._latch = Latch(directory / f"{settings.name}{SUFFIX}")
        self._is_told_of_latch = False
        self._changes_at_stop = 0  # those that had happened when a person said stop
        self._recorder: Recorder | None = None
        self._is_recording, self._recording_error = False, ""
        self._asking = threading.Lock()  # people's requests are words of shared memory, each with one writer
        self._seen_changes = self._seen_stalls = 0
        self._seen_state = State.WAITING
        self._has_run = self._is_silent = self._is_stop_failing = self._is_killed = False
        self._leaves_by_ns: int | None = None  # set once the robot is at rest for good
        self._tick_file_at_ns = 0
        self._hello: dict[str, Any] = {}
        self._socket_path = directory / f"{settings.name}{SOCKET}"
        self._people = _listen(self._socket_path)  # whoever comes waits for ``adopt``
        self._disk.start()
        self._latch_disk.start()

    def adopt(
        self,
        hello: dict[str, Any],
        block: SharedBlock,
        control: subprocess.Popen[bytes],
        control_link: socket.socket,
    ) -> None:
        """There is a control process, which has no policy yet. From now on people are heard.

        Args:
            hello: what the control process says of itself and the robot; gets the ``stop`` that lasts from before.

        Raises:
            OSError: what another robot was stopped by is in the way, and cannot be put aside.
        """
        self._latch.claim(hello["device"])
        self._is_told_of_latch = self._latch.stop is None
        hello["stop"] = self._latch.stop
        self._block, self._words = block, block.words
        self._hello = hello
        self._control, self._control_link = control, control_link
        self._is_manual = hello["resumes"] == MANUAL
        if self._latch.stop is not None:  # before anybody can bring it a policy
            self._words.add("stop_requests")
        if self._settings.record:
            try:
                self._recorder = Recorder(Path(self._settings.record), self._settings, hello, block)
                self._is_recording = True
            except OSError as error:
                self._end_recording(error)
        if self._is_manual:  # before it can move: whoever would write down a stop later may be killed before
            self._latch.arm()
            self._latch.await_settled(_LATCH_TIMEOUT_S)
        threading.Thread(target=self._hear_people, name="people", daemon=True).start()

    def run(self, is_told_to_end: Callable[[], bool]) -> None:
        """Until the control process has ended and everything about that is written."""
        while self._control.poll() is None:
            if is_told_to_end():
                self._words.close_request = 1
            self._hear_worker()
            self._look()
        self._look()
        words = self._words
        has_not_stopped = words.stop_fails or words.stopping_since_ns
        lasts = self._is_manual or self._latch.stop is not None
        if lasts and (has_not_stopped or (self._has_run and not words.ended)):  # it may be moving
            self._latch.set(Cause.FAULT.name.lower())
        if not words.ended:
            self.died(f"the control process has ended with status {self._control.returncode}")
        own_report: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            # It is there, or never comes: who has the other end still, if anybody, is none that would send it.
            own_report = json.loads(self._control_link.recv(_MESSAGE_BYTES, socket.MSG_DONTWAIT)).get("report", {})
        self._tick_file_at_ns = 0
        self.close()
        if self._worker is not None:
            self._worker.settimeout(_REPORT_TIMEOUT_S)
            with contextlib.suppress(OSError):
                self._worker.send(json.dumps({"report": {**own_report, **self.report()}}).encode())

    def died(self, reason: str) -> None:
        """The control process was killed, before it had come to rest by itself."""
        self._events.add("died", reason=reason)
        self._hooks.stopped("died", Cause.FAULT.name.lower())

    def close(self) -> None:
        """The control process has ended. Wait for the hooks and the disk, and be found by people no more."""
        self._hooks.finish()
        self._latch.disarm()
        self._latch_disk.close(_DISK_TIMEOUT_S)
        self._disk.put(self._finish_recording)
        self._disk.close(_DISK_TIMEOUT_S)
        self._socket_path.unlink(missing_ok=True)

    def report(self) -> dict[str, Any]:
        """All that is known of the robot now."""
        return {
            **self._figures(),
            "name": self._settings.name,
            "robot": self._settings.robot,
            "lost_recorded_steps": self._recorder.lost_steps if self._recorder else 0,
            "resumed_by": self._hello["resumes"],
            "needs_a_person": self._is_manual or Cause(self._words.cause).needs_a_person,
            "pid": self._hello["pid"],
            "message": self._block.read_message(),
            "stop": self._latch.stop,
            "stop_error": self._latch.unwritten,
            "recorded_steps": self._recorder.steps if self._recorder else 0,
            "recording_error": self._recording_error,
            "events": self._events.recent(),
        }

    def _figures(self) -> dict[str, Any]:
        found = figures(self._block, self._hello, self._settings.watchdog_s)
        is_dead = self._control.poll() is not None and not self._words.ended
        return {**found, "state": DEAD} if is_dead else found

    def _hear_worker(self) -> None:
        """One word of the env worker's, or none for a while."""
        waiting = select.poll()
        if self._worker is not None:
            waiting.register(self._worker, select.POLLIN)
        if not waiting.poll(_LOOK_MS):
            return
        assert self._worker is not None
        packet = b""
        with contextlib.suppress(ConnectionError):
            packet = self._worker.recv(_MESSAGE_BYTES)
        if packet == b"close":
            self._words.close_request = 1
        elif packet == b"report":
            with contextlib.suppress(OSError):  # who asks and does not read is not waited for
                self._worker.send(json.dumps({"report": self.report()}).encode(), socket.MSG_DONTWAIT)
        elif not packet:
            self._worker = None
            self._words.worker_is_gone = 1

    def _hear_people(self) -> None:
        while True:
            try:
                connection, _ = self._people.accept()
            except OSError:  # such as too many files, for now: the next person is heard
                select.select([], [], [], _LOOK_MS / 1000)
                continue
            try:  # one that says nothing delays nobody else
                threading.Thread(target=self._serve_person, args=(connection,), name="person", daemon=True).start()
            except RuntimeError:  # no thread is to be had: a stop is heard all the same
                self._serve_person(connection)

    def _serve_person(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_PERSON_TIMEOUT_S)
            asked = connection.recv(100).decode(errors="replace").strip()
            if asked in ("resume", "stop"):
                with self._asking:
                    self._words.add(f"{asked}_requests")
                if asked == "stop":
                    self._changes_at_stop = self._words.changes
                    self._latch.set(Cause.PERSON.name.lower())
                    self._latch.await_settled(_LATCH_TIMEOUT_S)
                self._await_instants(2)
            connection.sendall(json.dumps(self.report()).encode() + b"\n")

    def _await_instants(self, count: int) -> None:
        """So that a person is told what became of the word; bounded, for a loop that is stuck."""
        wanted, ends_ns = self._words.ticks + count, now_ns() + NS // 4
        while self._words.ticks < wanted and now_ns() < ends_ns:
            select.select([], [], [], 0.002)

    def _look(self) -> None:
        """What has the loop done since? Touches no disk."""
        words = self._words
        while self._seen_changes < words.changes:
            change = self._block.change(self._seen_changes)
            if change is None:  # it will be
                break
            self._seen_changes += 1
            self._note_change(change)
        if words.stalls > self._seen_stalls:
            self._seen_stalls = words.stalls
            self._events.add("stalled", reason=_STALLED)
            self._hooks.stopped("stalled", Cause.STALLED.name.lower())
        hangs = 0 < words.stopping_since_ns < now_ns() - self._settings.watchdog_s * NS
        is_stop_failing = hangs or words.stop_fails > 0
        if is_stop_failing and not self._is_stop_failing:
            self._events.add("stop_failed", reason="stop() has not returned" if hangs else self._block.read_message())
        self._is_stop_failing = is_stop_failing
        if words.leaving:
            self._bound_leaving()
        # Twice the watchdog's time: its own thread comes first, if it can.
        is_late = words.ticks > 0 and now_ns() - words.heartbeat_ns > silent_after_ns(self._settings.watchdog_s)
        is_silent = is_late and not words.leaving and self._control.poll() is None
        if is_silent and not self._is_silent:
            self._events.add("silent", reason="no control instant has begun for longer than the watchdog allows")
            self._hooks.stopped("silent", Cause.STALLED.name.lower())
        self._is_silent = is_silent

    def _bound_leaving(self) -> None:
        """The robot has been stopped; code of it that does not let go would keep it from all others for ever."""
        if self._leaves_by_ns is None:
            self._leaves_by_ns = now_ns() + round(LEAVE_TIMEOUT_S * NS)
        elif now_ns() > self._leaves_by_ns and not self._is_killed and self._control.poll() is None:
            self._is_killed = True
            self._events.add("killed", reason=f"the robot's code has not let go of it for {LEAVE_TIMEOUT_S:.0f} s")
            self._control.kill()

    def _note_change(self, entry: Any) -> None:
        state, cause, before = State(int(entry["state"])), Cause(int(entry["cause"])), self._seen_state
        self._seen_state = state
        about: dict[str, Any] = {"cause": cause.name.lower(), "at_ns": int(entry["at_ns"])}
        if cause is Cause.FAULT:
            about["reason"] = self._block.read_message()
        if state is State.RUNNING:
            about["held_s"] = round(float(entry["held_s"]), 3)
        if state is State.STOPPED:
            self._note_stop(cause, about, is_first=before is not State.STOPPED)
            return
        self._events.add(state.name.lower(), **about)
        # A person, or the time, has let it go on; not before a stop that was said since.
        if state is not State.HOLDING and self._seen_changes > self._changes_at_stop:
            self._latch.lift()
        if state is State.RUNNING:
            self._has_run = self._is_told_of_latch = True  # whoever stops it from now on stops what has moved
            if entry["held_s"]:
                self._hooks.resumed("running", cause.name.lower())

    def _note_stop(self, cause: Cause, about: dict[str, Any], *, is_first: bool) -> None:
        is_old = cause is Cause.PERSON and not self._is_told_of_latch
        if is_old:  # nothing has moved since: there is nothing for the hook to do
            self._is_told_of_latch = True
            about["since"] = self._latch.stop
        self._events.add("stopped", **about)
        if is_old:
            return
        # That there is nothing left to act by is how a replay ends.
        is_harmless = cause in (Cause.CLOSING, Cause.NO_POLICY)
        if cause is Cause.PERSON or (self._is_manual and self._has_run and not is_harmless):
            self._latch.set(cause.name.lower())
        if is_first and cause is not Cause.STALLED:  # whose hook has run
            self._hooks.stopped("stopped", cause.name.lower())

    def _record(self) -> None:
        if self._is_recording and self._recorder is not None:
            try:
                self._recorder.look()
            except Exception as error:
                self._end_recording(error)

    def _finish_recording(self) -> None:
        if self._is_recording and self._recorder is not None:
            try:
                self._recorder.close()
                self._is_recording = False
            except OSError as error:
                self._end_recording(error)

    def _end_recording(self, error: Exception) -> None:
        """The robot goes on without; people are told."""
        self._is_recording = False
        self._recording_error = f"{self._settings.record}: {getattr(error, 'strerror', None) or error}"
        self._events.add("recording_ended", reason=self._recording_error)

    def _settle(self) -> None:
        had = self._latch.error
        self._latch.settle()
        if self._latch.error and not had:
            self._events.add("stop_not_written", reason=self._latch.error)

    def _write_tick_file(self) -> None:
        """Whole or not at all, for readers at any moment; needs no fsync, it is about this very second."""
        path = self._settings.ticks_at
        if not path or not self._hello or now_ns() < self._tick_file_at_ns:
            return
        self._tick_file_at_ns = now_ns() + _TICK_FILE_NS
        temporary = path.with_name(f".{path.name}.new")
        with contextlib.suppress(OSError):  # for those who watch; the robot does not depend on it
            temporary.write_text(json.dumps(self._figures()) + "\n")
            temporary.replace(path)


def _listen(path: Path) -> socket.socket:
    people = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    people.bind(str(path))
    path.chmod(FILE_MODE)
    people.listen(5)
    return people


def _check_writable(recordings: Path) -> None:
    try:
        recordings.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=recordings):
            pass
    except OSError as error:
        raise OSError(
            f"control.record: {recordings} cannot be written: {error.strerror}; name a directory of the robot's "
            "machine that Ray's user may write to"
        ) from error
