"""A head daemon's runs with everything around them pretended: the directory, the statuses, whom Ray lists."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

from edgelink.api.server import Caller
from edgelink.config import Config, Paths
from edgelink.ray_cluster.membership import RayMember
from edgelink.reconcile import Wakeup
from edgelink.registry.client import RegistryClient
from edgelink.registry.payloads import Directory, DirectoryEntry, NodeStatus, Role
from edgelink.roles.node import Node
from edgelink.roles.run_requests import RunRequests
from edgelink.roles.runs import Runs
from edgelink.roles.this_machine import ThisMachine
from edgelink.testing import FakeClock

ROOT, ANOTHER = Caller(os.getpid(), 0, 0), Caller(os.getppid(), 0, 0)


@dataclass
class Registry:
    """What the head knows of the network."""

    directory: Directory | None = None
    statuses: dict[str, NodeStatus] = field(default_factory=dict)


class Ray:
    """A Ray that runs."""

    user_uid = 1000
    is_wanted = True
    has_ended = False
    ride_through_s = 300

    def __init__(self) -> None:
        self.wakeup = Wakeup()

    def driver_grant(self) -> dict[str, Any]:
        return {"environment": {"RAY_ADDRESS": "10.10.0.2:6379"}, "pass_env": ["AWS_*"]}


class Head:
    """A head daemon's runs, with everything else pretended."""

    def __init__(self, directory: Path, clock: FakeClock | None = None, config: Config | None = None) -> None:
        self.registry, self.clock = Registry(), clock or FakeClock()
        self.node = Node(
            role=Role.HEAD,
            config=config or Config(),
            paths=Paths(state=directory / "state", runtime=directory / "run"),
            clock=self.clock,
            machine=ThisMachine(),
            enrolment=None,
        )
        self.node.registry = cast(RegistryClient, self.registry)
        self.runs = Runs(self.node)
        self.use(Ray())

    def use(self, ray: Any) -> None:
        """Have the head's Ray be this one."""
        self.ray = self.node.ray = ray
        self.requests = RunRequests(self.runs, ray, "easytier")

    def enrol(self, *entries: DirectoryEntry) -> None:
        self.registry.directory = Directory(network_id="n", epoch=1, entries=entries)
        self.runs.show_nodes_ready()

    def run(self, caller: Caller = ROOT, **body: Any) -> AsyncIterator[dict[str, Any]]:
        return self.requests.stream(caller, {"cluster": None, "timeout_s": 600.0, **body})

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


async def first(events: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        async for event in events:
            if event["event"] == kind:
                return event
    raise AssertionError(f"no {kind}")
