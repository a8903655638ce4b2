"""Whether the Ray that runs is still what a `ray start` now would make: interpreter, packages, environment.

What was there at `ray start` is kept beside the record of its processes and compared with what is there now, by reading
the directories of the interpreter's packages: no import, some milliseconds. Raylet starts workers for as long as it
lives, from what is on disk at that moment and with its own environment, so workers of one raylet may differ.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from edgelink.condition_table.informing import RAY_CURRENT
from edgelink.conditions import ConditionSet, Status
from edgelink.files import AT_ONCE, Files
from edgelink.process import Identity
from edgelink.ray_cluster.interpreter import Interpreter
from edgelink.reconcile import Wakeup
from edgelink.wording import few

_LOOK_S = 30.0
# Marks, no settings; and where Ray's own statistics go, which no worker sees and another EdgeLink may say otherwise.
_LEFT_OUT = ("EDGELINK_", "RAY_USAGE_STATS_")
_REMEDY = "`edgelink restart-ray` makes all workers alike"


class Snapshot(BaseModel):
    """``packages``: version and time of installation by name. ``environment``: a digest of each value by name;
    empty where it is not known."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    interpreter: str  # its file behind all links, and a stamp of it
    packages: dict[str, tuple[str, int]]
    environment: dict[str, str]


class _Started(BaseModel):
    """On disk: what the raylet with this pid and start time was started from."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pid: int
    start_ticks: int
    snapshot: Snapshot


class Verdict(NamedTuple):
    """For the condition."""

    status: Status
    reason: str
    message: str


def take_snapshot(interpreter: Interpreter, environment: Mapping[str, str]) -> Snapshot:
    """What a `ray start` at this moment would start from."""
    return Snapshot(
        interpreter=_stamp(interpreter.python),
        packages=installed(interpreter.package_paths),
        environment={
            name: hashlib.sha256(value.encode()).hexdigest()[:16]
            for name, value in environment.items()
            if not name.startswith(_LEFT_OUT)
        },
    )


def installed(directories: Iterable[Path]) -> dict[str, tuple[str, int]]:
    """Name → version and time of installation, as the metadata directories (``NAME-VERSION.dist-info``) say.

    The first directory that has a package counts, as it does for an import. What cannot be read is left out.
    """
    found: dict[str, tuple[str, int]] = {}
    for directory in directories:
        here: dict[str, tuple[str, int]] = {}
        with suppress(OSError):
            for entry in directory.iterdir():
                if entry.suffix in (".dist-info", ".egg-info"):
                    name, _, version = entry.stem.partition("-")
                    here[name.lower().replace("-", "_")] = (version, entry.stat().st_mtime_ns)
        found = here | found
    return found


def compare(then: Snapshot, now: Snapshot) -> Verdict:
    """In words; pure."""
    if then.interpreter != now.interpreter:
        return Verdict(
            Status.FALSE,
            "InterpreterChanged",
            f"the interpreter has changed since Ray was started here, and new workers run the new one: {_REMEDY}",
        )
    if changes := list(_changes(then.packages, now.packages)):
        return Verdict(
            Status.FALSE,
            "InstalledAfterStart",
            f"changed since Ray was started here: {few(changes)}; a worker that runs keeps "
            f"what it has imported, one that starts now takes the new: {_REMEDY}",
        )
    names = sorted(
        name
        for name in {*then.environment, *now.environment}
        if not name.startswith(_LEFT_OUT) and then.environment.get(name) != now.environment.get(name)
    )
    if now.environment and names:
        return Verdict(
            Status.FALSE,
            "EnvironmentChanged",
            f"Ray was started with other values of {', '.join(names)}, which all its workers inherit; {_REMEDY}",
        )
    return Verdict(
        Status.TRUE, "AsStarted", "interpreter, packages and environment are those that Ray was started with"
    )


def _changes(then: Mapping[str, tuple[str, int]], now: Mapping[str, tuple[str, int]]) -> Iterable[str]:
    for name in sorted({*then, *now}):
        before, after = then.get(name), now.get(name)
        if before is None and after is not None:
            yield f"{name} {after[0]} (new)"
        elif before is not None and after is None:
            yield f"{name} {before[0]} (removed)"
        elif before is not None and after is not None and before != after:
            yield (
                f"{name} {before[0]} → {after[0]}" if before[0] != after[0] else f"{name} {after[0]} (installed again)"
            )


def _stamp(python: Path) -> str:
    """Of the file, not of the links to it: two environments may share one interpreter."""
    try:
        file = python.resolve()
        status = file.stat()
    except OSError:
        return "gone"
    return f"{file} {status.st_ino} {status.st_mtime_ns}"


class StartBook:
    """What the running Ray was started from, on disk."""

    def __init__(self, path: Path, files: Files = AT_ONCE) -> None:
        self._path = path
        self._files = files

    def note(self, raylet: Identity, snapshot: Snapshot) -> None:
        """It runs, started from ``snapshot``."""
        started = _Started(pid=raylet.pid, start_ticks=raylet.start_ticks, snapshot=snapshot)
        self._files.keep(self._path, started.model_dump_json())

    def forget(self) -> None:
        """It was stopped."""
        self._files.keep(self._path, None)

    def of(self, raylet: Identity) -> Snapshot | None:
        """Return the snapshot that this Ray was started from. None: it was not noted, for want of room."""
        try:
            started = _Started.model_validate_json(self._path.read_bytes())
        except (OSError, ValidationError):
            return None
        is_it = (started.pid, started.start_ticks) == (raylet.pid, raylet.start_ticks)
        return started.snapshot if is_it else None


class DriftReconciler:
    """Says as ``RayCurrent`` whether Ray is what it would be if it was started now; it only informs."""

    name: ClassVar[str] = "drift"
    condition: ClassVar[str] = RAY_CURRENT.name

    def __init__(
        self,
        *,
        raylet: Callable[[], Identity | None],
        book: StartBook,
        now: Callable[[], Snapshot | None],
        conditions: ConditionSet,
    ) -> None:
        """``raylet``: of the Ray that runs; ``now``: what a start at this moment would start from, if that is known."""
        self.wakeup = Wakeup()
        self._raylet = raylet
        self._book = book
        self._now = now
        self._conditions = conditions

    async def reconcile(self) -> float:
        # The packages may lie on a file server, which takes its time, or does not answer at all.
        verdict = await asyncio.to_thread(self._verdict)
        self._conditions.set(self.condition, *verdict)
        return _LOOK_S

    def _verdict(self) -> Verdict:
        raylet, now = self._raylet(), self._now()
        if raylet is None or now is None:
            return Verdict(Status.UNKNOWN, "RayNotRunning", "Ray does not run here")
        then = self._book.of(raylet)
        if then is None:
            return Verdict(
                Status.UNKNOWN, "StartNotNoted", "nobody noted what Ray was started from; a restart of it will"
            )
        return compare(then, now)
