"""What the registry knows, as JSON for people and scripts; no secret is in it.

``version`` counts changes that break readers; new fields may come at any time.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from edgelink.errors import RegistryError
from edgelink.protocol.payloads import Lease
from edgelink.relay.store import RegistryStore

VERSION = 1


def lease_to_dict(lease: Lease) -> dict[str, Any]:
    return lease.model_dump(mode="json", exclude={"version", "network_id", "cidr"})


def describe(store: RegistryStore, node: str, now: datetime) -> dict[str, Any]:
    """All of one node, by its hostname or node_id, also of one that holds no lease any more.

    Raises:
        RegistryError: nothing is known of such a node.
    """
    lease = store.find_lease(node)
    rests, history, gone = store.quarantine.resting(), store.history(), store.revocations.find(node)
    node_ids = [lease.node_id] if lease is not None else []
    node_ids += [rest.node_id for rest in reversed(rests) if node in (rest.node_id, rest.hostname)]
    node_ids += [gone.node_id] if gone else []
    node_ids += [entry["node_id"] for entry in history if entry["node_id"] == node]
    if not node_ids:
        raise RegistryError(
            f"nothing is known of a node {node!r}",
            hint="`edgelink registry list` shows hostnames and node ids",
            reason="NodeUnknown",
        )
    node_id = node_ids[0]
    revocation = store.revocations.get(node_id)
    return {
        "version": VERSION,
        "node_id": node_id,
        "lease": lease_to_dict(lease) if lease is not None else None,
        "resting": [rest.to_dict() for rest in rests if rest.node_id == node_id],
        "revoked": revocation.to_dict() if revocation else None,
        "tokens": [
            token.to_dict(now) for token in store.tokens.all() if node_id in token.used_by or token.replaces == node_id
        ],
        "history": [entry for entry in history if entry["node_id"] == node_id],
    }


def export(store: RegistryStore, now: datetime) -> dict[str, Any]:
    """The whole registry, for documentation, for a spreadsheet, or for `edgelink registry import` on another relay."""
    network = store.require_network()
    return {
        "version": VERSION,
        "exported_at": now.isoformat(timespec="seconds"),
        "network": {
            "network_id": network.network_id,
            "name": network.name,
            "cidr": str(network.cidr),
            "relay_ip": str(network.relay_ip),
            "created_at": network.created_at.isoformat(timespec="seconds"),
            "ranges": {role.value: f"{first}-{last}" for role, (first, last) in network.ranges.items()},
        },
        "leases": [lease_to_dict(lease) for lease in store.leases()],
        "resting": [rest.to_dict() for rest in store.quarantine.resting()],
        "revoked": [revocation.to_dict() for revocation in store.revocations.all()],
    }
