"""Runs: waiting for the nodes, the run lock, the grant (ADR 0009).

A run is a request that the caller holds open. The stream it gets is, in order: ``waiting`` items whenever something
changes, one ``granted`` item with the environment and the resolved placement, then ``nodes`` items when a node is
lost or comes back. The lock is released when the caller goes away, however it goes. While it is held no node's rank
changes: a rank is frozen at `ray start`, so another one would restart Ray under the run.

A caller that starts its driver again asks once more before it lets go of the request before. One whose daemon was
restarted asks with ``running``: it is granted at once, because its driver has gone on meanwhile (ADR 0019).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from edgelink.api.server import Caller, Route, route, stream_route
from edgelink.conditions import Status
from edgelink.errors import ConfigError, DeadlineError, RayClusterError, UsageError
from edgelink.facts.board import Fact
from edgelink.log import get_logger
from edgelink.placement import Node as PlacementNode
from edgelink.placement import plan
from edgelink.ray_cluster.membership import RayMember
from edgelink.registry.allocator import HEAD_RANK
from edgelink.roles.gang import Gang
from edgelink.roles.ranks import Ranks, keeping_addresses, keeping_ranks, rank_map
from edgelink.roles.ray_commands import require_ray_user
from edgelink.roles.readiness import NodeReadiness, readiness
from edgelink.roles.run_lock import RunLock
from edgelink.timeouts import timeout
from edgelink.training.run_record import RunMetrics, RunRecord

if TYPE_CHECKING:
    from edgelink.ray_cluster.reconcilers import RayHeadReconciler
    from edgelink.roles.node import Node

RUN_MEMBERS: Final[Fact[frozenset[str]]] = Fact("run_members")

log = get_logger("runs")

_LOOK_S = 0.25
MOST_NODES = 65_533  # a /16, the largest overlay network, has no room for more
_MOST_UNCLAIMED = 256  # ranks that nobody holds, of which each is told: their rows are made anew at every look
_MOST_BATCHES = 64  # of metrics: the page takes them within seconds
_DIRECTORY_NOT_SEEN = "the relay has not told yet who is in the network"


RunPoints = Sequence[tuple[float, Mapping[str, float]]]  # step and values


class RayStoppedError(RayClusterError):
    """Ray was stopped on every node; a run, or one node alone, does not bring it back."""

    reason = "RayStopped"
    retryable = False

    def __init__(self) -> None:
        super().__init__(
            "Ray was stopped on every node by `edgelink stop --all`",
            hint="`edgelink restart-ray --all` starts it again",
        )


class Runs:
    """The one run at a time of a head."""

    def __init__(self, node: Node) -> None:
        self.ray: RayHeadReconciler | None = None
        self.lock = RunLock(node.paths.run_lock, node.clock, self._released, node.files)
        self._node = node
        self._put_run_members = node.board.claim(RUN_MEMBERS, "runs")
        self.members: Sequence[RayMember] = ()
        self._changed = asyncio.Event()
        self.on_change: Callable[[], None] = lambda: None
        self._points: deque[tuple[str, RunPoints]] = deque(maxlen=_MOST_BATCHES)  # told, and not taken yet
        self._is_held_back = False
        self.gang = Gang(node, self)
        self._ranks: Ranks = []  # as they were looked at last
        self._record_path = node.paths.state / "last-run.json"
        self._record = self._read_record()
        if self.lock.holder is not None:
            self._show_granted()
            return
        self._show_no_run()
        if self._record is not None:
            self._record = self._record.ended_without_a_word(node.clock.now())

    @property
    def record(self) -> dict[str, Any] | None:
        """The run in progress, else the last one: its attempts and how they ended."""
        if self._record is None:
            return None
        return {**self._record.model_dump(mode="json"), "in_progress": self.lock.holder is not None}

    def moment(self) -> dict[str, Any]:
        """For the flight recorder: how far the run in progress is."""
        last = self._record.attempts[-1] if self._record and self._record.attempts and self.lock.holder else None
        return {
            "attempt": last.number if last else None,
            "step": last.step if last else None,
        }

    def ray_alive(self) -> list[str]:
        """For the flight recorder: whom Ray lists."""
        return sorted(f"{member.rank}:{member.node_id[:8]}" for member in self.members if member.alive)

    @property
    def granted_to(self) -> str | None:
        """Whose run relies on the cluster as it is, from its grant to its end."""
        return None if self.lock.ranks is None else self.lock.holder

    def ray_members_changed(self, members: Sequence[RayMember]) -> None:
        """What Ray lists now; called by the head's watch."""
        self.members = members
        self._changed.set()
        self.show_nodes_ready()
        self.on_change()

    def ranks(self) -> Ranks:
        """Who takes part, with which rank; while a run is granted, no rank that it uses changes (ADR 0008)."""
        registry = self._node.registry
        asked_for = self.lock.nodes
        wanted = rank_map(
            registry.directory if registry else None, lambda entry: not asked_for or entry.node_id in asked_for
        )
        if registry is not None:
            wanted = keeping_addresses(wanted, self._ranks, self._node.board.facts.waiting)
        self._ranks = wanted
        in_use = self.lock.ranks
        if in_use is None:
            return wanted
        kept = keeping_ranks(wanted, in_use)
        self.lock.use_ranks(kept)
        is_held_back = kept is not wanted
        if is_held_back and not self._is_held_back:
            why = "a change of node ranks or addresses waits for the end of the run"
            log.info("runs.ranks_kept", why=why, holder=self.lock.holder)
        self._is_held_back = is_held_back
        return kept

    def show_nodes_ready(self) -> None:
        """NodesReady says whether all who hold a lease with a rank are alive in Ray, with that rank."""
        self.gang.known_labels()  # while everybody is there to tell them
        conditions, expected, alive = self._node.conditions, self.ranks(), self._alive()
        missing = [entry.hostname for entry, rank in expected if (str(entry.overlay_ip), rank) not in alive]
        if not expected:
            conditions.set("NodesReady", Status.UNKNOWN, "DirectoryNotSeen", _DIRECTORY_NOT_SEEN)
        elif missing:
            conditions.set_false("NodesReady", "NodesMissing", f"not alive in Ray: {', '.join(missing)}")
        else:
            conditions.set_true("NodesReady", "AllAlive", f"{len(expected)} of {len(expected)} nodes alive in Ray")

    def routes(self) -> Iterator[Route]:
        yield stream_route("POST", "/run", self.stream)
        yield route("POST", "/run/record", self.note)
        yield route("POST", "/run/metrics", self.note_metrics)
        yield route("GET", "/driver-environment", self.driver_grant)
        yield route("GET", "/placement/nodes", self.live_nodes)

    async def stream(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``POST /run`` with body ``{"cluster": …, "nodes": …, "timeout_s": …, "record": …, "running": …}``.

        With ``nodes`` (names and labels) only these take part, with ranks of their own, from the wait to the end
        of the run: Ray ends on the others, and starts anew where the rank is another one.

        Raises:
            UsageError: nobody has such a name or label.
            RunInProgressError: another run holds the lock.
            RayStoppedError: Ray was stopped on every node, and only a command starts it again.
            PlacementError: the cluster section cannot be resolved on these nodes.
            DeadlineError: the nodes were not there in time.
            NotRecordedError: what the next daemon has to know of the run cannot be written.
        """
        ray = await self._require_ray(caller)
        record = _record_in(body)
        with self.lock.held_by(caller, record.run_id if record else None, is_under_way=bool(body.get("running"))):
            self._note(record)
            count = node_count(body.get("cluster"))
            granted: dict[str, Any] = {"event": "granted"}
            if not ray.is_wanted:
                raise RayStoppedError
            if body.get("running"):
                log.info("runs.taken_up_again", holder=self.lock.holder)
                if self.lock.ranks is None:  # its record was lost, and with it what the run relies on
                    self.lock.use_ranks(self.ranks())
            else:
                timeout_s = float(body.get("timeout_s", 600.0))
                async for report in self.gang.wait_for_run(tuple(body.get("nodes") or ()), count, timeout_s):
                    yield report
                granted |= ray.driver_grant()
                granted["overlay"] = self._node.config.overlay.kind
                granted["without_rank"] = [f"Ray at {found.ip} ({found.hostname})" for found in self._without_rank()]
                nodes = self._placement_nodes(count)
                granted["placement"] = plan(body["cluster"], nodes).to_dict(env=False) if body.get("cluster") else None
                self.lock.grant(self.ranks(), granted["placement"])
                log.info("runs.granted", holder=self.lock.holder)
            self._show_granted()
            seen = self.nodes(count)
            yield {**granted, "nodes": [asdict(node) for node in seen]}
            async for report in self._watch(count, seen):
                yield report

    async def driver_grant(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``GET /driver-environment``: what a run would be granted now. Raises RayClusterError."""
        return (await self._require_ray(caller)).driver_grant()

    async def note(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /run/record``: the holder's account of its attempts. Raises RunInProgressError."""
        await self._require_ray(caller)
        record = _record_in(body)
        self.lock.check(caller, record.run_id if record else None)
        self._note(record)
        return {}

    async def note_metrics(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /run/metrics``: what the holder's driver said of its steps. Raises RunInProgressError."""
        await self._require_ray(caller)
        try:
            metrics = RunMetrics.model_validate(body)
        except ValidationError as error:
            raise UsageError(f"the metrics of the run cannot be read: {error}") from error
        self.lock.check(caller, metrics.run_id)
        self._points.append((metrics.run_id, [(point.step, point.values) for point in metrics.points]))
        self.on_change()
        return {}

    def take_points(self) -> list[tuple[str, RunPoints]]:
        """What drivers said since this was last asked, by run."""
        taken = list(self._points)
        self._points.clear()
        return taken

    def _note(self, record: RunRecord | None) -> None:
        if record is None:
            return
        before, self._record = self._record, record
        self.on_change()
        if before is None or before.without_steps() != record.without_steps():  # a step is worth no disk write
            self._node.files.keep(self._record_path, record.model_dump_json())

    def _read_record(self) -> RunRecord | None:
        try:
            return RunRecord.model_validate_json(self._record_path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def _show_granted(self) -> None:
        self._put_run_members(frozenset(entry.node_id for entry, _ in self.lock.ranks or ()))
        self._node.conditions.set_true("DriverRunning", "Granted", f"run granted to {self.lock.holder}")

    def _released(self) -> None:
        if self._record is not None:
            self._record = self._record.ended_without_a_word(self._node.clock.now())
            self._node.files.keep(self._record_path, self._record.model_dump_json())
        self._node.wake()  # a change of ranks may have waited for this
        self._show_no_run()
        self.on_change()

    def _show_no_run(self) -> None:
        self._put_run_members(frozenset())
        self._node.conditions.set_false("DriverRunning", "NoRun", "no run is in progress")

    async def _require_ray(self, caller: Caller) -> RayHeadReconciler:
        assert self.ray is not None
        await require_ray_user(caller, self.ray)
        return self.ray

    async def _watch(self, count: int, last: list[NodeReadiness]) -> AsyncIterator[dict[str, Any]]:
        while True:
            await self.next_change()
            now = self.nodes(count)
            if [_facts(node) for node in now] != [_facts(node) for node in last]:
                yield {"event": "nodes", "nodes": [asdict(node) for node in now]}
            last = now

    async def next_change(self) -> None:
        """Return when something may have changed, and soon in any case."""
        self._changed.clear()
        try:
            async with timeout(_LOOK_S):  # conditions of other nodes come by another road
                await self._changed.wait()
        except TimeoutError:
            pass

    def nodes(self, count: int = 0) -> list[NodeReadiness]:
        """How far the node of each of the first ``count`` ranks (0: all) has come; before the directory is there, this
        one alone. Of the ranks above everybody's, only the first are told."""
        registry = self._node.registry
        if registry is None or registry.directory is None:
            return [self._readiness_without_directory()]
        entries = {rank: entry for entry, rank in self.ranks()}
        statuses, alive, ray_known = registry.statuses, self._alive(), self._ray_known
        own, report = self._node.versions(), []
        at = {ip: member for (ip, rank), member in alive.items() if rank is not None}
        for rank in range(min(count, max(entries, default=0) + 1 + _MOST_UNCLAIMED) or max(1, len(entries))):
            entry = entries.get(rank)
            status = statuses.get(entry.node_id) if entry else None
            if entry is not None and entry.node_id == self._node.key.node_id:
                status = self._node.node_status()
            member = alive.get((str(entry.overlay_ip), rank)) if entry else None
            former = at.get(str(entry.overlay_ip)) if entry else None
            ready = readiness(rank, entry, status, member, own, former)
            ready = replace(ready, ray_node_id=member.node_id if member else None, ray_known=ray_known)
            if status is not None:
                ready = replace(ready, online=status.online, device=status.device)
            report.append(ready)
        return report

    def _alive(self) -> dict[tuple[str, int | None], RayMember]:
        """By address and rank: for a while after a restart, Ray lists the former Ray of a node as alive, too.

        The helper lists the newest first, and that one counts.
        """
        return {(member.ip, member.rank): member for member in reversed(self.members) if member.alive}

    @property
    def _ray_known(self) -> bool:
        """Ray tells who is alive, or its head has ended here, and everybody's Ray with it."""
        is_listed = any(member.rank == HEAD_RANK and member.alive for member in self.members)
        return is_listed or (self.ray is not None and self.ray.has_ended)

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
            brief="waits for the relay to tell who is in the network",
            message=_DIRECTORY_NOT_SEEN if session.status is Status.TRUE else f"{session.reason}: {session.message}",
            ray_known=False,
        )

    async def live_nodes(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``GET /placement/nodes``: who is alive in Ray now, as nodes of a plan."""
        names = {str(entry.overlay_ip): entry.hostname for entry, _ in self.ranks()}
        devices = {node.overlay_ip: node.device for node in self.nodes()}
        nodes = [
            {
                "rank": member.rank,
                "ip": member.ip,
                "hostname": names.get(member.ip, member.hostname),
                "accelerator": member.accelerator,
                "accelerator_count": member.accelerator_count,
                "device": devices.get(member.ip),
            }
            for member in self._alive().values()
        ]
        return {"nodes": nodes}

    def _placement_nodes(self, count: int) -> list[PlacementNode]:
        alive = self._alive()
        nodes = []
        for ready in self.nodes(count):
            member = alive.get((str(ready.overlay_ip), ready.node_rank))
            if member is None:
                raise DeadlineError(
                    f"{ready.hostname or f'rank {ready.node_rank}'} was lost just before the run was granted",
                    hint="run again; `edgelink nodes` shows what is wrong with it",
                    reason="NodesMissing",
                )
            nodes.append(
                PlacementNode(
                    rank=ready.node_rank,
                    ip=str(ready.overlay_ip),
                    hostname=ready.hostname or "",
                    accelerator=member.accelerator,
                    accelerator_count=member.accelerator_count,
                )
            )
        # RLinf looks at everybody who is alive in Ray, and refuses ranks on only some of them.
        strangers = (
            PlacementNode(
                rank=None,
                ip=member.ip,
                hostname=member.hostname,
                accelerator=member.accelerator,
                accelerator_count=member.accelerator_count,
            )
            for member in self._without_rank()
        )
        return [*nodes, *strangers]

    def _without_rank(self) -> list[RayMember]:
        """Who is alive in Ray, and was not started by EdgeLink; those with a rank are waited for until they go."""
        return [member for member, _ in self.gang.strangers() if member.rank is None]


def _record_in(body: dict[str, Any]) -> RunRecord | None:
    """The account that a request carries. Raises UsageError."""
    if body.get("record") is None:
        return None
    try:
        return RunRecord.model_validate(body["record"])
    except ValidationError as error:
        raise UsageError(f"the account of the run cannot be read: {error}") from error


def _facts(node: NodeReadiness) -> tuple[Any, ...]:
    """What a caller whose driver runs has to be told of."""
    return node.ready, node.ray_node_id, node.online, node.ray_known


def node_count(cluster: Any) -> int:
    """``cluster.num_nodes``; 0 (all who are enrolled) without a cluster file. Raises ConfigError."""
    if cluster is None:
        return 0
    count = cluster.get("num_nodes") if isinstance(cluster, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_NODES:
        raise ConfigError(f"cluster.num_nodes must be a whole number from 1 to {MOST_NODES}, not {count!r}")
    return count
