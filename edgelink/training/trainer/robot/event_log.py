"""What happened to a robot, one JSON line each, and the hooks that are run then. Never in the control loop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edgelink.training.trainer.robot.settings import ControlSettings

_RECENT = 50
_GRACE_S = 2.0


class EventLog:
    """Appends to ``path``; hooks run one after the other, each for a bounded time."""

    def __init__(self, path: Path, settings: ControlSettings) -> None:
        self._path = path
        self._settings = settings
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._waiting: deque[tuple[Sequence[str], str, str]] = deque()
        self._hook: subprocess.Popen[bytes] | None = None
        self._ends_s = 0.0

    def recent(self) -> list[dict[str, Any]]:
        return list(self._recent)

    def add(self, event: str, **about: Any) -> None:
        """Record it, with the time of day."""
        record = {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **about}
        self._recent.append(record)
        try:
            with self._path.open("a") as file:
                file.write(json.dumps(record) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # a full disk must not keep the hook from running
            print(f"edgelink robot: cannot write {self._path}: {error.strerror}", file=sys.stderr, flush=True)

    def run_hook(self, argv: Sequence[str], event: str, cause: str) -> None:
        """``argv`` with ``EDGELINK_ROBOT``, ``EDGELINK_EVENT`` and ``EDGELINK_CAUSE`` in its environment."""
        if argv:
            self._waiting.append((argv, event, cause))
            self.look()

    def look(self) -> None:
        """Start the next hook, end one that takes too long."""
        if self._hook is not None:
            status = self._hook.poll()
            if status is None and time.monotonic() > self._ends_s:
                self._hook.kill()
                self._hook.wait(_GRACE_S)
                self.add("hook", status=None, reason=f"took longer than {self._settings.hook_timeout_s:g} s: killed")
                self._hook = None
            elif status is not None:
                self.add("hook", status=status)
                self._hook = None
        if self._hook is None and self._waiting:
            self._start(*self._waiting.popleft())

    def finish(self) -> None:
        """Wait for the hooks, each for its time."""
        while self._hook is not None or self._waiting:
            self.look()
            time.sleep(0.02)

    def _start(self, argv: Sequence[str], event: str, cause: str) -> None:
        about = {"EDGELINK_ROBOT": self._settings.name, "EDGELINK_EVENT": event, "EDGELINK_CAUSE": cause}
        try:
            self._hook = subprocess.Popen(list(argv), env={**os.environ, **about}, stdin=subprocess.DEVNULL)
        except OSError as error:
            self.add("hook", status=None, reason=f"{argv[0]} cannot be started: {error.strerror}")
            return
        self._ends_s = time.monotonic() + self._settings.hook_timeout_s
