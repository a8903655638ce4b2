"""The TCP connections of the apps on this machine, by its kernel, and the end of those whose other end is gone.

Whoever may have a program run here learns no more by it than that program could find out, and can end no connection
but those of that program's user.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, ip_address
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError

from edgelink.errors import EdgelinkError
from edgelink.launch.app_connections_asked import ConnectionsQuestion, Ends
from edgelink.overlay.sockets import destroy, diag_socket, established


class ConnectionsUnknownError(EdgelinkError):
    """The kernel of this machine does not tell its connections, or ends none."""

    reason = "ConnectionsUnknown"


def connections(question: ConnectionsQuestion, own: IPv4Address, uid: int | None) -> dict[Ends, int]:
    """Return the bytes of each connection that ``question`` is about, after closing those that it names.

    Blocks for milliseconds. A connection that is closed is still in the answer.

    Args:
        own: this node's overlay address. No connection at another one counts.
        uid: whose connections may be closed. None: everybody's.

    Raises:
        ConnectionsUnknownError: the kernel says nothing.
    """
    found = {}
    try:
        with diag_socket() as diag:
            for family in (socket.AF_INET, socket.AF_INET6):
                for each in established(diag, family, half_closed=True):
                    ends = (_end(each, "src"), _end(each, "dst"))
                    if not _is_meant(each, question, own):
                        continue
                    info = each.get_attr("INET_DIAG_INFO") or {}
                    found[ends] = info.get("tcpi_bytes_acked", 0) + info.get("tcpi_bytes_received", 0)
                    if ends in question.closes and uid in (None, each["idiag_uid"]):
                        destroy(diag, each)
    except (OSError, NetlinkError) as error:
        raise ConnectionsUnknownError(
            f"the kernel does not tell or end connections: {error}",
            hint="it needs INET_DIAG, and INET_DIAG_DESTROY to end one",
        ) from error
    return found


def _is_meant(each: Any, question: ConnectionsQuestion, own: IPv4Address) -> bool:
    other = str(_address(each, "dst"))
    return (
        _address(each, "src") == own
        and question.peer in (None, other)
        and not {each["idiag_sport"], each["idiag_dport"]}.isdisjoint(question.ports)
    )


def _address(each: Any, which: str) -> IPv4Address | None:
    """Return an end's address, also where an IPv6 socket has it. None: it is a true IPv6 address."""
    address = ip_address(each[f"idiag_{which}"])
    return address if isinstance(address, IPv4Address) else address.ipv4_mapped


def _end(each: Any, which: str) -> str:
    return f"{_address(each, which)}:{each[f'idiag_{which[0]}port']}"
