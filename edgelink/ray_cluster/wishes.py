"""What the operator at the head wants of the whole cluster's Ray, kept on the head and carried by its cluster spec.

Nobody is commanded: each node brings its own Ray in step with what the spec says, whenever it reads it, so that one
that was away follows when it is back (ADR 0014).
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from edgelink.facts.board import Board, Fact
from edgelink.files import private_directory, write_atomic


class Wishes(BaseModel):
    """``ray_wanted`` False: no Ray runs on any node. ``ray_restarts``: how often a node was told to restart its Ray."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    ray_wanted: bool = True
    ray_restarts: dict[str, int] = {}

    def restarts_of(self, node_id: str) -> int:
        return self.ray_restarts.get(node_id, 0)


WISHES: Final[Fact[Wishes]] = Fact("wishes")


class WishBook:
    """The wishes on disk; a change is there before it takes effect."""

    def __init__(self, board: Board[Any], path: Path) -> None:
        self._board = board
        self._path = path
        self._commit = board.claim_durable(WISHES, "ray wishes", self._save)
        with suppress(FileNotFoundError, ValidationError):
            self._commit(Wishes.model_validate_json(path.read_bytes()))

    def want_ray(self, wanted: bool) -> None:  # noqa: FBT001 - the wish itself
        self._commit(self._wishes.model_copy(update={"ray_wanted": wanted}))

    def want_restart(self, node_id: str) -> None:
        """Once more: the node replaces the Ray that it runs now."""
        counts = {**self._wishes.ray_restarts, node_id: self._wishes.restarts_of(node_id) + 1}
        self._commit(self._wishes.model_copy(update={"ray_restarts": counts}))

    @property
    def _wishes(self) -> Wishes:
        found: Wishes = self._board.facts.wishes
        return found

    def _save(self, wishes: Wishes) -> Wishes:
        private_directory(self._path.parent)
        write_atomic(self._path, wishes.model_dump_json())
        return wishes
