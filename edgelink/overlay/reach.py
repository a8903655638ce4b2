"""Whether another node answers over the overlay, asked from our own overlay address."""

from __future__ import annotations

from ipaddress import IPv4Address

from icmplib import ICMPLibError, async_ping

HEADERS_BYTES = 28  # IPv4 and ICMP


async def ping(source: IPv4Address, target: IPv4Address, timeout_s: float, *, payload_bytes: int = 56) -> float | None:
    """Round-trip time in milliseconds; None when there was no answer in time or ``source`` is not ours (yet)."""
    try:
        host = await async_ping(str(target), count=1, timeout=timeout_s, source=str(source), payload_size=payload_bytes)
    except (ICMPLibError, OSError):
        return None
    return float(host.avg_rtt) if host.is_alive else None
