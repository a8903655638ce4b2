"""Pings: what becomes of whoever waits for their answer."""

from __future__ import annotations

import asyncio
from ipaddress import IPv4Address
from typing import Any

import pytest

from edgelink.overlay import reach


async def test_who_is_cancelled_in_the_moment_of_the_answer_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """icmplib's asyncio.wait_for forgets it before Python 3.12: a daemon that watches its paths would never stop."""
    asked = asyncio.Event()

    async def async_ping(*_arguments: object, **_options: object) -> Any:
        try:
            asked.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return type("Host", (), {"is_alive": True, "avg_rtt": 1.0})

    monkeypatch.setattr(reach, "async_ping", async_ping)
    ping = asyncio.ensure_future(reach.answers_ping(IPv4Address("192.0.2.1"), 60))
    await asked.wait()
    ping.cancel()
    await asyncio.wait([ping])
    assert ping.cancelled()
