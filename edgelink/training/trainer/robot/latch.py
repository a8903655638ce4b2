"""A stop that outlives the robot's processes, their training and a restart of the machine, until a person lifts it.

It is a file beside the robot's socket. Who would write it may be killed, and a machine may lose its power; so for a
robot that only a person lets go on, the file is there before the robot can move. It is *armed*: a stop as soon as there
is no attendant, unless an orderly end has removed it. Standard library only: the command line reads it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

from edgelink.training.trainer.disk import sync_directory
from edgelink.training.trainer.robot.directory import FILE_MODE, is_attended, open_there

SUFFIX = ".stopped"
UNKNOWN_END = "unknown end"  # cause of the stop of a robot whose processes, or machine, ended without a word
_ARMED = "armed"  # in the file, instead of a cause
_RETRY_S = 1.0
_MOST_BYTES = 64 * 1024
_AS = ", as "  # between a cause and the name that the robot had


def read_latch(path: Path) -> dict[str, str] | None:
    """``time``, ``cause`` and ``device`` of the stop, the last one empty where it is not known; None: there is no stop.

    A file that cannot be read is a stop all the same; one that is armed is none for as long as the robot is attended.
    """
    found = _read(path)
    if found is None or (found["cause"] == _ARMED and is_attended(path.parent, path.name.removesuffix(SUFFIX))):
        return None
    return _as_stop(found)


def _read(path: Path) -> dict[str, str] | None:
    """What the file says, be it armed or a stop."""
    try:
        with open_there(path) as file:
            found = json.loads(file.read(_MOST_BYTES))
        return {"time": str(found["time"]), "cause": str(found["cause"]), "device": str(found.get("device", ""))}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {"time": "an unknown time", "cause": "unknown", "device": ""}


def _as_stop(found: dict[str, str]) -> dict[str, str]:
    """What is armed, as the stop that it has become."""
    if found["cause"] != _ARMED:
        return found
    return {**found, "time": f"an unknown time after {found['time']}", "cause": UNKNOWN_END}


def stop_of_another_name(directory: Path, name: str, device: str) -> dict[str, str] | None:
    """A stop that may be this robot's, though it had another name then: its name has its worker's rank in it, which
    changes with the placement. Only two devices that are known are known to be two robots."""
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        stop = None if path.name == f"{name}{SUFFIX}" else read_latch(path)
        if stop is not None and not _are_two(stop["device"], device):
            cause, _, _ = stop["cause"].partition(_AS)
            return {**stop, "cause": f"{cause}{_AS}{path.name.removesuffix(SUFFIX)}"}
    return None


def _are_two(device: str, other: str) -> bool:
    return "" not in (device, other) and device != other


class Latch:
    """One robot's. What it should be is said by any thread, at once; ``settle`` brings it to the disk.

    Args:
        path: of the file, in a directory that is there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._device = ""
        self._lock = threading.Lock()
        self._written = _read(path)
        self._armed: dict[str, str] | None = None
        self._retry_s = 0.0
        self._is_settled = threading.Event()
        self._want(self._written and _as_stop(self._written))
        self.error = ""  # why it is not on the disk

    @property
    def stop(self) -> dict[str, str] | None:
        """As of :func:`read_latch`, the stop that only a person lifts; None: there is none."""
        return self._stop

    @property
    def unwritten(self) -> str:
        """Why the stop, or what is armed, would not outlive this process; empty: it would."""
        if self.error or self._wanted is None or self._is_settled.is_set():
            return self.error
        return f"{self._path}: its disk has not answered yet"

    @property
    def _wanted(self) -> dict[str, str] | None:
        """What the file is to say."""
        return self._stop or self._armed

    def claim(self, device: str) -> None:
        """It is this device's, which had another name before, or none: a stop that may be its own is its own.

        Args:
            device: as the robot's code names it; empty: not at all.

        Raises:
            OSError: another device's stop is in the way, and cannot be put aside.
        """
        self._device = device
        if self._written is not None and _are_two(self._written["device"], device):
            theirs = hashlib.sha256(self._written["device"].encode()).hexdigest()[:8]
            with self._lock:
                self._path.replace(self._path.with_name(f"{self._path.name.removesuffix(SUFFIX)}-{theirs}{SUFFIX}"))
                self._written = None
                self._want(None)
        name = self._path.name.removesuffix(SUFFIX)
        if self._stop is None and (other := stop_of_another_name(self._path.parent, name, device)) is not None:
            with self._lock:
                self._want({**other, "device": device})

    def set(self, cause: str) -> None:
        with self._lock:
            if self._stop is None or self._stop["cause"] != cause:
                self._want(self._now(cause))

    def lift(self) -> None:
        with self._lock:
            if self._stop is not None:
                self._want(None)

    def arm(self) -> None:
        """From now on whatever ends this process without ``disarm`` is a stop."""
        with self._lock:
            self._armed = self._now(_ARMED)
            self._want(self._stop)

    def disarm(self) -> None:
        """What is to be known of the robot's end is known: a stop that was set lasts, another one there is not."""
        with self._lock:
            self._armed = None
            self._want(self._stop)

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

    def _now(self, cause: str) -> dict[str, str]:
        time_of_it = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return {"time": time_of_it, "cause": cause, "device": self._device}

    def _want(self, stop: dict[str, str] | None) -> None:
        self._stop, self._retry_s = stop, 0.0
        if self._wanted == self._written:
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
        sync_directory(self._path.parent)
