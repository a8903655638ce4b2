"""Where a daemon serves HTTP: on loopback, and where it is wanted on the overlay's address; never to anybody else.

The socket on the overlay's address is bound to the overlay's device as well: an address alone is answered on every
device of the machine (the kernel is a weak host), so a neighbour on the LAN could reach it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address

from aiohttp import web

from edgelink.api.connection_limit import newest
from edgelink.clock import Clock
from edgelink.outage import Outage

LOOPBACK = IPv4Address("127.0.0.1")
MOST_CONNECTIONS = 128  # of one daemon's metrics, or page


@dataclass(frozen=True)
class Place:
    """Where to listen; ``device`` by name and index: another index is another device."""

    address: IPv4Address
    device: str = ""
    index: int = 0


class Sites:
    """The sockets of one runner, all on one port."""

    def __init__(
        self,
        runner: web.AppRunner,
        port: int,
        clock: Clock,
        told: Callable[[Place, OSError | None], None],
        known: set[asyncio.BaseProtocol] | None = None,
    ) -> None:
        """``told`` of each place that is served now, and of each new reason why one is not; ``known``: connections
        that strangers cannot have closed by connecting (:func:`edgelink.api.connection_limit.newest`)."""
        self._runner = runner
        self._port = port
        self._clock = clock
        self._told = told
        self._known = set() if known is None else known
        self._listeners: dict[Place, asyncio.Server] = {}
        self._outages: dict[IPv4Address, Outage] = {}

    async def follow(self, wanted: Sequence[Place]) -> None:
        """Listen where it is wanted now, and nowhere else."""
        for place in [place for place in self._listeners if place not in wanted]:
            self._listeners.pop(place).close()
        for place in wanted:
            if place not in self._listeners:
                await self._listen(place)

    def close(self) -> None:
        """Listen nowhere; connections that are there are the runner's to end."""
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    async def _listen(self, place: Place) -> None:
        outage = self._outages.setdefault(place.address, Outage(self._clock))
        assert self._runner.server is not None
        accept = newest(self._runner.server, MOST_CONNECTIONS, self._known)
        try:
            listener = listening_socket(place, self._port)
        except OSError as error:
            if outage.is_news(str(error.errno)):
                self._told(place, error)
            return
        self._listeners[place] = await asyncio.get_running_loop().create_server(accept, sock=listener)
        outage.over()
        self._told(place, None)


def listening_socket(place: Place, port: int) -> socket.socket:
    """Listens there; with a device for what comes in by that device only. Raises OSError."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if place.device:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, place.device.encode())
        listener.bind((str(place.address), port))
        listener.listen(64)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
