"""Keep out who answers at another node's overlay address: no packet but echoes passes, and connections end.

Echoes stay open, so that the right node's next answer ends it (ADR 0041).
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

from pyroute2.netlink.exceptions import NetlinkError

from edgelink.log import get_logger
from edgelink.overlay.echo_wire import PORT
from edgelink.overlay.nft import MARK, address_set
from edgelink.overlay.sockets import destroy, diag_socket, established

ECHOES = "echoes"  # the address and our port of each question, so that nothing but its answer comes in
_ANSWER_S = 10  # longer than any answer is waited for
_log = get_logger("overlay")


def chains(device: str, impostors: Collection[IPv4Address]) -> str:
    """Return the chains that drop all but echoes from and to these addresses on ``device``, forwarded packets too."""
    if not impostors:
        return ""
    addresses = address_set(impostors)
    return f"""  set {ECHOES} {{
    type ipv4_addr . inet_service
    size 65535
    flags dynamic,timeout
    timeout {_ANSWER_S}s
  }}
  chain from_impostors {{
    type filter hook prerouting priority raw; policy accept;
    iifname "{device}" udp sport {PORT} ip saddr . udp dport @{ECHOES} accept comment "{MARK}"
    iifname "{device}" ip saddr {addresses} udp dport {PORT} accept comment "{MARK}"
    iifname "{device}" ip saddr {addresses} counter drop comment "{MARK}"
  }}
  chain to_impostors {{
    type filter hook postrouting priority filter; policy accept;
    oifname "{device}" ip daddr {addresses} udp dport {PORT} update @{ECHOES} {{ ip daddr . udp sport }} \
accept comment "{MARK}"
    oifname "{device}" ip daddr {addresses} udp sport {PORT} accept comment "{MARK}"
    oifname "{device}" ip daddr {addresses} counter drop comment "{MARK}"
  }}
"""


def close_connections_with(addresses: Collection[IPv4Address]) -> list[str]:
    """Close this machine's TCP connections with these addresses; their other ends. Blocks for some milliseconds.

    Ray's own are IPv6 sockets that speak IPv4. Nothing is closed where the kernel lacks INET_DIAG_DESTROY.
    """
    closed = []
    try:
        with diag_socket() as diag:
            for family in (socket.AF_INET, socket.AF_INET6):
                for connection in list(established(diag, family, half_closed=True)):
                    if _ipv4(connection["idiag_dst"]) in addresses:
                        destroy(diag, connection)
                        closed.append(f"{connection['idiag_dst']}:{connection['idiag_dport']}")
    except (OSError, NetlinkError) as error:
        _log.warning("overlay.impostors_connection_stays", error=str(error))
    return closed


def _ipv4(address: str) -> IPv4Address | None:
    found = ip_address(address)
    return found.ipv4_mapped if isinstance(found, IPv6Address) else found
