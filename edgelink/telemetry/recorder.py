"""The flight recorder: what a node saw of itself, every few seconds, kept over restarts; `edgelink report` reads it.

JSON lines in the state directory, 0600, in two files of bounded size: hours, not days. A sample is written without
fsync: what the last seconds before a power cut were like is not worth a disk write each.

A list of a sample, such as the ways to all nodes, is written whole once a file; the lines after that tell under
``NAME_changed`` which rows are new or other ones, and under ``NAME_gone`` which there are no more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from edgelink.clock import Clock
from edgelink.errors import NotRecordedError
from edgelink.files import private_directory
from edgelink.log import get_logger, redact
from edgelink.outage import Outage
from edgelink.process import identity

_SAMPLE_S = 5.0
_PATHS_EVERY = 6  # samples: EasyTier is asked through a process of its own
_MAX_BYTES = 4 * 1024 * 1024  # a file; some ten hours
_BEGINNING = 80  # characters of a line: when, and of what kind it is
# Of a way: what differs at every look, and from where on it tells something.
_COUNTERS = {"received", "sent"}
_LATENCY_NOISE_MS = 10.0
_LATENCY_NOISE = 0.5  # of what it was
_LOSS_NOISE = 0.1

log = get_logger("recorder")

Row = str | dict[str, Any]  # of a list; by itself, or by its overlay address


class Recorder:
    """Writes samples for ever in :meth:`run`, and :meth:`note` at once what happens in between."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        *,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        self.directory = directory
        self._clock = clock
        self._max_bytes = max_bytes
        self._outage = Outage(clock)  # of the disk
        self._written: dict[str, dict[str, Row]] = {}  # the lists that the file holds, as their rows were told last

    async def run(
        self, sample: Callable[[], dict[str, Any]], ways: Callable[[], Awaitable[list[dict[str, Any]]]]
    ) -> None:
        """Write samples until the task is cancelled.

        Args:
            sample: returns the state of the moment.
            ways: returns on what way each other node is reached.
        """
        self.note("started", pid=os.getpid())
        number = 0
        while True:
            reached = {"ways": await ways()} if number % _PATHS_EVERY == 0 else {}
            told: dict[str, Any] = {}
            for key, value in {**sample(), **reached}.items():
                told |= self._news(key, value) if isinstance(value, list) else {key: value}
            self.note("sample", **told)
            number += 1
            await self._clock.sleep(_SAMPLE_S)

    def note(self, what: str, **fields: Any) -> None:
        """One line; a disk that is full costs the line, nothing else."""
        line = redact(json.dumps({"at": self._clock.now().isoformat(timespec="milliseconds"), "what": what, **fields}))
        try:
            self._append(line.encode() + b"\n")
        except (OSError, NotRecordedError) as error:
            self._written.clear()
            if self._outage.is_news("not written"):
                log.warning("recorder.not_written", directory=str(self.directory), error=str(error))
            return
        if (lasted_s := self._outage.over()) is not None:
            log.info("recorder.written_again", directory=str(self.directory), lasted_s=lasted_s)

    def _append(self, line: bytes) -> None:
        newer, older = _files(private_directory(self.directory))
        descriptor = os.open(newer, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a power cut, or a full disk
            os.write(descriptor, b"\n" + line if is_torn else line)
            is_full = os.fstat(descriptor).st_size >= self._max_bytes
        finally:
            os.close(descriptor)
        if is_full:
            newer.replace(older)
            self._written.clear()

    def _news(self, name: str, rows: list[Row]) -> dict[str, Any]:
        """The whole list where the file has none yet, else what is another one than it says."""
        before, now = self._written.get(name), {_key(row): row for row in rows}
        if not before or not now:
            self._written[name] = now
            return {name: rows}
        changed = {key: row for key, row in now.items() if key not in before or _is_another(before[key], row)}
        gone = [key for key in before if key not in now]
        self._written[name] = {key: changed.get(key) or before[key] for key in now}
        news = {f"{name}_changed": [*changed.values()], f"{name}_gone": gone}
        return {key: found for key, found in news.items() if found}


def recorded(directory: Path, since: datetime) -> Iterator[str]:
    """The lines from ``since`` on, oldest first. Before them one that tells what the lists held by then."""
    lists: dict[str, dict[str, Row]] = {}
    before = ""
    for line, entry in _entries(directory):
        if datetime.fromisoformat(entry["at"]) < since:
            _follow(lists, entry)
            before = entry["at"]
            continue
        if any(lists.values()):
            yield json.dumps({"at": before, "what": "before", **{name: [*of.values()] for name, of in lists.items()}})
            lists = {}
        yield line


def noted(directory: Path, since: datetime, kinds: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The lines of these kinds since then, oldest first. Most lines are samples, which are not even parsed.

    The last line before each start is told, too, and the last of all: until then somebody looked.
    """
    marks = tuple(f'"what": "{kind}"' for kind in ("started", *kinds))
    before = ""
    for line in _lines(directory):
        beginning = line[:_BEGINNING]
        if not any(mark in beginning for mark in marks):
            before = line
            continue
        wanted = (before, line) if marks[0] in beginning else (line,)
        before = ""
        yield from _parsed_since(wanted, since)
    yield from _parsed_since((before,), since)


def _parsed_since(lines: Iterable[str], since: datetime) -> Iterator[dict[str, Any]]:
    entries = (entry for line in lines if (entry := _parsed(line)) is not None)
    yield from (entry for entry in entries if datetime.fromisoformat(entry["at"]) >= since)


def recorded_since(directory: Path) -> str | None:
    """When the oldest line was written; None: there is none."""
    return next((str(entry["at"]) for _, entry in _entries(directory)), None)


def machine_load() -> dict[str, Any]:
    """How busy this machine is, and how much of it is this daemon."""
    own = identity.usage(os.getpid())
    found: dict[str, Any] = {
        "load1": round(os.getloadavg()[0], 2),
        "daemon_cpu_s": round(own.cpu_s, 2),
        "daemon_rss_mb": round(own.rss_bytes / 2**20, 1),
    }
    with suppress(OSError, IndexError, ValueError):
        available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line)
        found["memory_available_mb"] = int(available.split()[1]) // 1024
    return found


def _files(directory: Path) -> tuple[Path, Path]:
    return directory / "flight.jsonl", directory / "flight.jsonl.1"


def _lines(directory: Path) -> Iterator[str]:
    newer, older = _files(directory)
    for file in (older, newer):
        with suppress(FileNotFoundError), file.open(errors="replace") as lines:
            yield from lines


def _entries(directory: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in _lines(directory):
        if (entry := _parsed(line)) is not None:
            yield line.rstrip("\n"), entry


def _parsed(line: str) -> dict[str, Any] | None:
    """None: half a line, of a power cut."""
    try:
        entry = json.loads(line)
        datetime.fromisoformat(entry["at"])
    except (ValueError, KeyError, TypeError):
        return None
    return dict(entry)


def _follow(lists: dict[str, dict[str, Row]], entry: dict[str, Any]) -> None:
    """Have ``lists`` be as they were when ``entry`` was written."""
    for key, rows in entry.items():
        if not isinstance(rows, list):
            continue
        if (name := key.removesuffix("_gone")) != key:
            for gone in rows:
                lists.get(name, {}).pop(gone, None)
        elif (name := key.removesuffix("_changed")) != key:
            lists.setdefault(name, {}).update((_key(row), row) for row in rows)
        else:
            lists[key] = {_key(row): row for row in rows}


def _key(row: Row) -> str:
    return row if isinstance(row, str) else str(row["overlay_ip"])


def _is_another(before: Row, now: Row) -> bool:
    """Whether a row tells something new; noise and what always grows does not."""
    if isinstance(before, str) or isinstance(now, str):
        return before != now
    noise = {
        "latency_ms": max(_LATENCY_NOISE_MS, _LATENCY_NOISE * (before.get("latency_ms") or 0.0)),
        "loss": _LOSS_NOISE,
    }
    for key in now.keys() - _COUNTERS:
        old, new = before.get(key), now[key]
        if key in noise and old is not None and new is not None:
            if abs(new - old) > noise[key]:
                return True
        elif old != new:
            return True
    return False
