"""Addresses of relays that are named by a host: one look-up, bounded in time, for all who need it."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from edgelink.timeouts import timeout


async def ipv4_addresses(host: str, timeout_s: float = 1.0) -> list[str]:
    """Return the IPv4 addresses of ``host``, each once, in the resolver's order.

    An address is its own answer. The list is empty when DNS does not know the host or does not answer in time.
    """
    with suppress(OSError, TimeoutError, UnicodeError):  # the last: an empty or too long label
        async with timeout(timeout_s):
            loop = asyncio.get_running_loop()
            answers = await loop.getaddrinfo(host, None, family=socket.AF_INET, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(answer[4][0]) for answer in answers))
    return []
