"""Whether another node answers over the overlay, asked from our own overlay address."""

from __future__ import annotations

import asyncio
import functools
import socket
from contextlib import suppress
from ipaddress import IPv4Address

from icmplib import ICMPLibError, async_ping

from edgelink.tasks import apart
from edgelink.timeouts import timeout

HEADERS_BYTES = 28  # IPv4 and ICMP


async def ping(
    source: IPv4Address | None, target: IPv4Address, timeout_s: float, *, payload_bytes: int = 56
) -> float | None:
    """Round-trip time in milliseconds; None when there was no answer in time or ``source`` is not ours (yet).

    Without a ``source`` the kernel chooses. Without CAP_NET_RAW, as in a batch job, this takes the kernel's
    `net.ipv4.ping_group_range` to let this user ping.
    """
    try:
        host = await apart(
            async_ping(
                str(target),
                count=1,
                timeout=timeout_s,
                source=None if source is None else str(source),
                payload_size=payload_bytes,
                privileged=may_open_raw(),
            )
        )
    except (ICMPLibError, OSError):
        return None
    return float(host.avg_rtt) if host.is_alive else None


@functools.cache
def may_open_raw() -> bool:
    """Whether we have CAP_NET_RAW here."""
    return _may_open(socket.SOCK_RAW)


def may_ping_as_anybody() -> bool:
    """Whether the kernel's `net.ipv4.ping_group_range` lets us ping without CAP_NET_RAW."""
    return _may_open(socket.SOCK_DGRAM)


def _may_open(kind: socket.SocketKind) -> bool:
    try:
        socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP).close()
    except PermissionError:
        return False
    return True


async def heard_pings(timeout_s: float) -> set[IPv4Address]:
    """Who pings this machine (or answers to its pings) within ``timeout_s``: what tells a way that works in one
    direction from one that is cut. Needs CAP_NET_RAW. Raises OSError."""
    loop = asyncio.get_running_loop()
    heard = set()
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as listener:
        listener.setblocking(False)
        with suppress(TimeoutError):
            async with timeout(timeout_s):
                while True:
                    packet = await loop.sock_recv(listener, 64)
                    heard.add(IPv4Address(packet[12:16]))  # the source in its IPv4 header
    return heard
