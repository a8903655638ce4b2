"""How many connections a daemon keeps open. Each takes one of its descriptors, of which it has often 1024 for all that
it does: without a bound, whoever may connect ends it by doing nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable

from aiohttp import web

_UCRED = struct.Struct("3i")
_Factory = Callable[[], asyncio.BaseProtocol]


def ids_of(connection: socket.socket) -> tuple[int, int, int]:
    """Process, user and group at the other end of a unix socket, as the kernel knows them."""
    return _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))


def newest(server: web.Server, most: int, known: set[asyncio.BaseProtocol]) -> _Factory:
    """For connections of anybody: beyond ``most`` the oldest is closed, so that idle ones keep nobody out, and one of
    ``known``, which are somebody's, only where there is no other. Those of them that have gone are taken out of it."""

    def accept() -> asyncio.BaseProtocol:
        connections = server.connections
        known.intersection_update(connections)
        connections.sort(key=known.__contains__)  # in each half still the oldest first
        for connection in connections[: max(0, len(connections) - most + 1)]:
            connection.force_close()
        return server()

    return accept


def few_of_each_user(server: web.Server, most: int) -> _Factory:
    """For a unix socket: a user has ``most`` at a time, and is refused more, for an old one may hold a run open. Root
    and whom the daemon runs as have any number."""
    return lambda: _Door(server, most)


class _Door(asyncio.Protocol):
    """Lets a connection in, or ends it, once it is known whose it is."""

    def __init__(self, server: web.Server, most: int) -> None:
        self._server = server
        self._most = most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        uid = _user(transport)
        if uid not in (0, os.geteuid()):
            others = (handler.transport for handler in self._server.connections)
            if sum(other is not None and _user(other) == uid for other in others) >= self._most:
                transport.abort()
                return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)


def _user(transport: asyncio.BaseTransport) -> int:
    return ids_of(transport.get_extra_info("socket"))[1]
