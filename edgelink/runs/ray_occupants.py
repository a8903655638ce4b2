"""Who works under this node's overlay address, as its Ray and its runs tell."""

from __future__ import annotations

from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.ray_cluster.local_ray import LocalRay


class RayOccupants:
    """See :class:`edgelink.member.lease_follower.Occupants`."""

    def __init__(self, ray: LocalRay, board: Board[Facts]) -> None:
        self._ray = ray
        self._board = board

    @property
    def has_ended(self) -> bool:
        return self._ray.has_ended

    def in_use(self) -> list[str]:
        run = self._board.facts.run
        return [run.holder] if run is not None and run.is_granted else self._ray.node.workers_in_use()
