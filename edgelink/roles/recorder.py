"""The flight recorder: what a node saw of itself, every few seconds, kept over restarts; `edgelink report` reads it.

JSON lines in the state directory, 0600, in two files of bounded size: hours, not days. A sample is written without
fsync: what the last seconds before a power cut were like is not worth a disk write each.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterator
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

log = get_logger("recorder")


class Recorder:
    """Writes samples for ever in :meth:`run`, and :meth:`note` at once what happens in between."""

    def __init__(
        self,
        directory: Path,
        clock: Clock,
        sample: Callable[[], dict[str, Any]],
        ways: Callable[[], Awaitable[list[dict[str, Any]]]],
        *,
        max_bytes: int = _MAX_BYTES,
    ) -> None:
        """``sample`` tells the state of the moment, ``ways`` on what way each other node is reached."""
        self._directory = directory
        self._clock = clock
        self._sample = sample
        self._ways = ways
        self._max_bytes = max_bytes
        self._outage = Outage(clock)  # of the disk

    async def run(self) -> None:
        """Ends by cancellation only."""
        self.note("started", pid=os.getpid())
        number = 0
        while True:
            ways = await self._ways() if number % _PATHS_EVERY == 0 else None
            self.note("sample", **self._sample(), **({} if ways is None else {"ways": ways}))
            number += 1
            await self._clock.sleep(_SAMPLE_S)

    def note(self, what: str, **fields: Any) -> None:
        """One line; a disk that is full costs the line, nothing else."""
        line = redact(json.dumps({"at": self._clock.now().isoformat(timespec="milliseconds"), "what": what, **fields}))
        try:
            self._append(line.encode() + b"\n")
        except (OSError, NotRecordedError) as error:
            if self._outage.is_news("not written"):
                log.warning("recorder.not_written", directory=str(self._directory), error=str(error))
            return
        if (lasted_s := self._outage.over()) is not None:
            log.info("recorder.written_again", directory=str(self._directory), lasted_s=lasted_s)

    def _append(self, line: bytes) -> None:
        newer, older = _files(private_directory(self._directory))
        descriptor = os.open(newer, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line)
            is_full = os.fstat(descriptor).st_size >= self._max_bytes
        finally:
            os.close(descriptor)
        if is_full:
            newer.replace(older)


def recorded(directory: Path, since: datetime) -> Iterator[str]:
    """The lines from ``since`` on, oldest first."""
    newer, older = _files(directory)
    for file in (older, newer):
        with suppress(FileNotFoundError), file.open(errors="replace") as lines:
            for line in lines:
                with suppress(ValueError, KeyError, TypeError):  # half a line, of a power cut
                    if datetime.fromisoformat(json.loads(line)["at"]) >= since:
                        yield line.rstrip("\n")


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
