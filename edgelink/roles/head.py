"""The head: Ray's head node, author of the cluster spec, and the place where training is launched."""

from __future__ import annotations

from collections.abc import Sequence

from edgelink.clock import Clock
from edgelink.conditions import Status
from edgelink.config import Config, Paths
from edgelink.ray_cluster.membership import RayMember
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.registry.keys import Kind
from edgelink.registry.payloads import ClusterSpec, Role
from edgelink.roles.node import Enrolment, Node
from edgelink.roles.ranks import rank_map
from edgelink.roles.ray_commands import add_environment_route
from edgelink.roles.runs import Runs


async def run_head(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the head daemon until it is stopped; see :meth:`edgelink.roles.node.Node.run`."""
    node = Node(
        role=Role.HEAD,
        config=config,
        paths=paths,
        clock=clock,
        enrolment=enrolment,
        informative=("NodesReady", "DriverRunning"),
    )
    runs = Runs(node)

    def publish(spec: ClusterSpec) -> None:
        if node.registry is not None:
            node.registry.publish_cluster(node.key.sign(Kind.CLUSTER_SPEC, spec))

    def members_changed(members: Sequence[RayMember]) -> None:
        runs.ray_members_changed(members)
        show_nodes_ready(node, members)

    ray = RayHeadReconciler(
        config=config,
        paths=paths,
        conditions=node.conditions,
        clock=clock,
        key=node.key,
        lease=lambda: node.membership.lease if node.membership else None,
        overlay_ready=lambda: node.overlay_ready,
        members=lambda: rank_map(node.registry.directory if node.registry else None),
        publish=publish,
        on_members=members_changed,
    )
    node.versions = lambda: ray.versions
    runs.ray = ray
    node.api.add_stream("POST", "/run", runs.stream)
    add_environment_route(node, ray)
    await node.run(ray)


def show_nodes_ready(node: Node, members: Sequence[RayMember]) -> None:
    """NodesReady says whether all who hold a lease with a rank are alive in Ray."""
    alive = {member.ip for member in members if member.alive}
    expected = rank_map(node.registry.directory if node.registry else None)
    missing = [entry.hostname for entry, _ in expected if str(entry.overlay_ip) not in alive]
    if missing:
        node.conditions.set("NodesReady", Status.FALSE, "NodesMissing", f"not alive in Ray: {', '.join(missing)}")
    else:
        node.conditions.set_true("NodesReady", "AllAlive", f"{len(expected)} of {len(expected)} nodes alive in Ray")
