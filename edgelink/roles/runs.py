"""Runs: waiting for the nodes, the run lock, the grant (ADR 0009).

A run is a request that the caller holds open. The stream it gets is, in order: ``waiting`` items whenever something
changes, one ``granted`` item with the environment and the resolved placement, then ``nodes`` items when a node is
lost or comes back. The lock is released when the caller goes away, however it goes. While it is held no node's rank
changes: a rank is frozen at `ray start`, so another one would restart Ray under the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from edgelink.api.server import Caller
from edgelink.conditions import Status
from edgelink.errors import ConfigError, DeadlineError, ExitCode, TrainingError
from edgelink.log import get_logger
from edgelink.placement import Node as PlacementNode
from edgelink.placement import plan
from edgelink.ray_cluster.membership import RayMember
from edgelink.registry.allocator import HEAD_RANK
from edgelink.registry.payloads import DirectoryEntry, NodeStatus
from edgelink.roles.ranks import Ranks, keeping_ranks, rank_map

if TYPE_CHECKING:
    from edgelink.ray_cluster.reconcilers import RayHeadReconciler
    from edgelink.roles.node import Node

log = get_logger("runs")

_LOOK_S = 0.25
_DIRECTORY_NOT_SEEN = "the relay has not told yet who is in the network"
_LIFE_ORDER = ("Leased", "RegistryConnected", "OverlayUp", "PeersReachable", "RayJoined")


class RunInProgressError(TrainingError):
    """Another run holds the lock."""

    reason = "RunInProgress"
    retryable = True
    exit_code = ExitCode.TRY_AGAIN


@dataclass(frozen=True)
class NodeReadiness:
    """How far the node of one rank has come; ``step`` is the condition it stands at."""

    node_rank: int
    hostname: str | None
    overlay_ip: str | None
    ready: bool
    step: str
    message: str


def readiness(
    rank: int, entry: DirectoryEntry | None, status: NodeStatus | None, member: RayMember | None
) -> NodeReadiness:
    """At which step of its life the node of ``rank`` stands, in words for the person who waits; pure."""
    if entry is None:
        return NodeReadiness(
            rank,
            None,
            None,
            ready=False,
            step="Enrolled",
            message=f"nobody is enrolled with rank {rank}: make a token on the relay (`edgelink token create`) and "
            "join one more machine, or lower cluster.num_nodes",
        )

    def node(step: str, message: str, *, ready: bool = False) -> NodeReadiness:
        return NodeReadiness(rank, entry.hostname, str(entry.overlay_ip), ready, step, message)

    if member is not None and member.alive:
        return node("RayJoined", "alive in Ray", ready=True)
    if status is None:
        return node("Started", f"never seen: start `edgelink edge` on {entry.hostname}")
    if not status.online:
        return node("Started", f"offline: is {entry.hostname} switched on, and `edgelink edge` running there?")
    conditions = {condition["type"]: condition for condition in status.conditions}
    for step in _LIFE_ORDER:
        condition = conditions.get(step)
        if condition is None or condition["status"] != Status.TRUE.value:
            why = f"{condition['reason']}: {condition['message']}" if condition else "not reported"
            return node(step, why)
    return node("RayJoined", f"ready; waiting for Ray to list it with node rank {rank}")


class Runs:
    """The one run at a time of a head."""

    def __init__(self, node: Node) -> None:
        self.ray: RayHeadReconciler | None = None
        self._node = node
        self._holder: str | None = None
        self._members: Sequence[RayMember] = ()
        self._changed = asyncio.Event()
        self._in_use: Ranks | None = None  # what the run relies on, from its grant to its end
        self._is_held_back = False

    def ray_members_changed(self, members: Sequence[RayMember]) -> None:
        """What Ray lists now; called by the head's watch."""
        self._members = members
        self._changed.set()
        self.show_nodes_ready()

    def ranks(self) -> Ranks:
        """Who takes part, with which rank; while a run is granted, no rank that it uses changes (ADR 0008)."""
        registry = self._node.registry
        wanted = rank_map(registry.directory if registry else None)
        if self._in_use is None:
            return wanted
        self._in_use = keeping_ranks(wanted, self._in_use)
        is_held_back = self._in_use is not wanted
        if is_held_back and not self._is_held_back:
            log.info("runs.ranks_kept", why="a change of node ranks waits for the end of the run", holder=self._holder)
        self._is_held_back = is_held_back
        return self._in_use

    def show_nodes_ready(self) -> None:
        """NodesReady says whether all who hold a lease with a rank are alive in Ray, with that rank."""
        conditions, expected, alive = self._node.conditions, self.ranks(), self._alive()
        missing = [entry.hostname for entry, rank in expected if (str(entry.overlay_ip), rank) not in alive]
        if not expected:
            conditions.set("NodesReady", Status.UNKNOWN, "DirectoryNotSeen", _DIRECTORY_NOT_SEEN)
        elif missing:
            conditions.set_false("NodesReady", "NodesMissing", f"not alive in Ray: {', '.join(missing)}")
        else:
            conditions.set_true("NodesReady", "AllAlive", f"{len(expected)} of {len(expected)} nodes alive in Ray")

    async def stream(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``POST /run`` with body ``{"cluster": …, "timeout_s": …, "command": …}``.

        Raises:
            RunInProgressError: another run holds the lock.
            PlacementError: the cluster section cannot be resolved on these nodes.
            DeadlineError: the nodes were not there in time.
        """
        ray = self._require_ray(caller)
        if self._holder is not None:
            raise RunInProgressError(
                f"a run is in progress on this head: {self._holder}", hint="wait for its end, or stop it (Ctrl+C there)"
            )
        conditions = self._node.conditions
        self._holder = f"pid {caller.pid} of user id {caller.uid}, since {self._node.clock.now():%H:%M:%S} UTC"
        try:
            count = node_count(body.get("cluster"))
            async for report in self._wait(count, float(body.get("timeout_s", 600.0))):
                yield report
            self._in_use = self.ranks()
            environment = ray.driver_variables()
            resolved = plan(body["cluster"], self._placement_nodes(count)).to_dict() if body.get("cluster") else None
            conditions.set_true("DriverRunning", "Granted", f"run granted to {self._holder}")
            log.info("runs.granted", holder=self._holder)
            yield {"event": "granted", "environment": environment, "placement": resolved, "nodes": self._dicts(count)}
            async for report in self._watch(count):
                yield report
        finally:
            log.info("runs.ended", holder=self._holder)
            self._holder = self._in_use = None
            self._node.wake()  # a change of ranks may have waited for this
            conditions.set("DriverRunning", Status.FALSE, "NoRun", "no run is in progress")

    def _require_ray(self, caller: Caller) -> RayHeadReconciler:
        assert self.ray is not None
        caller.require(self.ray.user_uid)
        return self.ray

    async def _wait(self, count: int, timeout_s: float) -> AsyncIterator[dict[str, Any]]:
        clock = self._node.clock
        deadline_s = clock.monotonic_s() + timeout_s
        last: list[NodeReadiness] = []
        while True:
            now = self._readiness(count)
            if now != last:
                last = now
                left_s = max(0.0, deadline_s - clock.monotonic_s())
                yield {"event": "waiting", "nodes": [asdict(node) for node in now], "left_s": round(left_s, 1)}
            if all(node.ready for node in now):
                return
            if clock.monotonic_s() >= deadline_s:
                raise _missing(now, timeout_s)
            await self._next_change()

    async def _watch(self, count: int) -> AsyncIterator[dict[str, Any]]:
        last = self._readiness(count)
        while True:
            await self._next_change()
            now = self._readiness(count)
            if [node.ready for node in now] != [node.ready for node in last]:
                yield {"event": "nodes", "nodes": [asdict(node) for node in now]}
            last = now

    async def _next_change(self) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(_LOOK_S):  # conditions of other nodes come by another road
                await self._changed.wait()
        except TimeoutError:
            pass

    def _readiness(self, count: int) -> list[NodeReadiness]:
        registry = self._node.registry
        if registry is None or registry.directory is None:
            return [self._readiness_without_directory()]
        entries = {rank: entry for entry, rank in self.ranks()}
        statuses, alive = registry.statuses, self._alive()
        report = []
        for rank in range(count or max(1, len(entries))):
            entry = entries.get(rank)
            status = statuses.get(entry.node_id) if entry else None
            if entry is not None and entry.node_id == self._node.key.node_id:
                status = self._own_status()
            report.append(readiness(rank, entry, status, alive.get((str(entry.overlay_ip), rank)) if entry else None))
        return report

    def _alive(self) -> dict[tuple[str, int | None], RayMember]:
        """By address and rank: for a while after a restart, Ray lists the former Ray of a node as alive, too.

        The helper lists the newest first, and that one counts.
        """
        return {(member.ip, member.rank): member for member in reversed(self._members) if member.alive}

    def _readiness_without_directory(self) -> NodeReadiness:
        """Of this node, when it alone is known: nobody is ready before it is told who takes part."""
        lease = self._node.membership.lease if self._node.membership else None
        session = self._node.conditions.get("RegistryConnected")
        return NodeReadiness(
            HEAD_RANK,
            lease.hostname if lease else None,
            str(lease.overlay_ip) if lease else None,
            ready=False,
            step=session.type,
            message=_DIRECTORY_NOT_SEEN if session.status is Status.TRUE else f"{session.reason}: {session.message}",
        )

    def _own_status(self) -> NodeStatus:
        conditions = tuple(self._node.conditions.to_list())
        return NodeStatus(node_id=self._node.key.node_id, online=True, conditions=conditions)

    def _dicts(self, count: int) -> list[dict[str, Any]]:
        return [asdict(node) for node in self._readiness(count)]

    def _placement_nodes(self, count: int) -> list[PlacementNode]:
        alive = self._alive()
        nodes = []
        for ready in self._readiness(count):
            member = alive[str(ready.overlay_ip), ready.node_rank]
            nodes.append(
                PlacementNode(
                    rank=ready.node_rank,
                    ip=str(ready.overlay_ip),
                    hostname=ready.hostname or "",
                    accelerator=member.accelerator,
                    accelerator_count=member.accelerator_count,
                )
            )
        return nodes


def node_count(cluster: Any) -> int:
    """``cluster.num_nodes``; 0 (all who are enrolled) without a cluster file. Raises ConfigError."""
    if cluster is None:
        return 0
    count = cluster.get("num_nodes") if isinstance(cluster, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(f"cluster.num_nodes must be a whole number of at least 1, not {count!r}")
    return count


def _missing(nodes: list[NodeReadiness], timeout_s: float) -> DeadlineError:
    missing = [node for node in nodes if not node.ready]
    lines = "; ".join(
        f"{node.hostname or f'rank {node.node_rank}'} at {node.step} ({node.message})" for node in missing
    )
    return DeadlineError(
        f"{len(nodes) - len(missing)} of {len(nodes)} nodes were ready after {timeout_s:g} s; missing: {lines}",
        hint="mend what is named and run again, or give more time with --timeout",
        reason="NodesMissing",
    )
