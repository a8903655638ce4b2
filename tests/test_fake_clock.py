"""The clock that tests move."""

from __future__ import annotations

import asyncio

from edgelink.testing import FakeClock


async def test_two_who_move_it_at_once_never_turn_it_back() -> None:
    """A ticker that began before somebody let an hour pass ends after it; a limit by time would then last that hour."""
    clock = FakeClock()
    await asyncio.gather(clock.advance(3600), clock.advance(1))
    assert clock.monotonic_s() == 3600
