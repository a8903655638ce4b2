"""Commands that are run after a robot's safe stop, and when it has gone on. By a thread of their own."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgelink.training.trainer.robot.settings import ControlSettings

_LOOK_S = 0.02
_GRACE_S = 2.0
_PASSING = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class _Hook:
    argv: Sequence[str]
    event: str
    cause: str
    is_stop: bool


class Hooks:
    """One at a time, each for a bounded time, in order; but a stop waits for no resume hook: that one is killed.

    Args:
        told: is told the event ``hook`` of each, with its ``status``, or None and the ``reason``.
    """

    def __init__(self, settings: ControlSettings, told: Callable[..., None]) -> None:
        self._settings, self._told = settings, told
        self._waiting: deque[_Hook] = deque()
        self._changed = threading.Condition()
        self._is_outdone = self._is_closing = False
        self._thread = threading.Thread(target=self._serve, name="hooks", daemon=True)
        self._thread.start()

    def stopped(self, event: str, cause: str) -> None:
        """Run the stop hook, with ``EDGELINK_ROBOT``, ``EDGELINK_EVENT`` and ``EDGELINK_CAUSE`` in its environment."""
        if not self._settings.stop_hook:
            return
        with self._changed:
            self._waiting = deque(hook for hook in self._waiting if hook.is_stop)
            self._is_outdone = True  # a resume hook that runs now
        self._add(_Hook(self._settings.stop_hook, event, cause, is_stop=True))

    def resumed(self, event: str, cause: str) -> None:
        """Run the resume hook, likewise."""
        if self._settings.resume_hook:
            self._add(_Hook(self._settings.resume_hook, event, cause, is_stop=False))

    def finish(self) -> None:
        """Wait for the hooks, each for its time."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
            most = len(self._waiting) + 1
        self._thread.join(most * (self._settings.hook_timeout_s + 2 * _GRACE_S))

    def _add(self, hook: _Hook) -> None:
        with self._changed:
            self._waiting.append(hook)
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closing:
                        return
                    self._changed.wait()
                hook = self._waiting.popleft()
                self._is_outdone = False
            self._run(hook)

    def _run(self, hook: _Hook) -> None:
        about = {
            "EDGELINK_ROBOT": self._settings.name,
            "EDGELINK_EVENT": hook.event,
            "EDGELINK_CAUSE": hook.cause,
        }
        ends_s = time.monotonic() + self._settings.hook_timeout_s
        try:
            process = _started(hook, {**os.environ, **about}, ends_s)
        except OSError as error:
            self._told("hook", status=None, reason=f"{hook.argv[0]} cannot be started: {error.strerror}")
            return
        while process.poll() is None:
            with self._changed:
                is_outdone = self._is_outdone and not hook.is_stop
                if not is_outdone and time.monotonic() <= ends_s:
                    self._changed.wait(_LOOK_S)
                    continue
            why = "the robot stopped" if is_outdone else f"took longer than {self._settings.hook_timeout_s:g} s"
            self._told("hook", status=None, reason=f"{hook.argv[0]}: {why}: {_kill(process)}")
            return
        self._told("hook", status=process.returncode)


def _started(hook: _Hook, environment: dict[str, str], ends_s: float) -> subprocess.Popen[bytes]:
    """In a session of its own: what it starts can be killed with it. A stop's is tried again on a machine that is out
    of processes, memory or files for now.

    Raises:
        OSError: it cannot be started.
    """
    while True:
        try:
            return subprocess.Popen(hook.argv, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            if not hook.is_stop or error.errno not in _PASSING or time.monotonic() > ends_s:
                raise
        time.sleep(_LOOK_S)


def _kill(hook: subprocess.Popen[bytes]) -> str:
    """With all that it has started; says what became of it."""
    try:
        os.killpg(hook.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # it runs as another user, as by sudo: the hooks that come next do not wait for it
        return "not killed, for it runs as another user"
    with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel keeps it, as on a disk that hangs
        hook.wait(_GRACE_S)
    return "killed"
