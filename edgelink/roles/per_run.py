"""``access: per-run``: edges answer each other during a run only (ADR 0043). What the head knows of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgelink.registry.documents import OPENS_PER_RUN
from edgelink.registry.payloads import ClusterSpec, DirectoryEntry, NodeStatus, Role


def still_closed(
    entries: Iterable[DirectoryEntry], spec: ClusterSpec | None, statuses: Mapping[str, NodeStatus]
) -> list[str]:
    """Return what is said of each edge of a run that does not answer the others yet; pure.

    One whose EdgeLink is too old to close anything answers anyway.
    """
    edges = [entry for entry in entries if entry.role is Role.EDGE]
    if len(edges) < 2:
        return []
    if spec is None or spec.edges_open_to == "head":
        return ["the head has not told the edges yet to answer each other"]
    told = []
    for edge in edges:
        status = statuses.get(edge.node_id)
        if status is None or not status.online:
            told.append(f"{edge.hostname} is not in touch with the relay, so that it has not said that it is open")
        elif not ignores(status) and (status.follows_spec or 0) < spec.epoch:
            told.append(f"{edge.hostname} has not opened to the other edges of the run yet, see `Shielded` there")
    return told


def ignores(status: NodeStatus) -> bool:
    """Return whether a node that is online is too old to close anything; pure."""
    return OPENS_PER_RUN not in status.features


def too_old(spec: ClusterSpec | None, entry: DirectoryEntry | None, status: NodeStatus | None) -> list[str]:
    """Return what is said of an edge that is too old to close anything although it should; pure."""
    if spec is None or spec.edges_open_to == "all" or entry is None or entry.role is not Role.EDGE:
        return []
    if status is None or not status.online or not ignores(status):
        return []
    return ["AccessIgnored: its EdgeLink is too old for `access: per-run`, so every member reaches its Ray: upgrade it"]
