"""Have EasyTier give up the UDP connections to a peer that is known to be dead.

Over UDP nobody tells EasyTier that the other end's process is gone: it finds out by its own pings after 7 to 8 s, on an
idle connection after up to 39 s. Until then the node that has restarted is listed twice, and which of the two gets its
packets is chance (the order of a hash map). Its command line closes no connection, its sockets are not connected,
so that the kernel has nothing to close (SOCK_DESTROY) and ICMP errors do not reach it. But a connection on which
the kernel refuses to send is gone at once: so a rule of nftables refuses what goes to exactly these other ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any
from urllib.parse import urlsplit

from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.nft import Table
from edgelink.overlay.rpc_guard import DEAD_PATHS
from edgelink.overlay.status import ask, each_row, peers

# Longer than EasyTier keeps a dead connection; ports are not used again by then, or hardly ever.
_REFUSED_S = 60
_TRIES = 5  # a packet has to be sent before EasyTier notices

Provoke = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class UdpConnection:
    """One of EasyTier's, to the peer with this id: our port, and its other end (IPv4)."""

    peer_id: str
    local_port: int
    remote: IPv4Address
    remote_port: int

    def __str__(self) -> str:
        return f"{self.remote}:{self.remote_port}"


def parse_connections(text: str) -> list[UdpConnection]:
    """The UDP connections in what ``easytier-cli -v -o json peer`` says; pure. Raises OverlayError where it is none."""
    ends = [end for found in each_row(_ends_of, text) for end in found]
    return [connection for end in ends if (connection := _udp_connection(*end)) is not None]


def _ends_of(pair: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Whose connections they are, and the URLs of their ends; ``peer`` is null of who is reached through another."""
    connections = (pair.get("peer") or {}).get("conns") or []
    tunnels = [(str(connection["peer_id"]), connection.get("tunnel") or {}) for connection in connections]
    return [(peer_id, _url(tunnel, "local_addr"), _url(tunnel, "remote_addr")) for peer_id, tunnel in tunnels]


def _url(tunnel: dict[str, Any], name: str) -> str:
    return str((tunnel.get(name) or {}).get("url", ""))


def _udp_connection(peer_id: str, local_url: str, remote_url: str) -> UdpConnection | None:
    try:
        local, remote = urlsplit(local_url), urlsplit(remote_url)
        if remote.scheme == "udp" and local.port and remote.port:
            return UdpConnection(peer_id, local.port, IPv4Address(remote.hostname or ""), remote.port)
    except ValueError:
        pass  # a name or IPv6: nothing that hole punching makes
    return None


async def close_paths(
    binary: EasyTierBinary, rpc_port: int, table: Table, peer_id: str, overlay_ip: IPv4Address, provoke: Provoke
) -> list[str]:
    """Close the UDP connections of the EasyTier on this machine to a peer that is dead; their other ends.

    Args:
        table: :func:`edgelink.overlay.rpc_guard.rpc_guard`, which is in place around EasyTier.
        overlay_ip: of the node that says that ``peer_id`` was its own; where EasyTier lists another, nothing is done.
        provoke: have something sent to that node.

    Raises:
        OverlayError, EasyTierNotFoundError: EasyTier does not answer.
        FirewallError, MissingDependencyError: nftables refused.
    """

    async def connections() -> list[UdpConnection]:
        listed = parse_connections(await ask(binary, rpc_port, "-v", "peer"))
        return [connection for connection in listed if connection.peer_id == peer_id]

    rows, found = await asyncio.gather(peers(binary, rpc_port), connections())
    if not found or not any(row.peer_id == peer_id and row.ipv4 == overlay_ip for row in rows):
        return []
    await table.add_elements(
        DEAD_PATHS, [f"{c.remote} . {c.remote_port} . {c.local_port} timeout {_REFUSED_S}s" for c in found]
    )
    for _ in range(_TRIES):
        await provoke()
        if not await connections():
            break
    return [str(connection) for connection in found]
