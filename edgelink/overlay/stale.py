"""Connections of EasyTier that are dead although EasyTier does not know it yet.

A node that got another uplink, or was switched off, cannot say goodbye: whoever it was connected to keeps the old
connection for up to ten seconds, lists the node twice meanwhile, and may go on sending to the one that is gone.
EasyTier speaks on each connection every second; one on which nothing comes in while what was sent is not even
acknowledged is dead, and the kernel closes it on request (SOCK_DESTROY), as if its other end had.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from typing import Any

from pyroute2 import DiagSocket
from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST
from pyroute2.netlink.diag import SOCK_DESTROY, inet_diag_req
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.log import get_logger
from edgelink.process.ports import socket_inodes

_ESTABLISHED = 1
_WITH_TCP_INFO = 1 << 1  # INET_DIAG_INFO
_SILENT_MS = 2000
_log = get_logger("overlay")


def close_dead_connections(pid: int) -> list[str]:
    """Close the dead TCP connections of an EasyTier; their other ends. Blocks for some milliseconds.

    Nothing is closed where the kernel lacks INET_DIAG_DESTROY.
    """
    return _close(pid, _is_dead)


def close_connections_to(pid: int, others: Collection[tuple[str, int]]) -> list[str]:
    """Close the TCP connections of an EasyTier to these addresses and ports; as :func:`close_dead_connections`."""
    return _close(pid, lambda connection: (connection["idiag_dst"], connection["idiag_dport"]) in others)


def _close(pid: int, is_meant: Callable[[Any], bool]) -> list[str]:
    own = socket_inodes(pid)
    closed = []
    with DiagSocket() as diag:
        diag.bind()
        found = diag.get_sock_stats(
            family=socket.AF_INET, states=1 << _ESTABLISHED, protocol=socket.IPPROTO_TCP, extensions=_WITH_TCP_INFO
        )
        for connection in found:
            if connection["idiag_inode"] in own and is_meant(connection):
                try:
                    _destroy(diag, connection)
                except NetlinkError as error:
                    _log.warning("overlay.dead_connection_stays", error=str(error))
                    break
                closed.append(f"{connection['idiag_dst']}:{connection['idiag_dport']}")
    return closed


def _is_dead(connection: Any) -> bool:
    info = connection.get_attr("INET_DIAG_INFO")
    return bool(info and info["tcpi_last_data_recv"] > _SILENT_MS and info["tcpi_unacked"] and info["tcpi_backoff"])


def _destroy(diag: DiagSocket, connection: Any) -> None:
    request = inet_diag_req()
    request["sdiag_family"] = socket.AF_INET
    request["sdiag_protocol"] = socket.IPPROTO_TCP
    request["idiag_states"] = 1 << _ESTABLISHED
    for field in ("idiag_sport", "idiag_dport", "idiag_if", "idiag_cookie"):
        request[field] = connection[field]
    for field in ("idiag_src", "idiag_dst"):
        request[field] = (int.from_bytes(socket.inet_aton(connection[field]), "big"), 0, 0, 0)
    tuple(diag.nlm_request(request, SOCK_DESTROY, NLM_F_REQUEST | NLM_F_ACK))  # a generator
