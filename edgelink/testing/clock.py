"""A clock that moves only when told to, and a patient assertion."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

_SETTLE_TURNS = 20  # event loop turns that let woken tasks run until they wait again


class FakeClock:
    """A :class:`edgelink.clock.Clock` driven by :meth:`advance`."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_s = 0.0
        self._slept_s = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def monotonic_s(self) -> float:
        return self._elapsed_s

    def boottime_s(self) -> float:
        return self._elapsed_s + self._slept_s

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.boottime_s())

    def sleep_machine(self, seconds: float) -> None:
        """The machine is suspended: no timer goes on, and afterwards it is later."""
        self._slept_s += seconds

    def step_wall_clock(self, seconds: float) -> None:
        """Somebody sets the wall clock."""
        self._start += timedelta(seconds=seconds)

    def block(self, seconds: float) -> None:
        """As :meth:`edgelink.clock.SystemClock.block`: time goes by where it is waited for."""
        self._elapsed_s += seconds

    async def sleep(self, seconds: float) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._elapsed_s + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Move time on, waking due sleepers in order and letting each run until it waits again."""
        target_s = self._elapsed_s + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target_s:
            due_s, _, future = heapq.heappop(self._sleepers)
            self._elapsed_s = max(self._elapsed_s, due_s)
            if not future.done():
                future.set_result(None)
            await self._settle()
        self._elapsed_s = max(self._elapsed_s, target_s)  # somebody else may have moved it further meanwhile

    async def _settle(self) -> None:
        for _ in range(_SETTLE_TURNS):
            await asyncio.sleep(0)


async def eventually(predicate: Callable[[], object], timeout_s: float = 20.0) -> None:
    """Wait until ``predicate()`` is truthy; AssertionError when it does not become so in time."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    pause_s = 0.001
    while not predicate():
        if loop.time() > deadline_s:
            raise AssertionError(f"not true within {timeout_s} s")
        await asyncio.sleep(pause_s)
        pause_s = min(1.5 * pause_s, 0.02)
