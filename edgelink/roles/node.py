"""What head and edge have in common besides being members of the network: the peers they need, and Ray.

The life of a node is told in :meth:`Node.live`, top to bottom; the rest answers questions of the reconcilers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from edgelink.api.server import Route
from edgelink.clock import Clock
from edgelink.condition_table import Place, required_on
from edgelink.config import Config, Paths
from edgelink.daemon.lifecycle import end_all, run_until_stopped
from edgelink.daemon.this_machine import ThisMachine
from edgelink.facts.part import run_part
from edgelink.member.enrolment import Enrolment
from edgelink.member.lease_follower import Occupants
from edgelink.overlay.overlay_names import OverlayNames
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayHeadReconciler, RayInputs
from edgelink.reconcile import run_reconciler
from edgelink.roles.member import Member
from edgelink.runs.exec_door import ExecDoor
from edgelink.runs.ray_occupants import RayOccupants
from edgelink.shield.outside_view import knock_route

READY_CONDITIONS = required_on(Place.EDGE)  # and on the head


class Node(Member):
    """One member of the network that takes part in Ray. Head and edge make its Ray, of :meth:`ray_inputs`."""

    ray: RayEdgeReconciler | RayHeadReconciler
    local_ray: LocalRay
    exec_door: ExecDoor

    def __init__(
        self,
        *,
        role: Role,
        config: Config,
        paths: Paths,
        clock: Clock,
        machine: ThisMachine,
        enrolment: Enrolment | None,
    ) -> None:
        super().__init__(
            verb=role.value,
            role=role,
            config=config,
            paths=paths,
            clock=clock,
            machine=machine,
            socket=paths.node_socket,
            enrolment=enrolment,
            place=Place(role.value),
        )
        self._names = OverlayNames(
            paths.hosts,
            self.board,
            clock,
            declined=config.host.hosts == "leave",
            is_known_name=machine.is_known_name,
        )

    async def run(self) -> None:
        """Live until a signal or ``/stop``; then end Ray and EasyTier, in that order.

        Raises:
            EdgelinkError: enrolment was refused, or another daemon is already here.
        """
        self.stop_request.listen_to_signals()
        async with self.api.serving(self.routes()):
            await run_until_stopped(self.stop_request, self.live, self._stop_children)

    async def live(self, tasks: asyncio.TaskGroup) -> None:
        """Lease → overlay and registry session → peers → Ray; each waits for what it needs by its condition."""
        self.start_telling(tasks)
        await self.join_network(tasks)
        tasks.create_task(self.ray.run(), name="ray-watch")
        self.start_more(tasks)
        if self.config.overlay.kind == "easytier":
            tasks.create_task(self.pairs.run(), name="pairs-words")
            tasks.create_task(run_part(self.pairs, self.board, self.conditions, self.clock), name="pairs")
        tasks.create_task(run_part(self.peers, self.board, self.conditions, self.clock), name="peers")
        for reconciler in (self.ray, self.ray.drift) if self.ray.is_enabled else (self.ray,):
            tasks.create_task(run_reconciler(reconciler, self.conditions, self.clock), name=reconciler.name)

    def start_more(self, tasks: asyncio.TaskGroup) -> None:
        """What runs for the daemon's life beside the overlay, the registry's session and Ray."""
        tasks.create_task(self._names.run(), name="overlay-names")
        tasks.create_task(self.exec_door.run(), name="exec")

    def occupants(self) -> Occupants:
        return RayOccupants(self.local_ray, self.board)

    def ray_inputs(self) -> RayInputs:
        """What the reconciler of this node's Ray is made of."""
        return RayInputs(
            board=self.board,
            config=self.config,
            paths=self.paths,
            conditions=self.conditions,
            clock=self.clock,
            key=self.key,
            ray=self.local_ray,
            files=self.files,
        )

    def make_exec_door(self) -> ExecDoor:
        """What lets programs of other nodes run here, beside this node's Ray."""
        return ExecDoor(
            config=self.config,
            paths=self.paths,
            key=self.key,
            board=self.board,
            clock=self.clock,
            launcher=self.launcher,
            local_ray=self.local_ray,
            ray=self.ray,
        )

    def routes(self) -> Iterator[Route]:
        yield from super().routes()
        yield knock_route(self, lambda: self.local_ray.closed_ranges)
        yield from self.exec_door.routes()

    def details(self) -> dict[str, Any]:
        spec = self.board.facts.cluster_spec
        member = spec.member(self.key.node_id) if spec else None
        return {
            **super().details(),
            "node_rank": member.node_rank if member else None,
            "cluster": spec
            and {
                "ray_address": f"{spec.head_ip}:{spec.ray_port}",
                "ray_version": spec.ray_version,
                "python_version": spec.python_version,
            },
            "ray_auth": self.exposure.ray_auth,
            "has_ray": self.ray.is_enabled,
        }

    async def _stop_children(self) -> None:
        self.put_is_stopping(True)
        self.exec_door.end_programs()
        await end_all(self._leave_cluster, self.parts.stop)

    async def _leave_cluster(self) -> None:
        """End Ray. Where somebody asked for it, say meanwhile that it is on purpose."""
        saying = [self.registry.say_stopped()] if self.registry is not None and self.stop_request.is_requested else []
        await asyncio.gather(self.ray.stop(), *saying)
