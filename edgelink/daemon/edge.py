"""An edge: joins the head's Ray cluster over the overlay and serves workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from edgelink.api.server import Route
from edgelink.clock import Clock
from edgelink.condition_table import Place
from edgelink.config import Config, Paths
from edgelink.daemon.base import Base, keep_nothing
from edgelink.daemon.member_parts import MemberParts
from edgelink.daemon.node_parts import NodeParts
from edgelink.daemon.observation import Observation
from edgelink.daemon.this_machine import ThisMachine
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler
from edgelink.runs.edge_ray import EdgeRay


async def run_edge(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the edge daemon until it is stopped; see :meth:`Base.run`. Then end Ray and EasyTier, in that order."""
    await Edge(config, paths, clock, ThisMachine(), enrolment).run()


class Edge:
    """An edge's daemon."""

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, machine: ThisMachine, enrolment: Enrolment | None
    ) -> None:
        self.base = base = Base(Place.EDGE, config, paths, clock, machine)
        self.overlay = overlay = base.overlay()
        self.member = member = MemberParts(base, overlay, Role.EDGE, enrolment)
        inputs = base.ray_inputs(member.key, base.local_ray())
        self.ray = ray = RayEdgeReconciler(inputs)
        self.node = node = NodeParts(base, overlay, member, ray)
        self._verbs = EdgeRay(inputs, ray)
        self.observation = Observation(
            base,
            overlay,
            member.key.node_id,
            details=(member.details, node.details),
            samples=(member.samples,),
            moments=(member.moment,),
        )
        self.stop_request = base.stop_request(before_end=keep_nothing)

    async def run(self) -> None:
        await self.base.run(self.stop_request, self.routes(), self.live, self.end)

    def routes(self) -> Iterator[Route]:
        yield self.stop_request.route()
        yield from self.observation.routes()
        yield from self.node.routes()
        yield self._verbs.route()

    async def live(self, tasks: asyncio.TaskGroup) -> None:
        await self.node.live(tasks, self.observation)

    async def end(self) -> None:
        await self.node.end(self.stop_request)
