"""What the operator at the head wants of the whole cluster's Ray, kept on the head and carried by its cluster spec.

Nobody is commanded: each node brings its own Ray in step with what the spec says, whenever it reads it, so that one
that was away follows when it is back (ADR 0014).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from edgelink.files import private_directory, write_atomic


class Wishes(BaseModel):
    """``ray_wanted`` False: no Ray runs on any node. ``ray_restarts``: how often a node was told to restart its Ray."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ray_wanted: bool = True
    ray_restarts: dict[str, int] = {}

    def restarts_of(self, node_id: str) -> int:
        return self.ray_restarts.get(node_id, 0)


class WishBook:
    """The wishes on disk; a change is there before it takes effect."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wishes = self._read()

    @property
    def wishes(self) -> Wishes:
        return self._wishes

    def want_ray(self, wanted: bool) -> None:  # noqa: FBT001 - the wish itself
        self._write({"ray_wanted": wanted})

    def want_restart(self, node_id: str) -> None:
        """Once more: the node replaces the Ray that it runs now."""
        counts = self._wishes.ray_restarts
        self._write({"ray_restarts": {**counts, node_id: self._wishes.restarts_of(node_id) + 1}})

    def _write(self, changes: dict[str, object]) -> None:
        changed = self._wishes.model_copy(update=changes)
        private_directory(self._path.parent)
        write_atomic(self._path, changed.model_dump_json())
        self._wishes = changed

    def _read(self) -> Wishes:
        try:
            return Wishes.model_validate_json(self._path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return Wishes()
