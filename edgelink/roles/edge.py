"""An edge: joins the head's Ray cluster over the overlay and serves workers."""

from __future__ import annotations

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler
from edgelink.registry.payloads import Role
from edgelink.roles.edge_ray import EdgeRay
from edgelink.roles.enrolment import Enrolment
from edgelink.roles.node import Node
from edgelink.roles.ray_commands import add_environment_route
from edgelink.roles.ray_occupants import RayOccupants


async def run_edge(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the edge daemon until it is stopped; see :meth:`edgelink.roles.node.Node.run`."""
    await edge_of(config, paths, clock, enrolment).run()


def edge_of(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> Node:
    """An edge's daemon, put together."""
    node = Node(role=Role.EDGE, config=config, paths=paths, clock=clock, enrolment=enrolment)
    ray = RayEdgeReconciler(node.ray_inputs(), cluster_spec=lambda: node.board.facts.cluster_spec)
    node.versions = lambda: ray.versions
    node.dead_ray_node_id = lambda: ray.dead_ray_node_id
    node.metrics.named = node.needed
    add_environment_route(node, ray)
    EdgeRay(node, ray)
    node.attach(ray, RayOccupants(ray))
    return node
