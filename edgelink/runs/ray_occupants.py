"""Who works under this node's overlay address, as its Ray and its runs tell."""

from __future__ import annotations

from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.runs.runs import Runs


class RayOccupants:
    """See :class:`edgelink.member.lease_follower.Occupants`. ``runs``: those of the head."""

    def __init__(self, ray: LocalRay, runs: Runs | None = None) -> None:
        self._ray = ray
        self._runs = runs

    @property
    def has_ended(self) -> bool:
        return self._ray.has_ended

    def in_use(self) -> list[str]:
        granted_to = None if self._runs is None else self._runs.granted_to
        return [granted_to] if granted_to else self._ray.node.workers_in_use()
