"""The one run at a time of a head: its lock, its ranks, its record, and how far each node is (ADR 0009)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from edgelink.conditions import Status
from edgelink.errors import RayClusterError
from edgelink.facts.board import Fact
from edgelink.log import get_logger
from edgelink.ray_cluster.membership import RayMember
from edgelink.ray_cluster.no_ray import NO_RAY
from edgelink.reconcile import Wakeup
from edgelink.registry.allocator import HEAD_RANK
from edgelink.registry.payloads import ClusterSpec, Directory, DirectoryEntry, EdgesOpenTo
from edgelink.roles.gang import Gang
from edgelink.roles.ranks import Ranks, could_take_part, keeping_addresses, keeping_ranks, rank_map
from edgelink.roles.readiness import NodeFacts, NodeReadiness, readiness, unclaimed
from edgelink.roles.run_lock import RunLock
from edgelink.runs.without_ray import WithoutRayBook
from edgelink.timeouts import timeout
from edgelink.training.run_record import RunRecord

if TYPE_CHECKING:
    from edgelink.roles.node import Node

RUN_MEMBERS: Final[Fact[frozenset[str]]] = Fact("run_members")
RAY_ALIVE: Final[Fact[frozenset[str]]] = Fact("ray_alive")

log = get_logger("runs")

_LOOK_S = 0.25
_COMES_BACK_S = 30.0  # until then whoever runs has told a daemon that was restarted
MOST_NODES = 65_533  # a /16, the largest overlay network, has no room for more
_MOST_UNCLAIMED = 256  # ranks that nobody holds, of which each is told: their rows are made anew at every look
_MOST_UNTAKEN = 64  # batches of metrics, and records: the page takes them within seconds
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
        self.lock = RunLock(node.paths.run_lock, node.clock, self._released, node.files)
        self._node = node
        self._put_run_members = node.board.claim(RUN_MEMBERS, "runs")
        self._put_ray_alive = node.board.claim(RAY_ALIVE, "runs")
        self.members: Sequence[RayMember] = ()
        self._changed = asyncio.Event()
        self._watchers: list[Wakeup] = []
        # What was told, and not taken yet.
        self._points: deque[tuple[str, RunPoints]] = deque(maxlen=_MOST_UNTAKEN)
        self._records: deque[tuple[datetime, RunRecord]] = deque(maxlen=_MOST_UNTAKEN)
        self._is_held_back = False
        self._edges_meet = False  # the run that is about to be granted needs that
        self._may_come_back_until_s = node.clock.monotonic_s() + _COMES_BACK_S
        self._without_ray = WithoutRayBook(node.paths.state / "without-ray.json", node.files)
        self.gang = Gang(node, self)
        self._ranks: Ranks = []  # as they were looked at last
        self._record_path = node.paths.state / "last-run.json"
        self._record = self._read_record()
        if self.lock.holder is not None:
            self.show_granted()
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

    def watch(self, wakeup: Wakeup) -> None:
        """Set ``wakeup`` when Ray lists others, and when there are points or a record to take."""
        self._watchers.append(wakeup)

    def _wake_watchers(self) -> None:
        for wakeup in self._watchers:
            wakeup.set()

    def _put_record(self, record: RunRecord) -> None:
        self._record = record
        self._records.append((self._node.clock.now(), record))
        self._wake_watchers()

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

    def open_edges(self) -> None:
        """Have the edges of the run that is about to begin reach each other, until it ends."""
        self._edges_meet = True
        self._node.wake()  # the cluster spec follows

    def edges_open_to(self, before: ClusterSpec | None) -> EdgesOpenTo:
        """Whom edges answer beside head and relays; ``before``: the last cluster spec, also of a former daemon's."""
        if self._node.config.access == "members":
            return "all"
        if self._edges_meet or self.lock.ranks is not None:
            return "members"
        may_come_back = self._node.clock.monotonic_s() < self._may_come_back_until_s
        was_open = before is not None and before.edges_open_to != "head"
        return "members" if may_come_back and was_open else "head"

    @property
    def granted_to(self) -> str | None:
        """Whose run relies on the cluster as it is, from its grant to its end."""
        return None if self.lock.ranks is None else self.lock.holder

    def ray_members_changed(self, members: Sequence[RayMember]) -> None:
        """What Ray lists now; called by the head's watch."""
        self.members = members
        self._put_ray_alive(frozenset(ip for ip, rank in self.alive() if rank is not None))
        self._changed.set()
        self.show_nodes_ready()
        self._wake_watchers()

    def without_ray(self) -> list[DirectoryEntry]:
        """The nodes with a lease for Ray that have none by their own configuration."""
        known = self._ids_without_ray()
        return [entry for entry in could_take_part(self._node.board.facts.directory) if entry.node_id in known]

    def candidates(self) -> list[DirectoryEntry]:
        """The nodes that could take part in Ray, in the order of their ranks. Without Ray on the head there is none."""
        if not self._node.ray.is_enabled:
            return []
        return could_take_part(self._node.board.facts.directory, self._ids_without_ray())

    def _ids_without_ray(self) -> frozenset[str]:
        facts = self._node.board.facts
        if facts.directory is None:
            return frozenset()
        own = set() if self._node.ray.is_enabled else {self._node.key.node_id}
        return self._without_ray.look(facts.statuses, facts.directory) | own

    def ranks(self) -> Ranks:
        """Who takes part, with which rank; while a run is granted, no rank that it uses changes (ADR 0008)."""
        facts = self._node.board.facts
        now = rank_map(self.candidates(), self.lock.nodes)
        wanted = self._ranks = keeping_addresses(now, self._ranks, facts.waiting)
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
        """NodesReady says whether all who hold a lease with a rank are alive in Ray with that rank, and answer."""
        self.gang.known_labels()  # while everybody is there to tell them
        conditions, expected, alive = self._node.conditions, self.ranks(), self.alive()
        facts = self._node.board.facts
        stopped = facts.stopped - {self._node.key.node_id}  # the last word of this daemon's former life
        there = {entry.node_id for entry, rank in expected if (str(entry.overlay_ip), rank) in alive} - stopped
        absent = [entry for entry, _ in expected if entry.node_id not in there]
        missing = [one.hostname + (" (switched off)" if one.node_id in stopped else "") for one in absent]
        paused = [entry.hostname for entry, _ in expected if entry.node_id in there & facts.paused.keys()]
        told = []
        if missing:
            told.append(f"not alive in Ray: {', '.join(missing)}")
        if paused:
            told.append(f"paused, no answer: {', '.join(paused)}; Ray rides through, `edgelink nodes` says how long")
        if not self._node.ray.is_enabled:
            conditions.set_false("NodesReady", NO_RAY, "this head has no Ray by its configuration (`ray: off`)")
        elif not expected:
            conditions.set("NodesReady", Status.UNKNOWN, "DirectoryNotSeen", _DIRECTORY_NOT_SEEN)
        elif told:
            conditions.set_false("NodesReady", "NodesPaused" if paused else "NodesMissing", "; ".join(told))
        else:
            conditions.set_true("NodesReady", "AllAlive", f"{len(expected)} of {len(expected)} nodes alive in Ray")

    def take_points(self) -> list[tuple[str, RunPoints]]:
        """What drivers said since this was last asked, by run."""
        taken = list(self._points)
        self._points.clear()
        return taken

    def take_records(self) -> list[tuple[datetime, dict[str, Any]]]:
        """Each state of the record since this was last asked, with its time."""
        taken = [(at, record.model_dump(mode="json")) for at, record in self._records]
        self._records.clear()
        return taken

    def add_points(self, run_id: str, points: RunPoints) -> None:
        """Keep what a driver said of its steps until somebody takes it."""
        self._points.append((run_id, points))
        self._wake_watchers()

    def note(self, record: RunRecord | None) -> None:
        """Keep the holder's account of its attempts. None: it gave none."""
        if record is None:
            return
        before = self._record
        self._put_record(record)
        if before is None or before.without_steps() != record.without_steps():  # a step is worth no disk write
            self._node.files.keep(self._record_path, record.model_dump_json())

    def _read_record(self) -> RunRecord | None:
        try:
            return RunRecord.model_validate_json(self._record_path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def show_granted(self) -> None:
        """Say whose run relies on the cluster."""
        self._put_run_members(frozenset(entry.node_id for entry, _ in self.lock.ranks or ()))
        self._node.conditions.set_true("DriverRunning", "Granted", f"run granted to {self.lock.holder}")

    def _released(self) -> None:
        self._edges_meet, self._may_come_back_until_s = False, 0.0
        if self._record is not None:
            ended = self._record.ended_without_a_word(self._node.clock.now())
            self._put_record(ended)
            self._node.files.keep(self._record_path, ended.model_dump_json())
        self._node.wake()  # a change of ranks may have waited for this
        self._show_no_run()
        self._wake_watchers()

    def _show_no_run(self) -> None:
        self._put_run_members(frozenset())
        self._node.conditions.set_false("DriverRunning", "NoRun", "no run is in progress")

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
        facts, now_s, report = self._node.board.facts, self._node.clock.monotonic_s(), []
        if (directory := facts.directory) is None:
            return [self._readiness_without_directory()]
        if not self._node.ray.is_enabled:
            return []
        entries = {rank: entry for entry, rank in self.ranks()}
        alive, ray_known = self.alive(), self._ray_known
        at = {ip: member for (ip, rank), member in alive.items() if rank is not None}
        for rank in range(min(count, max(entries, default=0) + 1 + _MOST_UNCLAIMED) or max(1, len(entries))):
            if (entry := entries.get(rank)) is None:
                report.append(replace(unclaimed(rank), ray_known=ray_known))
                continue
            node_id, ip = entry.node_id, str(entry.overlay_ip)
            known = replace(
                self._said_of(entry, rank, directory),
                member=alive.get((ip, rank)),
                former=at.get(ip),
                head=facts.versions,
                pause=facts.paused.get(node_id),
            )
            ready = _judged(known)
            if ready.state == "paused" and (pause := known.pause) is not None:
                left_s = pause.gives_up_in_s(now_s, self._node.ride_through_s())
                ready = replace(ready, paused_s=round(now_s - pause.since_s, 1), gives_up_in_s=round(left_s, 1))
            ready = replace(ready, ray_node_id=known.member.node_id if known.member else None, ray_known=ray_known)
            report.append(ready)
        return report

    def nodes_without_ray(self) -> list[NodeReadiness]:
        """How far each node has come that has no Ray by its own configuration."""
        directory = self._node.board.facts.directory
        if directory is None:
            return []
        known = (self._said_of(entry, HEAD_RANK, directory) for entry in self.without_ray())
        return [_judged(replace(each, is_without_ray=True)) for each in known]

    def _said_of(self, entry: DirectoryEntry, rank: int, directory: Directory) -> NodeFacts:
        """Return what is known of a node beside what Ray knows."""
        facts, node_id = self._node.board.facts, entry.node_id
        is_own = node_id == self._node.key.node_id
        return NodeFacts(
            rank,
            entry,
            status=facts.node_status if is_own else facts.statuses.rows.get(node_id),
            is_silent=entry.hostname in facts.silent,
            may_be_back=node_id not in facts.stopped,
            has_left=node_id in directory.left,
        )

    def alive(self) -> dict[tuple[str, int | None], RayMember]:
        """Whom Ray lists as alive, by address and rank.

        For a while after a restart, Ray lists the former Ray of a node as alive, too. The helper lists the newest
        first, and that one counts.
        """
        return {(member.ip, member.rank): member for member in reversed(self.members) if member.alive}

    @property
    def _ray_known(self) -> bool:
        """Ray tells who is alive, or its head has ended here, and everybody's Ray with it."""
        is_listed = any(member.rank == HEAD_RANK and member.alive for member in self.members)
        return is_listed or self._node.local_ray.has_ended

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

    def without_rank(self) -> list[RayMember]:
        """Who is alive in Ray, and was not started by EdgeLink; those with a rank are waited for until they go."""
        return [member for member, _ in self.gang.strangers() if member.rank is None]


def _judged(known: NodeFacts) -> NodeReadiness:
    """Return how far a node has come, with what its status says of itself; pure."""
    ready, status = readiness(known), known.status
    return ready if status is None else replace(ready, online=status.online, device=status.device)
