"""A machine that slept, a daemon that was held up, a wall clock that was set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from edgelink.standstill import Standstill
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with


class Watched:
    def __init__(self) -> None:
        self.clock, self.board = FakeClock(), board_with()
        self.standstill = Standstill(self.board, self.clock)

    @property
    def count(self) -> int:
        return self.board.facts.standstills


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    task = asyncio.create_task(watched.standstill.run())
    await watched.clock.advance(5)
    yield watched
    task.cancel()


async def test_a_sleep_is_told_once_and_with_its_length(watched: Watched) -> None:
    """Within a second of the machine's being awake again, whatever its timers think."""
    assert watched.count == 0
    watched.clock.sleep_machine(3600)
    with capture_logs() as logs:
        await watched.clock.advance(1)
    assert [(entry["event"], entry["for_s"]) for entry in logs] == [("daemon.stood_still", pytest.approx(3600))]
    assert watched.count == 1
    await watched.clock.advance(60)
    assert watched.count == 1


async def test_a_stepped_wall_clock_is_logged_and_wakes_nobody(watched: Watched) -> None:
    """Boards boot in 1970 and learn the time later; no duration here depends on it."""
    with capture_logs() as logs:
        for seconds in (50 * 365 * 86400, -7200):
            watched.clock.step_wall_clock(seconds)
            await watched.clock.advance(2)
    assert [(entry["event"], entry["by_s"]) for entry in logs] == [
        ("clock.stepped", 50 * 365 * 86400),
        ("clock.stepped", -7200),
    ]
    assert watched.count == 0
