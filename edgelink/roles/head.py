"""The head: Ray's head node, author of the cluster spec, and the place where training is launched."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.facts.board import Board
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.reconcile import Wakeup
from edgelink.registry.keys import Kind
from edgelink.registry.payloads import ClusterSpec, NetworkState, Role
from edgelink.roles.cluster_ray import ClusterRay
from edgelink.roles.dashboard import Dashboard
from edgelink.roles.enrolment import Enrolment
from edgelink.roles.heard import add_heard_route
from edgelink.roles.node import Node
from edgelink.roles.nodes import Nodes
from edgelink.roles.ray_commands import add_environment_route
from edgelink.roles.ray_occupants import RayOccupants
from edgelink.roles.runs import Runs
from edgelink.roles.session_parts import RegistrysWord

_NEWS_REST_S = 0.25


def put_out(members: Iterable[str], state: NetworkState | None) -> set[str]:
    """Which members of the run in progress the registry says it has put out; pure.

    Who is only missing from the directory may be a healthy member that a registry from an older backup does not know.
    """
    return set() if state is None else set(members).intersection(state.revoked)


class NodeNews:
    """Has the head look at its nodes when one of them has said something, four times a second at most.

    A thousand nodes say something several times a second each, and each look is at all of them.
    """

    name = "node news"

    def __init__(self, board: Board[Any], runs: Runs, ray: RayHeadReconciler, clock: Clock) -> None:
        self._news = Wakeup()
        self._runs = runs
        self._ray = ray
        self._clock = clock
        board.read(RegistrysWord, self.name, self._news)

    async def run(self) -> NoReturn:
        while True:
            self._runs.show_nodes_ready()
            self._ray.wakeup.set()
            await self._clock.sleep(_NEWS_REST_S)
            await self._news.wait(None)


async def run_head(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> None:
    """Run the head daemon until it is stopped; see :meth:`edgelink.roles.node.Node.run`."""
    await head_of(config, paths, clock, enrolment).run()


def head_of(config: Config, paths: Paths, clock: Clock, enrolment: Enrolment | None) -> Node:
    """A head's daemon, put together."""
    node = Node(
        role=Role.HEAD,
        config=config,
        paths=paths,
        clock=clock,
        enrolment=enrolment,
    )
    runs = Runs(node)

    def publish(spec: ClusterSpec) -> None:
        if node.registry is not None:
            node.registry.publish_cluster(node.key.sign(Kind.CLUSTER_SPEC, spec))

    def gone() -> set[str]:
        return put_out((entry.node_id for entry, _ in runs.ranks()), node.board.facts.network.state)

    ray = RayHeadReconciler(
        node.ray_inputs(),
        members=runs.gang.publishable,
        publish=publish,
        on_members=runs.ray_members_changed,
        run_holder=lambda: runs.granted_to,
        reported_dead=node.reported_dead_rays,
        epoch_taken=lambda spec: node.registry.epoch_taken(spec) if node.registry else 0,
        gone=gone,
        secret_epoch=lambda: node.membership.held.epoch if node.membership else 1,
    )
    node.versions = lambda: ray.versions
    runs.ray = ray
    node.also_run["run-lock"] = runs.lock.run
    node.also_run["node-news"] = NodeNews(node.board, runs, ray, clock).run
    node.also_tell["run"] = lambda: runs.record
    node.also_record |= {"run": runs.moment, "ray_alive": runs.ray_alive}
    node.stop_request.on_request = runs.lock.keep
    node.api.add_stream("POST", "/run", runs.stream)
    node.api.add("POST", "/run/record", runs.note)
    node.api.add("POST", "/run/metrics", runs.note_metrics)
    node.api.add("GET", "/driver-environment", runs.driver_grant)
    node.api.add("GET", "/placement/nodes", runs.live_nodes)
    node.api.add_stream("POST", "/reports", node.gather_reports)
    add_environment_route(node, ray)
    add_heard_route(node, ray)
    ClusterRay(node, runs, ray)
    Dashboard(node, runs, Nodes(node, runs), ray)
    node.attach(ray, RayOccupants(ray, runs))
    return node
