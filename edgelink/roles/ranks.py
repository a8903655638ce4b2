"""Node ranks: from the preferred ranks of the leases to the dense ranks of the cluster spec (ADR 0008)."""

from __future__ import annotations

from edgelink.registry.payloads import Directory, DirectoryEntry


def rank_map(directory: Directory | None) -> list[tuple[DirectoryEntry, int]]:
    """Who takes part, with dense node ranks in the order of the preferred ones; pure."""
    if directory is None:
        return []
    ranked = [entry for entry in directory.entries if entry.preferred_rank is not None]
    ranked.sort(key=lambda entry: entry.preferred_rank or 0)
    return [(entry, rank) for rank, entry in enumerate(ranked)]
