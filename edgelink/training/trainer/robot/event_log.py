"""What happened to a robot, one JSON line each. Never in the control loop."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

_RECENT = 50


class EventLog:
    """Appends to ``path``; any thread may add.

    Args:
        put: takes the writing, which may hang with its disk, and returns at once.
    """

    def __init__(self, path: Path, put: Callable[[Callable[[], None]], None]) -> None:
        self._path, self._put = path, put
        self._recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        self._lock = threading.Lock()

    def recent(self) -> list[dict[str, Any]]:
        with self._lock:
            return list(self._recent)

    def add(self, event: str, **about: Any) -> None:
        """Record it, with the time of day."""
        record = {"time": datetime.now(timezone.utc).isoformat(timespec="milliseconds"), "event": event, **about}
        with self._lock:
            self._recent.append(record)
            self._put(lambda: self._write(json.dumps(record)))

    def _write(self, line: str) -> None:
        try:
            with self._path.open("a") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # a full disk: it is still in the report
            print(f"edgelink robot: cannot write {self._path}: {error.strerror}", file=sys.stderr, flush=True)
