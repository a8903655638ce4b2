"""Runs: who counts as ready, and what a run in progress holds still."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

import pytest

from edgelink.api.server import Caller
from edgelink.config import Config, Paths
from edgelink.errors import DeadlineError, ExitCode
from edgelink.ray_cluster.membership import RayMember
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.registry.client import RegistryClient
from edgelink.registry.payloads import Directory, DirectoryEntry, NodeStatus, Role
from edgelink.roles.node import Node
from edgelink.roles.runs import RunInProgressError, Runs
from edgelink.testing import FakeClock

ROOT = Caller(1, 0, 0)


@dataclass
class Registry:
    """What the head knows of the network."""

    directory: Directory | None = None
    statuses: dict[str, NodeStatus] = field(default_factory=dict)


class Ray:
    """A Ray that runs."""

    user_uid = 1000

    def driver_variables(self) -> dict[str, str]:
        return {"RAY_ADDRESS": "10.10.0.2:6379"}


class Head:
    """A head daemon's runs, with everything else pretended."""

    def __init__(self, directory: Path) -> None:
        self.registry = Registry()
        self.node = Node(
            role=Role.HEAD,
            config=Config(),
            paths=Paths(state=directory / "state", runtime=directory / "run"),
            clock=FakeClock(),
            enrolment=None,
            informative=("NodesReady", "DriverRunning"),
        )
        self.node.registry = cast(RegistryClient, self.registry)
        self.node.publish_status = lambda: None  # type: ignore[method-assign]
        self.runs = Runs(self.node)
        self.runs.ray = cast(RayHeadReconciler, Ray())

    def enrol(self, *entries: DirectoryEntry) -> None:
        self.registry.directory = Directory(network_id="n", epoch=1, entries=entries)
        self.runs.show_nodes_ready()

    def run(self, **body: Any) -> AsyncIterator[dict[str, Any]]:
        return self.runs.stream(ROOT, {"cluster": None, "timeout_s": 600.0, **body})

    def ranks(self) -> dict[str, int]:
        return {entry.hostname: rank for entry, rank in self.runs.ranks()}

    def nodes_ready(self) -> str:
        return self.node.conditions.get("NodesReady").reason


def entry(name: str, ip: str, rank: int) -> DirectoryEntry:
    return DirectoryEntry(
        node_id=(name.replace("-", "").rstrip("0123456789") + str(rank + 2)).ljust(26, "a"),
        hostname=name,
        role=Role.HEAD if rank == 0 else Role.EDGE,
        overlay_ip=IPv4Address(ip),
        preferred_rank=rank,
        verify_key="AA==",
    )


def member(ip: str, rank: int, *, alive: bool = True, accelerators: int = 0) -> RayMember:
    return RayMember(f"{ip}-{rank}", ip, rank, alive, "host", "NV_GPU", accelerators)


CLOUD, EDGE_1, EDGE_2 = entry("cloud", "10.10.0.2", 0), entry("edge-1", "10.10.0.3", 1), entry("edge-2", "10.10.0.4", 2)


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


async def first(events: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    async with asyncio.timeout(5):
        async for event in events:
            if event["event"] == kind:
                return event
    raise AssertionError(f"no {kind}")


def test_nodes_ready_follows_the_directory_too(head: Head) -> None:
    """Somebody who enrols is missing at once, though nothing has changed in Ray."""
    head.runs.show_nodes_ready()
    assert head.nodes_ready() == "DirectoryNotSeen"
    head.enrol(CLOUD)
    assert head.nodes_ready() == "NodesMissing"
    head.runs.ray_members_changed([member("10.10.0.2", 0)])
    assert head.nodes_ready() == "AllAlive"
    head.enrol(CLOUD, EDGE_1)
    assert head.nodes_ready() == "NodesMissing"


async def test_alive_under_another_rank_is_not_ready(head: Head) -> None:
    """A node whose rank has just changed still runs its old Ray: a driver started now would find it misplaced."""
    head.enrol(CLOUD, EDGE_1)
    head.runs.ray_members_changed([member("10.10.0.2", 0), member("10.10.0.3", 2)])
    with pytest.raises(DeadlineError, match="1 of 2 nodes"):
        await first(head.run(timeout_s=0), "granted")


async def test_the_newest_of_two_rays_of_a_node_counts(head: Head) -> None:
    """After a crash Ray lists the dead raylet as alive for a while; the helper lists the newest first."""
    head.enrol(CLOUD)
    newest, former = member("10.10.0.2", 0, accelerators=2), member("10.10.0.2", 0)
    head.runs.ray_members_changed([newest, former, member("10.10.0.2", 0, alive=False)])
    cluster = {"num_nodes": 1, "component_placement": {"actor": "0"}}
    async with aclosing(head.run(cluster=cluster)) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
    assert granted["nodes"][0]["ready"]
    assert granted["placement"] is not None


async def test_no_rank_changes_under_a_run(head: Head) -> None:
    """A rank is frozen at `ray start`: releasing a node must not restart the others' Ray while a run is on."""
    head.enrol(CLOUD, EDGE_1, EDGE_2)
    head.runs.ray_members_changed([member("10.10.0.2", 0), member("10.10.0.3", 1), member("10.10.0.4", 2)])
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        await first(events, "granted")
        head.enrol(CLOUD, EDGE_1, EDGE_2, entry("edge-3", "10.10.0.5", 3))
        assert head.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2, "edge-3": 3}
        head.enrol(CLOUD, EDGE_2, entry("edge-3", "10.10.0.5", 3))
        assert head.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2, "edge-3": 3}
        with pytest.raises(RunInProgressError) as second:
            await first(head.run(), "granted")
        assert second.value.exit_code is ExitCode.TRY_AGAIN
    assert head.ranks() == {"cloud": 0, "edge-2": 1, "edge-3": 2}
