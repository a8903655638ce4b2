"""A TCP connection to a host that may have several addresses, some of which lead nowhere."""

from __future__ import annotations

import asyncio
import socket

from aiohappyeyeballs import start_connection

_NEXT_AFTER_S = 0.25  # RFC 8305: an address that has not answered by then gets company of the next


async def dial(host: str, port: int) -> socket.socket:
    """The connection of the first address that answers; cancel-safe.

    One after the other they would not do: an IPv6 address comes first, as a rule, and where a router or a firewall
    drops what goes there it would take all the time that there is.

    Raises:
        OSError: there is no such name, or none of its addresses answers.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # an empty label, or one of more than 63 characters
        raise OSError(f"{host} is no name of a host") from error
    return await start_connection(found, happy_eyeballs_delay=_NEXT_AFTER_S)
