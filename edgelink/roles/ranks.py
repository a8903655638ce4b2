"""Node ranks: from the preferred ranks of the leases to the dense ranks of the cluster spec (ADR 0008)."""

from __future__ import annotations

from collections.abc import Collection

from edgelink.registry.payloads import Directory, DirectoryEntry

Ranks = list[tuple[DirectoryEntry, int]]


def rank_map(directory: Directory | None) -> Ranks:
    """Who takes part, with dense node ranks in the order of the preferred ones; pure."""
    if directory is None:
        return []
    ranked = [entry for entry in directory.entries if entry.preferred_rank is not None]
    ranked.sort(key=lambda entry: entry.preferred_rank or 0)
    return [(entry, rank) for rank, entry in enumerate(ranked)]


def keeping_ranks(wanted: Ranks, in_use: Ranks) -> Ranks:
    """``wanted``, or ``in_use`` if somebody would lose, or change, the rank or address that a run relies on; pure."""
    now = {entry.node_id: (rank, entry.overlay_ip) for entry, rank in wanted}
    is_kept = all(now.get(entry.node_id) == (rank, entry.overlay_ip) for entry, rank in in_use)
    return wanted if is_kept else in_use


def keeping_addresses(wanted: Ranks, before: Ranks, waiting: Collection[str]) -> Ranks:
    """``wanted``, with the addresses of ``before`` of those who go on with a lease that was changed; pure.

    They have workers under the former address, who would be buried under it.
    """
    known = {entry.node_id: entry.overlay_ip for entry, _ in before if entry.node_id in waiting}
    return [
        (entry.model_copy(update={"overlay_ip": known.get(entry.node_id, entry.overlay_ip)}), rank)
        for entry, rank in wanted
    ]
