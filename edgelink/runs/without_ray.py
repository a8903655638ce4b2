"""The nodes that have no Ray by their own configuration (`ray: off`), as each says so in its status."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from edgelink.condition_table.required import RAY_JOINED
from edgelink.facts.board import Board, Fact, Table
from edgelink.files import Files
from edgelink.protocol.payloads import Directory, NodeStatus
from edgelink.ray_cluster.no_ray import NO_RAY

WITHOUT_RAY: Final[Fact[frozenset[str]]] = Fact("without_ray")


def has_no_ray(status: NodeStatus | None) -> bool | None:
    """Whether a node says that its configuration gives it no Ray. None: it says nothing, as a Last Will does."""
    conditions = () if status is None else status.conditions
    reason = next((one.reason for one in conditions if one.type == RAY_JOINED.name), None)
    return None if reason is None else reason == NO_RAY


@dataclass(frozen=True)
class Said:
    """What the nodes say of themselves."""

    directory: Directory | None
    statuses: Table[str, NodeStatus]


class WithoutRayBook:
    """Remembers, also for the next daemon, which nodes have no Ray.

    A node that is switched off does not say so any more. If it counted as a Ray node then, the nodes behind it would
    get other ranks, and their Ray would start anew.
    """

    def __init__(self, board: Board[Any], path: Path, files: Files) -> None:
        self._board = board
        self._path = path
        self._files = files
        self._seen: Said | None = None
        self._put = board.claim(WITHOUT_RAY, "runs")
        with suppress(OSError, ValueError):
            self._put(frozenset(str(node_id) for node_id in json.loads(path.read_bytes())))

    def look(self) -> frozenset[str]:
        """Return the ids of the enrolled nodes that have no Ray, by their last word, and write them on the board."""
        said, known = self._board.select(Said), self._board.facts.without_ray
        if said == self._seen or said.directory is None:
            return frozenset(known)
        self._seen, found = said, set(known)
        for status in said.statuses.rows.values():
            answer = has_no_ray(status)
            if answer is not None:
                (found.add if answer else found.discard)(status.node_id)
        now = frozenset(found.intersection(entry.node_id for entry in said.directory.entries))
        if now != known:
            self._files.keep(self._path, json.dumps(sorted(now)))
            self._put(now)
        return now
