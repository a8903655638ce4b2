"""Node ranks: from the preferred ranks of the leases to the dense ranks of the cluster spec (ADR 0008)."""

from __future__ import annotations

from collections.abc import Collection

from edgelink.protocol.payloads import ClusterSpec, Directory, DirectoryEntry
from edgelink.ray_cluster.held_run import Ranks


def could_take_part(directory: Directory | None, without_ray: Collection[str] = ()) -> list[DirectoryEntry]:
    """Who has a rank, in the order of the preferred ones; pure.

    Args:
        without_ray: the node ids of those that have no Ray by their own configuration.
    """
    if directory is None:
        return []
    ranked = [
        entry for entry in directory.entries if entry.preferred_rank is not None and entry.node_id not in without_ray
    ]
    ranked.sort(key=lambda entry: entry.preferred_rank or 0)
    return ranked


def rank_map(candidates: Collection[DirectoryEntry], asked_for: Collection[str] = ()) -> Ranks:
    """Who takes part, with dense node ranks in the order of the preferred ones; pure.

    Args:
        candidates: those who could, see :func:`could_take_part`.
        asked_for: the node ids of those that a run asks for. Empty: all take part.
    """
    taking_part = [entry for entry in candidates if not asked_for or entry.node_id in asked_for]
    return tuple((entry, rank) for rank, entry in enumerate(taking_part))


def keeping_ranks(wanted: Ranks, in_use: Ranks) -> Ranks:
    """``wanted``, or ``in_use`` if somebody would lose, or change, the rank or address that a run relies on; pure."""
    now = {entry.node_id: (rank, entry.overlay_ip) for entry, rank in wanted}
    is_kept = all(now.get(entry.node_id) == (rank, entry.overlay_ip) for entry, rank in in_use)
    return wanted if is_kept else in_use


def free_ranks(wanted: Ranks, held: Collection[tuple[str, int | None]], everybody: Collection[str]) -> Ranks:
    """``wanted`` without those whose rank another node still has in Ray: its Ray ends first; pure.

    So in no moment two nodes are alive with one rank. Who has that rank already keeps it.

    Args:
        held: address and rank of each Ray that is alive.
        everybody: the addresses of all nodes; a Ray under another one is a former one of a node that moved.
    """
    holders: dict[int | None, set[str]] = {}
    for ip, rank in held:
        if ip in everybody:
            holders.setdefault(rank, set()).add(ip)
    return tuple(
        (entry, rank) for entry, rank in wanted if rank not in holders or str(entry.overlay_ip) in holders[rank]
    )


def keeping_addresses(wanted: Ranks, before: ClusterSpec | None, waiting: Collection[str]) -> Ranks:
    """``wanted``, with the addresses of ``before`` of those who go on with a lease that was changed; pure.

    They have workers under the former address, who would be buried under it.
    """
    members = before.members if before is not None else ()
    known = {member.node_id: member.overlay_ip for member in members if member.node_id in waiting}
    return tuple(
        (entry.model_copy(update={"overlay_ip": known[entry.node_id]}) if entry.node_id in known else entry, rank)
        for entry, rank in wanted
    )
