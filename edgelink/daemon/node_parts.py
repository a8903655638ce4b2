"""The parts of a machine that takes part in Ray: head and edge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from edgelink.api.server import Route
from edgelink.daemon.base import Base
from edgelink.daemon.host import Host
from edgelink.daemon.lifecycle import StopRequest, end_all
from edgelink.daemon.member_parts import MemberParts
from edgelink.daemon.observation import Observation
from edgelink.daemon.overlay_parts import OverlayParts
from edgelink.overlay.overlay_names import OverlayNames
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayHeadReconciler
from edgelink.runs.exec_door import ExecDoor
from edgelink.runs.ray_commands import environment_route
from edgelink.runs.ray_occupants import RayOccupants
from edgelink.shield.outside_view import knock_route


class NodeParts:
    """Ray's reconciler ``ray`` and what stands on it."""

    def __init__(
        self, base: Base, overlay: OverlayParts, member: MemberParts, ray: RayEdgeReconciler | RayHeadReconciler
    ) -> None:
        self._base, self._overlay, self._member, self._ray = base, overlay, member, ray
        self.host = Host(base, overlay, ray.ray)
        self._names = OverlayNames(
            base.paths.hosts,
            base.board,
            base.clock,
            declined=base.config.host.hosts == "leave",
            is_known_name=base.machine.is_known_name,
        )
        self.exec_door = ExecDoor(
            config=base.config,
            paths=base.paths,
            key=member.key,
            board=base.board,
            clock=base.clock,
            launcher=base.launcher,
            local_ray=ray.ray,
            ray=ray,
        )

    async def live(self, tasks: asyncio.TaskGroup, observation: Observation) -> None:
        """Lease → overlay and registry session → peers → Ray; each waits for what it needs by its condition."""
        base, member, ray = self._base, self._member, self._ray
        await member.live(tasks, observation, self.host, RayOccupants(ray.ray, base.board))
        tasks.create_task(ray.run(), name="ray-watch")
        tasks.create_task(self._names.run(), name="overlay-names")
        tasks.create_task(self.exec_door.run(), name="exec")
        if base.config.overlay.kind == "easytier":
            tasks.create_task(member.pairs.run(), name="pairs-words")
            base.run_parts(tasks, [member.pairs])
        base.run_reconcilers(tasks, [ray, ray.drift] if ray.is_enabled else [ray])

    def routes(self) -> Iterator[Route]:
        base, ray = self._base, self._ray
        yield from self._member.routes()
        yield knock_route(base.config, base.board, self._member.key, base.clock, lambda: ray.ray.closed_ranges)
        yield environment_route(ray)
        yield from self.exec_door.routes()

    def details(self) -> dict[str, Any]:
        spec = self._base.board.facts.cluster_spec
        member = spec.member(self._member.key.node_id) if spec else None
        return {
            "node_rank": member.node_rank if member else None,
            "cluster": spec
            and {
                "ray_address": f"{spec.head_ip}:{spec.ray_port}",
                "ray_version": spec.ray_version,
                "python_version": spec.python_version,
            },
            "ray_auth": self.host.exposure.ray_auth,
            "has_ray": self._ray.is_enabled,
        }

    async def end(self, stop_request: StopRequest) -> None:
        """End programs of other nodes, Ray and EasyTier, in that order."""
        self._base.telling.say_stopping()
        self.exec_door.end_programs()

        async def leave_cluster() -> None:
            """End Ray. Where somebody asked for it, say meanwhile that it is on purpose."""
            joined = self._member.joined
            saying = [joined.registry.say_stopped()] if joined is not None and stop_request.is_requested else []
            await asyncio.gather(self._ray.stop(), *saying)

        await end_all(leave_cluster, self._overlay.stop)
