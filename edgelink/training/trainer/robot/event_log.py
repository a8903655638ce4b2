"""What happened to a robot, one JSON line each. Never in the control loop."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from io import FileIO
from pathlib import Path
from typing import Any

_RECENT = 50
_MOST_BYTES = 4 << 20  # then it is put aside, and the one before is gone: a link that flaps for months fills no disk


class EventLog:
    """Appends to ``path``; any thread may add.

    Args:
        put: takes the writing, which may hang with its disk, and returns at once.
    """

    def __init__(self, path: Path, put: Callable[[Callable[[], None]], None]) -> None:
        self._path, self._put = path, put
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._lock = threading.Lock()
        self._unwritten: deque[str] = deque(maxlen=_RECENT)  # what a full disk does not take goes before what is next

    def recent(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._recent)

    def add(self, event: str, **about: Any) -> None:
        """Record it, with the time of day."""
        record = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "event": event, **about}
        with self._lock:
            self._recent.append(record)
            self._put(lambda: self._write(json.dumps(record)))

    def _make_room(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size > _MOST_BYTES:
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))

    def _write(self, line: str) -> None:
        self._unwritten.append(line)
        try:
            self._make_room()
            with self._path.open("ab", buffering=0) as file:
                self._append("".join(f"{each}\n" for each in self._unwritten).encode(), file)
            self._unwritten.clear()
        except OSError as error:  # a full disk: it is still in the report
            with contextlib.suppress(OSError):  # and that is where the log may lie
                print(f"edgelink robot: cannot write {self._path}: {error.strerror}", file=sys.stderr, flush=True)

    def _append(self, lines: bytes, file: FileIO) -> None:
        """All or nothing: half a line would spoil the next one."""
        size = file.tell()
        try:
            written = 0
            while written < len(lines):
                written += file.write(lines[written:])
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise
