"""An edge: joins the head's Ray cluster over the overlay and serves workers."""

from __future__ import annotations

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler
from edgelink.registry.payloads import Role
from edgelink.roles.node import Enrolment, Node
from edgelink.roles.ray_commands import add_environment_route


async def run_edge(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the edge daemon until it is stopped; see :meth:`edgelink.roles.node.Node.run`."""
    node = Node(role=Role.EDGE, config=config, paths=paths, clock=clock, enrolment=enrolment)
    ray = RayEdgeReconciler(
        config=config,
        paths=paths,
        conditions=node.conditions,
        clock=clock,
        key=node.key,
        lease=lambda: node.membership.lease if node.membership else None,
        cluster_spec=lambda: node.registry.cluster_spec if node.registry else None,
        overlay_ready=lambda: node.overlay_ready,
    )
    node.versions = lambda: ray.versions
    add_environment_route(node, ray)
    await node.run(ray)
