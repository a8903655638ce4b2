"""A stop that outlives the robot's processes, their training and a restart of the machine, until a person lifts it.

It is a file beside the robot's socket. Standard library only: the command line reads it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

from edgelink.training.trainer.robot.directory import FILE_MODE

SUFFIX = ".stopped"
_RETRY_S = 1.0


def read_latch(path: Path) -> dict[str, str] | None:
    """``time`` and ``cause`` of the stop; None: there is none. A file that cannot be read is a stop all the same."""
    try:
        found = json.loads(path.read_text())
        return {"time": str(found["time"]), "cause": str(found["cause"])}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return {"time": "an unknown time", "cause": "unknown"}


class Latch:
    """One robot's. What it should be is said by any thread, at once; ``settle`` brings it to the disk.

    Args:
        path: of the file, in a directory that is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._wanted = self._written = read_latch(path)
        self._retry_s = 0.0
        self._is_settled = threading.Event()
        self._is_settled.set()
        self.error = ""  # why it is not on the disk

    @property
    def stop(self) -> dict[str, str] | None:
        """``time`` and ``cause`` of the stop that only a person lifts; None: there is none."""
        return self._wanted

    def set(self, cause: str) -> None:
        with self._lock:
            if self._wanted is None or self._wanted["cause"] != cause:
                self._want({"time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "cause": cause})

    def lift(self) -> None:
        with self._lock:
            if self._wanted is not None:
                self._want(None)

    def await_settled(self, timeout_s: float) -> None:
        """For people, who are told whether it will outlive the process; bounded, for a disk that hangs."""
        self._is_settled.wait(timeout_s)

    def settle(self) -> None:
        """Write or remove the file; what fails, as on a full disk, is tried again at a later call."""
        with self._lock:
            wanted = self._wanted
            if wanted == self._written or time.monotonic() < self._retry_s:
                return
        try:
            if wanted is None:
                self._path.unlink(missing_ok=True)
            else:
                self._write(json.dumps(wanted))
        except OSError as error:
            self.error, self._retry_s = f"{self._path}: {error.strerror}", time.monotonic() + _RETRY_S
            return
        with self._lock:
            self._written, self.error, self._retry_s = wanted, "", 0.0
            if self._wanted == wanted:
                self._is_settled.set()

    def _want(self, stop: dict[str, str] | None) -> None:
        self._wanted, self._retry_s = stop, 0.0
        if stop == self._written:
            self._is_settled.set()
        else:
            self._is_settled.clear()

    def _write(self, content: str) -> None:
        """Whole or not at all, also when the power fails."""
        temporary = self._path.with_name(f".{self._path.name}.new")
        with temporary.open("w") as file:
            os.fchmod(file.fileno(), FILE_MODE)
            file.write(content + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
