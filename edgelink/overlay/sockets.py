"""The kernel's own list of this machine's TCP connections, with what it knows of each, and their end on request."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyroute2 import DiagSocket
from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST
from pyroute2.netlink.diag import SOCK_DESTROY, inet_diag_req
from pyroute2.netlink.exceptions import NetlinkError

ESTABLISHED = 1
_HALF_CLOSED = 1 << 4 | 1 << 5 | 1 << 8 | 1 << 9 | 1 << 11  # both FIN_WAITs, CLOSE_WAIT, LAST_ACK, CLOSING
_TCP_INFO = 1 << 1  # INET_DIAG_INFO
_CONGESTION = 1 << 3  # INET_DIAG_CONG
_HEADER_BYTES = 16  # of struct nlmsghdr


@contextmanager
def diag_socket() -> Iterator[DiagSocket]:
    """Open the way to ask. Raises OSError, NetlinkError."""
    with DiagSocket() as diag:
        diag.bind()
        yield diag


def established(diag: DiagSocket, family: int = socket.AF_INET, *, half_closed: bool = False) -> Iterator[Any]:
    """Yield each established connection, with its tcp_info and congestion control. Raises NetlinkError.

    ``half_closed``: also those that one side has closed, and on which the kernel may still send what is left.
    """
    yield from diag.get_sock_stats(
        family=family,
        states=1 << ESTABLISHED | (_HALF_CLOSED if half_closed else 0),
        protocol=socket.IPPROTO_TCP,
        extensions=_TCP_INFO | _CONGESTION,
    )


def destroy(diag: DiagSocket, connection: Any) -> None:
    """Have the kernel close a connection that was listed, as if its other end had. One that is gone is closed.

    Raises NetlinkError: the kernel lacks INET_DIAG_DESTROY, or we may not.
    """
    family = connection["idiag_family"]
    request = inet_diag_req()
    request["sdiag_family"] = family
    request["sdiag_protocol"] = socket.IPPROTO_TCP
    request["idiag_states"] = 1 << ESTABLISHED
    for field in ("idiag_sport", "idiag_dport", "idiag_if", "idiag_cookie"):
        request[field] = connection[field]
    for field in ("idiag_src", "idiag_dst"):
        request[field] = struct.unpack("!4I", socket.inet_pton(family, connection[field]).ljust(16, b"\0"))
    for answer in diag.nlm_request(request, SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK):
        # pyroute2 takes no errors out of answers of this kind.
        (error,) = struct.unpack_from("=i", answer.data, answer.offset + _HEADER_BYTES)
        if error not in (0, -errno.ENOENT):
            raise NetlinkError(-error, os.strerror(-error))
