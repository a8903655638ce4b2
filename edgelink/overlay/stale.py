"""Connections of EasyTier that are dead although EasyTier does not know it yet.

A node that got another uplink, or was switched off, cannot say goodbye: whoever it was connected to keeps the old
connection for up to ten seconds, lists the node twice meanwhile, and may go on sending to the one that is gone.
EasyTier speaks on each connection every second; one on which nothing comes in while what was sent is not even
acknowledged is dead, and the kernel closes it on request (SOCK_DESTROY), as if its other end had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from pyroute2 import DiagSocket
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.log import get_logger
from edgelink.overlay.sockets import destroy, diag_socket, established
from edgelink.process.ports import socket_inodes

_SILENT_MS = 2000
_FRESH_MS = 1200  # the other end speaks every second; a silent node is noticed 1.5 s after a cut at the earliest
_HOLE_TRIES = 2  # of one segment; a single loss is what networks do
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
    closed = []
    with diag_socket() as diag:
        for connection in _connections_of(pid, diag):
            if is_meant(connection):
                try:
                    destroy(diag, connection)
                except NetlinkError as error:
                    _log.warning("overlay.dead_connection_stays", error=str(error))
                    break
                closed.append(_other_end(connection))
    return closed


def black_holes(pid: int) -> list[str]:
    """Return the other ends to which an EasyTier's full packets do not get through, while theirs arrive here.

    None is known where the kernel does not say.
    """
    try:
        with diag_socket() as diag:
            return [_other_end(connection) for connection in _connections_of(pid, diag) if _is_black_hole(connection)]
    except (OSError, NetlinkError):
        return []


class Controlled(NamedTuple):
    """A TCP connection of an EasyTier and its congestion control."""

    local_port: int
    other_end: str
    control: str


def congestion_controls(pid: int) -> list[Controlled]:
    """The congestion control of each TCP connection of an EasyTier."""
    with diag_socket() as diag:
        return [
            Controlled(int(found["idiag_sport"]), _other_end(found), str(found.get_attr("INET_DIAG_CONG")))
            for found in _connections_of(pid, diag)
        ]


def _connections_of(pid: int, diag: DiagSocket) -> list[Any]:
    own = socket_inodes(pid)
    return [connection for connection in established(diag) if connection["idiag_inode"] in own]


def _other_end(connection: Any) -> str:
    return f"{connection['idiag_dst']}:{connection['idiag_dport']}"


def _is_dead(connection: Any) -> bool:
    info = connection.get_attr("INET_DIAG_INFO")
    return bool(info and info["tcpi_last_data_recv"] > _SILENT_MS and info["tcpi_unacked"] and info["tcpi_backoff"])


def _is_black_hole(connection: Any) -> bool:
    """EasyTier on the other end speaks every second. In an outage its packets stay away as well."""
    info = connection.get_attr("INET_DIAG_INFO")
    return bool(
        info
        and info["tcpi_last_data_recv"] <= _FRESH_MS
        and info["tcpi_unacked"]
        and info["tcpi_backoff"] >= _HOLE_TRIES
    )
