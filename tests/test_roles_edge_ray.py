"""restart-ray on an edge: refused under a driver and without a cluster, done when the new Ray has joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgelink.api.server import Caller
from edgelink.config import Config, Paths
from edgelink.errors import ExitCode, RayClusterError, UsageError
from edgelink.process import Identity
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler
from edgelink.registry.client import RegistryClient
from edgelink.registry.payloads import Role
from edgelink.roles.edge_ray import EdgeRay
from edgelink.roles.node import Node
from edgelink.roles.run_lock import RunInProgressError
from edgelink.roles.this_machine import ThisMachine
from edgelink.testing import FakeClock

ROOT = Caller(1, 0, 0)


class Ray:
    """An edge's Ray, as far as the verb sees it."""

    user_uid = 1000

    def __init__(self) -> None:
        self.workers: list[str] = []
        self.asked = ""
        self.record: SimpleNamespace | None = None
        self.start(100)

    def start(self, pid: int) -> None:
        self.record = SimpleNamespace(raylet=Identity(pid, 1, "boot", "hash"))

    async def prepare(self) -> None:
        pass

    def restart(self, why: str) -> None:
        self.asked = why

    def workers_in_use(self) -> list[str]:
        return self.workers

    @property
    def ray(self) -> Ray:
        return self

    @property
    def node(self) -> Ray:
        return self


class Edge:
    """An edge whose cluster wants Ray."""

    def __init__(self, directory: Path) -> None:
        self.node = Node(
            role=Role.EDGE,
            config=Config(),
            paths=Paths(state=directory / "state", runtime=directory / "run"),
            clock=FakeClock(),
            machine=ThisMachine(),
            enrolment=None,
        )
        self.spec: SimpleNamespace | None = SimpleNamespace(ray_wanted=True)
        self.node.registry = cast(RegistryClient, SimpleNamespace(cluster_spec=self.spec))
        self.node.publish_status = lambda: None  # type: ignore[method-assign]
        self.ray = Ray()
        self.verb = EdgeRay(self.node, cast(RayEdgeReconciler, self.ray))

    def set_spec(self, **values: Any) -> None:
        spec = SimpleNamespace(**values) if values else None
        self.node.registry = cast(RegistryClient, SimpleNamespace(cluster_spec=spec))


@pytest.fixture
async def edge(tmp_path: Path) -> AsyncIterator[Edge]:
    """With a clock that goes by itself."""
    edge = Edge(tmp_path)

    async def tick() -> None:
        while True:
            await cast(FakeClock, edge.node.clock).advance(0.25)

    ticking = asyncio.ensure_future(tick())
    yield edge
    ticking.cancel()


async def test_it_is_done_when_another_raylet_has_joined(edge: Edge) -> None:
    """Neither the former one nor one that is still joining will do."""
    edge.node.conditions.set_true("RayJoined", "AliveInRay", "alive")
    events = edge.verb.restart(ROOT, {})
    async with asyncio.timeout(20):
        assert (await anext(events))["nodes"][0]["message"] == "its former Ray is still there"
        assert "restart-ray" in edge.ray.asked
        edge.node.conditions.set_false("RayJoined", "Joining", "`ray start` is running")
        edge.ray.start(200)
        joining = (await anext(events))["nodes"][0]
        assert (joining["ready"], joining["message"]) == (False, "Joining: `ray start` is running")
        edge.node.conditions.set_true("RayJoined", "AliveInRay", "alive")
        assert (await anext(events))["nodes"][0]["ready"]
        assert (await anext(events)) == {"event": "done", "absent": []}


async def test_a_drivers_workers_are_not_ended_by_accident(edge: Edge) -> None:
    """75 with their names; --force means it."""
    edge.ray.workers = ["ray::RolloutWorker"]
    with pytest.raises(RunInProgressError, match="ray::RolloutWorker") as caught:
        await anext(edge.verb.restart(ROOT, {}))
    assert caught.value.exit_code is ExitCode.TRY_AGAIN
    assert edge.ray.asked == ""
    events = edge.verb.restart(ROOT, {"force": True})
    await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    assert edge.ray.asked


@pytest.mark.parametrize(("spec", "words"), [({}, "no cluster yet"), ({"ray_wanted": False}, "no Ray that")])
async def test_without_a_cluster_the_ray_that_runs_is_left(edge: Edge, spec: dict[str, Any], words: str) -> None:
    """It could not join again."""
    edge.set_spec(**spec)
    with pytest.raises(RayClusterError, match=words):
        await anext(edge.verb.restart(ROOT, {}))
    assert edge.ray.asked == ""


async def test_it_is_for_root_and_the_user_of_ray(edge: Edge) -> None:
    """Nobody else ends processes."""
    with pytest.raises(UsageError, match="may not"):
        await anext(edge.verb.restart(Caller(1, 1001, 1001), {}))
