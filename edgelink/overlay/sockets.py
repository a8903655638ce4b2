"""The kernel's own list of this machine's TCP connections (IPv4), with what it knows of each."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2 import DiagSocket

ESTABLISHED = 1
_TCP_INFO = 1 << 1  # INET_DIAG_INFO
_CONGESTION = 1 << 3  # INET_DIAG_CONG


@contextmanager
def diag_socket() -> Iterator[DiagSocket]:
    """Open the way to ask. Raises OSError, NetlinkError."""
    with DiagSocket() as diag:
        diag.bind()
        yield diag


def established(diag: DiagSocket) -> Iterator[Any]:
    """Yield each established connection, with its tcp_info and congestion control. Raises NetlinkError."""
    yield from diag.get_sock_stats(
        family=socket.AF_INET,
        states=1 << ESTABLISHED,
        protocol=socket.IPPROTO_TCP,
        extensions=_TCP_INFO | _CONGESTION,
    )
