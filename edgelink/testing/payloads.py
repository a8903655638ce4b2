"""Documents as registry and head sign them, with something usual in all that a test does not name."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from edgelink.protocol.payloads import ClusterMember, ClusterSpec, DirectoryEntry, Lease, Role

_LETTERS = str.maketrans({"-": None, "0": "q", "1": "r", "8": "s", "9": "t"})  # of node ids


def lease(hostname: str, ip: str | IPv4Address, rank: int | None = None, **other: Any) -> Lease:
    """The lease of an edge, or of the head, which has rank 0."""
    usual = {
        "network_id": "n",
        "node_id": hostname.translate(_LETTERS).ljust(26, "a"),
        "role": Role.HEAD if rank == 0 else Role.EDGE,
        "cidr": IPv4Network("10.10.0.0/24"),
        "verify_key": "AA==",
        "granted_at": datetime(2026, 1, 2, tzinfo=UTC),
        "is_relay": other.get("role") is Role.RELAY,
    }
    return Lease(hostname=hostname, overlay_ip=IPv4Address(ip), preferred_rank=rank, **(usual | other))


def entry_of(held: Lease) -> DirectoryEntry:
    """The same node in the directory."""
    return DirectoryEntry(**held.model_dump(include=set(DirectoryEntry.model_fields)))


def entry(hostname: str, ip: str | IPv4Address, rank: int | None = None, **other: Any) -> DirectoryEntry:
    """As :func:`lease`."""
    return entry_of(lease(hostname, ip, rank, **other))


def cluster_spec(head: Lease | DirectoryEntry, *members: Lease | DirectoryEntry, **other: Any) -> ClusterSpec:
    """The head's word on its Ray, with these members in the order of their ranks."""
    usual = {
        "network_id": "n",
        "epoch": 1,
        "incarnation": "one",
        "head_node_id": head.node_id,
        "head_ip": head.overlay_ip,
        "ray_port": 6379,
        "ray_version": "2.60.0",
        "python_version": "3.11.7",
        "token_auth": True,
        "members": tuple(
            ClusterMember(node_id=each.node_id, hostname=each.hostname, overlay_ip=each.overlay_ip, node_rank=rank)
            for rank, each in enumerate(members)
        ),
    }
    return ClusterSpec(**(usual | other))
