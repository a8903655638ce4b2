"""An edge: joins the head's Ray cluster over the overlay and serves workers."""

from __future__ import annotations

from collections.abc import Iterator

from edgelink.api.server import Route
from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.daemon.this_machine import ThisMachine
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler
from edgelink.roles.node import Node
from edgelink.runs.edge_ray import EdgeRay
from edgelink.runs.ray_commands import environment_route


async def run_edge(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the edge daemon until it is stopped; see :meth:`edgelink.roles.node.Node.run`."""
    await Edge(config, paths, clock, ThisMachine(), enrolment).run()


class Edge(Node):
    """An edge's daemon."""

    ray: RayEdgeReconciler

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, machine: ThisMachine, enrolment: Enrolment | None
    ) -> None:
        super().__init__(role=Role.EDGE, config=config, paths=paths, clock=clock, machine=machine, enrolment=enrolment)
        self.ray = RayEdgeReconciler(self.ray_inputs())
        self.exec_door = self.make_exec_door()
        self._verbs = EdgeRay(self, self.ray)

    def routes(self) -> Iterator[Route]:
        yield from super().routes()
        yield environment_route(self.ray)
        yield self._verbs.route()

    def named_nodes(self) -> set[str]:
        known = self.board.facts.targets
        return set() if known is None else set(known.all)
