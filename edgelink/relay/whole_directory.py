"""The directory of all nodes, however many, as the store has them."""

from __future__ import annotations

from ipaddress import IPv4Address

from edgelink.protocol.payloads import MAX_LEFT, Directory, DirectoryEntry
from edgelink.relay.store import RegistryStore


def directory_of(store: RegistryStore, network_id: str, unleased_ips: tuple[IPv4Address, ...] | None) -> Directory:
    """With all nodes, however many."""
    with store.transaction():
        epoch, leases = store.epoch(), store.leases()
        relays, generation = store.relay_addresses(), store.generation()
        left = tuple(sorted(store.departures.all()))[:MAX_LEFT]
    entries = tuple(
        DirectoryEntry(
            node_id=lease.node_id,
            hostname=lease.hostname,
            role=lease.role,
            is_relay=lease.is_relay,
            overlay_ip=lease.overlay_ip,
            preferred_rank=lease.preferred_rank,
            verify_key=lease.verify_key,
        )
        for lease in leases
    )
    return Directory(
        network_id=network_id,
        epoch=epoch,
        entries=entries,
        generation=generation,
        relays=relays,
        unleased_ips=unleased_ips,
        left=left,
    )
