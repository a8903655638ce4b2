"""``access: per-run``: edges answer each other during a run only (ADR 0043). What the head knows of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edgelink.protocol.payloads import ClusterSpec, DirectoryEntry, NodeStatus, Role


def still_closed(
    entries: Iterable[DirectoryEntry], spec: ClusterSpec | None, statuses: Mapping[str, NodeStatus]
) -> list[str]:
    """Return what is said of each edge of a run that does not answer the others yet; pure."""
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
        elif (status.follows_spec or 0) < spec.epoch:
            told.append(f"{edge.hostname} has not opened to the other edges of the run yet, see `Shielded` there")
    return told
