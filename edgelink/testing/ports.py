"""A port for a server that a test starts later."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A TCP port of 127.0.0.1 on which nobody listens, and which the kernel gives to nobody else meanwhile.

    A port that was found and let go of again is soon somebody's: of another test's connection, for one. This one stays
    bound, so only who names it gets it, with ``SO_REUSEADDR``, as ``asyncio``, ``socket.create_server`` and every
    common server set it. Connections to it are refused until then.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
