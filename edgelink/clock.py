"""The only place that reads clocks and sleeps.

Durations are measured with the monotonic clock; wall time is only for records shown to people and for a token's
time to live, which the relay alone judges. Everything that waits takes a :class:`Clock`, so that tests can use
:class:`edgelink.testing.FakeClock`.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Time as the daemon sees it."""

    def monotonic_s(self) -> float:
        """Seconds on a clock that never jumps."""

    def boottime_s(self) -> float:
        """The same, but it goes on while the machine sleeps."""

    def now(self) -> datetime:
        """Wall time, UTC."""

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""


class SystemClock:
    """The real clock."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boottime_s(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        import asyncio  # half of what the runner of a program costs, which has no event loop

        await asyncio.sleep(seconds)

    def block(self, seconds: float) -> None:
        """Wait in code that has no event loop: command lines and the lab, never a daemon."""
        time.sleep(seconds)
