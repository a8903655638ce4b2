"""The nodes that have no Ray by their own configuration (`ray: off`), as each says so in its status."""

from __future__ import annotations

import json
from pathlib import Path

from edgelink.condition_table.required import RAY_JOINED
from edgelink.facts.board import Table
from edgelink.files import Files
from edgelink.protocol.payloads import Directory, NodeStatus
from edgelink.ray_cluster.no_ray import NO_RAY


def has_no_ray(status: NodeStatus | None) -> bool | None:
    """Whether a node says that its configuration gives it no Ray. None: it says nothing, as a Last Will does."""
    conditions = () if status is None else status.conditions
    reason = next((one.reason for one in conditions if one.type == RAY_JOINED.name), None)
    return None if reason is None else reason == NO_RAY


class WithoutRayBook:
    """Remembers, also for the next daemon, which nodes have no Ray.

    A node that is switched off does not say so any more. If it counted as a Ray node then, the nodes behind it would
    get other ranks, and their Ray would start anew.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self._path = path
        self._files = files
        self._seen: tuple[object, object] | None = None
        try:
            self._known = frozenset(str(node_id) for node_id in json.loads(path.read_bytes()))
        except (OSError, ValueError):
            self._known = frozenset()

    def look(self, statuses: Table[str, NodeStatus], directory: Directory) -> frozenset[str]:
        """Return the ids of the enrolled nodes that have no Ray, by their last word."""
        if self._seen is not None and self._seen == (statuses, directory):
            return self._known
        self._seen, known = (statuses, directory), set(self._known)
        for status in statuses.rows.values():
            answer = has_no_ray(status)
            if answer is not None:
                (known.add if answer else known.discard)(status.node_id)
        found = frozenset(known.intersection(entry.node_id for entry in directory.entries))
        if found != self._known:
            self._known = found
            self._files.keep(self._path, json.dumps(sorted(found)))
        return found
