"""What the kernel knows of the other nodes without a packet sent: its TCP connections with them.

Whose acknowledgement or data came a moment ago needs no echo. A connection that sends again and again what nobody
acknowledges is the first sign of a way that is cut, seconds before an echo that is not due yet would tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from pyroute2.netlink.exceptions import NetlinkError

from edgelink.overlay.sockets import diag_socket, established
from edgelink.process.ports import socket_inodes


@dataclass(frozen=True)
class Traffic:
    """One moment of it.

    Attributes:
        heard_s: by overlay address, seconds since its last acknowledgement or data on any connection.
        stuck: overlay addresses with a connection on which what was sent is sent again, unacknowledged.
        uplink_is_stuck: whether a connection of EasyTier's own is.
        sockets: by overlay address, the inodes of this machine's ends of the connections with it.
    """

    heard_s: Mapping[IPv4Address, float] = field(default_factory=dict)
    stuck: frozenset[IPv4Address] = frozenset()
    uplink_is_stuck: bool = False
    sockets: Mapping[IPv4Address, frozenset[int]] = field(default_factory=dict)

    def has_new(self, address: IPv4Address, before: Traffic) -> bool:
        """Whether there is a connection with this address that was not there before."""
        return not self.sockets.get(address, frozenset()) <= before.sockets.get(address, frozenset())


def look(network: IPv4Network, easytier_pid: int | None) -> Traffic:
    """The traffic of this machine's connections within ``network``. Blocks for milliseconds; costs no packet.

    Nothing is known where the kernel does not say.
    """
    heard_s: dict[IPv4Address, float] = {}
    stuck: set[IPv4Address] = set()
    sockets: dict[IPv4Address, frozenset[int]] = {}
    uplink_is_stuck = False
    try:
        easytiers = socket_inodes(easytier_pid) if easytier_pid is not None else set()
        with diag_socket() as diag:
            for found in established(diag):
                info = found.get_attr("INET_DIAG_INFO")
                if not info:
                    continue
                other = IPv4Address(found["idiag_dst"])
                is_stuck = bool(info["tcpi_unacked"] and info["tcpi_backoff"])
                if other in network and IPv4Address(found["idiag_src"]) in network:
                    since_s = min(info["tcpi_last_ack_recv"], info["tcpi_last_data_recv"]) / 1000
                    heard_s[other] = min(since_s, heard_s.get(other, since_s))
                    stuck |= {other} if is_stuck else set()
                    sockets[other] = sockets.get(other, frozenset()) | {found["idiag_inode"]}
                elif is_stuck and found["idiag_inode"] in easytiers:
                    uplink_is_stuck = True
    except (OSError, NetlinkError):
        return Traffic()
    return Traffic(heard_s, frozenset(stuck), uplink_is_stuck, sockets)
