"""A head's daemon as `edgelink head` puts it together, which does not run: a test gives it facts, and asks it.

For the many cases of what a head says and grants, some milliseconds each. A story in a :class:`sim.Sim` costs a second,
and nobody enrols half a node there; how daemons come to know these facts is told there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from edgelink.api.server import Caller
from edgelink.config import Config, Paths
from edgelink.daemon import head
from edgelink.daemon.this_machine import ThisMachine
from edgelink.facts.board import Table
from edgelink.protocol.payloads import Directory, DirectoryEntry, NodeStatus
from edgelink.ray_cluster.helper_runner import RayTools
from edgelink.ray_cluster.interpreter import Interpreter, RayUser
from edgelink.ray_cluster.ray_capabilities import RayCapabilities
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.testing import FakeClock
from edgelink.testing.facts import give
from edgelink.testing.payloads import entry

ROOT, ANOTHER = Caller(os.getpid(), 0, 0), Caller(os.getppid(), 0, 0)
NOWHERE = Path("/nonexistent")
TOOLS = RayTools(
    Interpreter(NOWHERE, "3.11.2", "2.60.0", owner_uid=1000),
    RayUser(1000, 1000, "ray", NOWHERE),
    RayCapabilities.for_version("2.60.0"),
)


class Head:
    """The daemon and its clock. ``statuses``: what the nodes have said of themselves."""

    def __init__(self, directory: Path, clock: FakeClock | None = None, config: Config | None = None) -> None:
        self.clock = clock or FakeClock()
        paths = Paths(state=directory / "state", runtime=directory / "run")
        self.node = head.Head(config or Config(), paths, self.clock, ThisMachine(), None)
        self.runs, self.requests = self.node.runs, self.node.run_requests
        self.node.ray.driver_grant = lambda _uid: {}  # type: ignore[method-assign]
        self.node.inputs.ray.prepare = self._prepare  # type: ignore[method-assign]
        self.own = CLOUD.model_copy(update={"node_id": self.node.member.key.node_id})
        self.statuses: dict[str, NodeStatus] = {}
        give(self.node.base.board, statuses=Table(self.statuses, revision=1))

    async def _prepare(self) -> RayTools:
        self.node.inputs.ray.tools = TOOLS
        return TOOLS

    def enrol(self, *entries: DirectoryEntry) -> None:
        give(self.node.base.board, directory=Directory(network_id="n", epoch=1, entries=entries))
        self.runs.standing.show_nodes_ready()

    @property
    def granted(self) -> bool:
        """Whether a run relies on the cluster."""
        run = self.node.base.board.facts.run
        return run is not None and run.is_granted

    def lists(self, members: Sequence[RayMember]) -> None:
        """Ray lists these."""
        give(self.node.base.board, ray_members=tuple(members))
        self.runs.standing.show_nodes_ready()

    def run(self, caller: Caller = ROOT, **body: Any) -> AsyncIterator[dict[str, Any]]:
        return self.requests.stream(caller, {"cluster": None, "timeout_s": 600.0, **body})

    def ranks(self) -> dict[str, int]:
        return {entry.hostname: rank for entry, rank in self.runs.roster.ranks()}

    def nodes_ready(self) -> str:
        return self.node.base.conditions.get("NodesReady").reason


def member(ip: str, rank: int, *, alive: bool = True, accelerators: int = 0) -> RayMember:
    return RayMember(f"{ip}-{rank}", ip, rank, alive, "host", "NV_GPU", accelerators)


CLOUD, EDGE_1, EDGE_2 = entry("cloud", "10.10.0.2", 0), entry("edge-1", "10.10.0.3", 1), entry("edge-2", "10.10.0.4", 2)


async def first(events: AsyncIterator[dict[str, Any]], kind: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        async for event in events:
            if event["event"] == kind:
                return event
    raise AssertionError(f"no {kind}")
