"""The head: Ray's head node, author of the cluster spec, and the place where training is launched."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from edgelink.api.metrics import Sample
from edgelink.api.server import Route, stream_route
from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.daemon.this_machine import ThisMachine
from edgelink.facts.part import run_part
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.roles.node import Node
from edgelink.runs.cluster_ray import ClusterRay
from edgelink.runs.gang import Gang
from edgelink.runs.heard import heard_route
from edgelink.runs.node_list import Nodes
from edgelink.runs.node_news import NodeNews
from edgelink.runs.pauses import Pauses
from edgelink.runs.ray_commands import environment_route
from edgelink.runs.run_requests import RunRequests
from edgelink.runs.runs import Runs
from edgelink.telemetry.dashboard import Dashboard


async def run_head(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the head daemon until it is stopped; see :meth:`edgelink.roles.node.Node.run`."""
    await Head(config, paths, clock, ThisMachine(), enrolment).run()


class Head(Node):
    """A head's daemon: beside what every node has, Ray's head, the runs and the page."""

    ray: RayHeadReconciler

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, machine: ThisMachine, enrolment: Enrolment | None
    ) -> None:
        super().__init__(role=Role.HEAD, config=config, paths=paths, clock=clock, machine=machine, enrolment=enrolment)
        self.runs = runs = Runs(self.ray_inputs())
        gang = Gang(self.ray_inputs(), runs)
        self.nodes = Nodes(self, runs, gang)
        self.ray = ray = RayHeadReconciler(self.ray_inputs())
        self.run_requests = RunRequests(runs, gang, ray, config.overlay.kind)
        self._pauses = Pauses(board=self.board, node_id=self.key.node_id, clock=clock)
        self._news = NodeNews(self.board, runs.standing, clock)
        self.exec_door = self.make_exec_door()
        self._verbs = ClusterRay(self, runs, ray)
        self.page = Dashboard(self, runs, self.nodes, ray)

    def start_more(self, tasks: asyncio.TaskGroup) -> None:
        super().start_more(tasks)
        tasks.create_task(self.runs.lock.run(), name="run-lock")
        tasks.create_task(self._news.run(), name="node-news")
        pauses = run_part(self._pauses, self.board, self.conditions, self.clock)
        tasks.create_task(pauses, name=self._pauses.name)
        tasks.create_task(self.page.run(), name="web")

    def routes(self) -> Iterator[Route]:
        yield from super().routes()
        yield from self.run_requests.routes()
        yield stream_route("POST", "/reports", self.gather_reports)
        yield environment_route(self.ray)
        yield heard_route(self.ray)
        yield from self._verbs.routes()
        yield from self.page.routes()
        yield from self.nodes.routes()

    def before_end(self) -> None:
        self.runs.lock.keep()

    def samples(self) -> Iterator[Sample]:
        yield from super().samples()
        yield from self.nodes.samples()

    def sample(self) -> dict[str, Any]:
        members = self.board.facts.ray_members
        alive = sorted(f"{member.rank}:{member.node_id[:8]}" for member in members if member.alive)
        return {**super().sample(), "run": self.runs.moment(), "ray_alive": alive}

    def details(self) -> dict[str, Any]:
        return {**super().details(), "run": self.runs.record}
