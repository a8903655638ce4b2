"""The run lock: whose run it is, also over a restart of the head daemon (ADR 0009, ADR 0019).

The lock is the request that the caller holds open. It is written down as well, with the caller's pid and start time:
while that very process lives, a daemon that was killed or upgraded under the run gives the lock to nobody else, and
the caller takes it up again. Where its process cannot be seen from here, as in another container, its user and the
random id of its run tell that it is the same one, for as long as the request is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from edgelink.api.server import Caller
from edgelink.clock import Clock
from edgelink.errors import ExitCode, TrainingError
from edgelink.facts.board import Board, Fact
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger
from edgelink.process import procfs
from edgelink.process.identity import Identity, identify, is_alive
from edgelink.process.pidfd import wait_for_end
from edgelink.ray_cluster.held_run import HeldRun, Ranks

RUN: Final[Fact[HeldRun | None]] = Fact("run")

log = get_logger("runs")


class RunInProgressError(TrainingError):
    """Another run holds the lock."""

    reason = "RunInProgress"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


class _Record(BaseModel):
    """What is on disk while the lock is held."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    holder: str
    process: dict[str, int | str] | None  # None: the caller's process cannot be seen from here
    ranks: Ranks | None = None
    nodes: tuple[str, ...] = ()  # that the run asks for, by node id; none: all
    placement: dict[str, Any] | None = None  # resolved; None: the run has no cluster file


class RunLock:
    """One holder at a time. ``on_release`` is called when the holder has gone, however it went."""

    def __init__(
        self, board: Board[Any], path: Path, clock: Clock, on_release: Callable[[], None], files: Files = AT_ONCE
    ) -> None:
        self._put_run = board.claim(RUN, "run lock")
        self._path = path
        self._files = files
        self._clock = clock
        self._on_release = on_release
        self._requests = 0  # open ones of the holder
        self._taken = asyncio.Event()
        self._is_kept = False
        self._unseen: tuple[int, str] | None = None  # user and run of a holder whose process cannot be seen
        self._record, self._process = self._read()
        if self._record is not None:
            self._show(self._record)
            self._taken.set()
            log.info("runs.lock_kept", holder=self._record.holder, why="it was held before this daemon started")

    @property
    def holder(self) -> str | None:
        """Who holds it, in words."""
        return self._record.holder if self._record else None

    @property
    def process(self) -> Identity | None:
        """The holder's process; None when nobody holds the lock, or it cannot be seen from here."""
        return self._process

    @property
    def ranks(self) -> Ranks | None:
        """What the run relies on, from its grant to its end."""
        return None if self._record is None else self._record.ranks

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the run asks for, by node id; none: all."""
        return () if self._record is None else self._record.nodes

    def select(self, nodes: tuple[str, ...]) -> None:
        """Remember which nodes the run asks for, by node id.

        Raises:
            NotRecordedError: it cannot be written, so that the next daemon would not know.
        """
        assert self._record is not None
        record = self._record.model_copy(update={"nodes": nodes})
        self._write(record, is_required=True)
        self._show(record)

    @property
    def placement(self) -> dict[str, Any] | None:
        """Where the granted run's processes are, as its plan says; None: it has no cluster file, or there is none."""
        return None if self._record is None else self._record.placement

    def grant(self, ranks: Ranks, placement: dict[str, Any] | None) -> None:
        """Remember the ranks that the granted run relies on, and where its processes are.

        Raises:
            NotRecordedError: the run that would begin must not rely on what the next daemon would not know.
        """
        assert self._record is not None
        record = self._record.model_copy(update={"ranks": ranks, "placement": placement})
        self._write(record, is_required=True)
        self._show(record)

    def use_ranks(self, ranks: Ranks) -> None:
        """Remember the ranks that a run under way relies on, which goes on whether they can be recorded or not."""
        assert self._record is not None
        if self.ranks != ranks:
            record = self._record.model_copy(update={"ranks": ranks})
            self._write(record, is_required=False)
            self._show(record)

    @contextmanager
    def held_by(self, caller: Caller, run_id: str | None = None, *, is_under_way: bool = False) -> Iterator[None]:
        """Hold it for ``caller``, for as long as at least one of its requests is open.

        Args:
            run_id: the caller's run; without one, a caller whose process cannot be seen gets no second request.
            is_under_way: the caller's driver runs already, whether the lock can be recorded or not.

        Raises:
            RunInProgressError: another process holds it.
            NotRecordedError: it cannot be recorded; the next daemon would give it to somebody else as well.
        """
        process = _process_of(caller)
        if self._record is None:
            self._take(caller, process, run_id, is_required=not is_under_way)
        else:
            self._refuse_others(caller, process, run_id)
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            if self._requests == 0 and not self._is_kept:
                self._release()

    def check(self, caller: Caller, run_id: str | None) -> None:
        """Refuse whom the lock is not for; it is neither taken nor released.

        A word in passing is no request that holds it, and may come before the holder has taken it up again with this
        daemon.

        Raises:
            RunInProgressError: another process holds it.
        """
        self._refuse_others(caller, _process_of(caller), run_id)

    def keep(self) -> None:
        """This daemon ends: requests that close from now on say nothing of their callers."""
        self._is_kept = True

    async def run(self) -> None:
        """Watch a holder whose request went down with a former daemon; ends by cancellation only."""
        while True:
            await self._taken.wait()
            self._taken.clear()
            process = self._process
            if process is not None:
                await wait_for_end(process)
                if self._process is process and self._requests == 0:
                    self._release()

    def _refuse_others(self, caller: Caller, process: Identity | None, run_id: str | None) -> None:
        is_holder = process == self._process if process else self._unseen == (caller.uid, run_id)
        if self._record is not None and not is_holder:
            raise RunInProgressError(
                f"a run is in progress on this head: {self._record.holder}",
                hint="wait for its end, or stop it (Ctrl+C there)",
            )

    def _take(self, caller: Caller, process: Identity | None, run_id: str | None, *, is_required: bool) -> None:
        holder = f"pid {caller.pid} of user id {caller.uid}, since {self._clock.now():%H:%M:%S} UTC"
        record = _Record(holder=holder, process=process.to_dict() if process else None)
        self._write(record, is_required=is_required)
        self._process = process
        self._show(record)
        self._unseen = (caller.uid, run_id) if process is None and run_id else None
        self._taken.set()

    def _release(self) -> None:
        holder, self._process, self._unseen = self.holder, None, None
        self._files.keep(self._path, None)
        self._show(None)
        log.info("runs.ended", holder=holder)
        self._on_release()

    def _show(self, record: _Record | None) -> None:
        self._record = record
        self._put_run(None if record is None else HeldRun(record.holder, record.ranks, record.nodes))

    def _write(self, record: _Record, *, is_required: bool) -> None:
        if record.process is not None:  # else nobody could tell whether the holder still lives
            write = self._files.require if is_required else self._files.keep
            write(self._path, record.model_dump_json())

    def _read(self) -> tuple[_Record | None, Identity | None]:
        try:
            record = _Record.model_validate_json(self._path.read_bytes())
            process = Identity.from_dict(record.process or {})
        except (FileNotFoundError, ValidationError, KeyError, TypeError, ValueError):
            return None, None
        if not is_alive(process):
            self._files.keep(self._path, None)
            return None, None
        return record, process


def _process_of(caller: Caller) -> Identity | None:
    """The process that called; None where its pid is somebody else's by now, or none of this pid namespace."""
    with suppress(ProcessLookupError):
        process = identify(caller.pid, "")
        if procfs.user_of(caller.pid) == caller.uid:
            return process
    return None
