"""The head: Ray's head node, author of the cluster spec, and the place where training is launched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from edgelink.api.server import Route, stream_route
from edgelink.clock import Clock
from edgelink.condition_table import Place
from edgelink.config import Config, Paths
from edgelink.daemon.base import Base
from edgelink.daemon.member_parts import MemberParts
from edgelink.daemon.node_parts import NodeParts
from edgelink.daemon.observation import Observation
from edgelink.daemon.this_machine import ThisMachine
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.runs.cluster_ray import ClusterRay
from edgelink.runs.gang import Gang
from edgelink.runs.heard import heard_route
from edgelink.runs.node_list import Nodes
from edgelink.runs.node_news import NodeNews
from edgelink.runs.pauses import Pauses
from edgelink.runs.run_requests import RunRequests
from edgelink.runs.runs import Runs
from edgelink.telemetry.dashboard import Dashboard


async def run_head(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the head daemon until it is stopped; see :meth:`Base.run`. Then end Ray and EasyTier, in that order."""
    await Head(config, paths, clock, ThisMachine(), enrolment).run()


class Head:
    """A head's daemon: beside what an edge has, Ray's head, the runs and the page."""

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, machine: ThisMachine, enrolment: Enrolment | None
    ) -> None:
        self.base = base = Base(Place.HEAD, config, paths, clock, machine)
        self.overlay = overlay = base.overlay()
        self.member = member = MemberParts(base, overlay, Role.HEAD, enrolment)
        self.inputs = inputs = base.ray_inputs(member.key, base.local_ray())
        self.runs = runs = Runs(inputs)
        self.ray = ray = RayHeadReconciler(inputs)
        self.node = node = NodeParts(base, overlay, member, ray)
        gang = Gang(inputs, runs)
        self.nodes = nodes = Nodes(inputs, overlay, runs, gang)
        self.run_requests = RunRequests(runs, gang, ray, config.overlay.kind)
        self._pauses = Pauses(board=base.board, node_id=member.key.node_id, clock=clock)
        self._news = NodeNews(base.board, runs.standing, clock)
        self._verbs = ClusterRay(inputs, runs, ray)
        exposure, recorder = node.host.exposure, base.recorder
        self.page = Dashboard(inputs, overlay, exposure, recorder, ray=ray, runs=runs, nodes=nodes)
        self.observation = Observation(
            base,
            overlay,
            member.key.node_id,
            details=(member.details, node.details, runs.details),
            samples=(member.samples, nodes.samples),
            moments=(member.moment, runs.moment),
        )
        self.stop_request = base.stop_request(before_end=runs.lock.keep)

    async def run(self) -> None:
        await self.base.run(self.stop_request, self.routes(), self.live, self.end)

    def routes(self) -> Iterator[Route]:
        yield self.stop_request.route()
        yield from self.observation.routes()
        yield from self.node.routes()
        yield from self.run_requests.routes()
        yield stream_route("POST", "/reports", self.member.gather_reports)
        yield heard_route(self.ray)
        yield from self._verbs.routes()
        yield from self.page.routes()
        yield from self.nodes.routes()

    async def live(self, tasks: asyncio.TaskGroup) -> None:
        await self.node.live(tasks, self.observation)
        tasks.create_task(self.runs.lock.run(), name="run-lock")
        tasks.create_task(self._news.run(), name="node-news")
        self.base.run_parts(tasks, [self._pauses])
        tasks.create_task(self.page.run(), name="web")

    async def end(self) -> None:
        await self.node.end(self.stop_request)
