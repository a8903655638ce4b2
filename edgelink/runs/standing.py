"""How far each node of a head's Ray has come, and what is wrong with those that are not ready (ADR 0009)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgelink.conditions import Status
from edgelink.protocol.payloads import Directory, DirectoryEntry
from edgelink.ray_cluster.no_ray import NO_RAY
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.ray_cluster.reconcilers import RayInputs
from edgelink.reconcile import Wakeup
from edgelink.relay.allocator import HEAD_RANK
from edgelink.runs.readiness import NodeFacts, NodeReadiness, readiness, unclaimed
from edgelink.runs.roster import Roster

MOST_NODES = 65_533  # a /16, the largest overlay network, has no room for more
_LOOK_S = 0.25
_MOST_UNCLAIMED = 256  # ranks that nobody holds, of which each is told: their rows are made anew at every look
_DIRECTORY_NOT_SEEN = "the relay has not told yet who is in the network"


@dataclass(frozen=True)
class Listed:
    """Whom Ray lists."""

    ray_members: tuple[RayMember, ...]


class Standing:
    """The nodes of one head's Ray as they stand now."""

    def __init__(self, inputs: RayInputs, roster: Roster) -> None:
        self._roster = roster
        self._board = inputs.board
        self._conditions = inputs.conditions
        self._clock = inputs.clock
        self._node_id = inputs.key.node_id
        self._has_ray = inputs.config.ray.enabled
        self._local_ray = inputs.ray
        self._listed = Wakeup()
        self._board.read(Listed, "runs", self._listed)

    def show_nodes_ready(self) -> None:
        """NodesReady says whether all who hold a lease with a rank are alive in Ray with that rank, and answer."""
        self._roster.look()
        conditions, expected, alive = self._conditions, self._roster.ranks(), self._roster.alive()
        facts = self._board.facts
        stopped = facts.stopped - {self._node_id}  # the last word of this daemon's former life
        there = {entry.node_id for entry, rank in expected if (str(entry.overlay_ip), rank) in alive} - stopped
        absent = [entry for entry, _ in expected if entry.node_id not in there]
        missing = [one.hostname + (" (switched off)" if one.node_id in stopped else "") for one in absent]
        paused = [entry.hostname for entry, _ in expected if entry.node_id in there & facts.paused.keys()]
        told = []
        if missing:
            told.append(f"not alive in Ray: {', '.join(missing)}")
        if paused:
            told.append(f"paused, no answer: {', '.join(paused)}; Ray rides through, `edgelink nodes` says how long")
        if not self._has_ray:
            conditions.set_false("NodesReady", NO_RAY, "this head has no Ray by its configuration (`ray: off`)")
        elif not expected:
            conditions.set("NodesReady", Status.UNKNOWN, "DirectoryNotSeen", _DIRECTORY_NOT_SEEN)
        elif told:
            conditions.set_false("NodesReady", "NodesPaused" if paused else "NodesMissing", "; ".join(told))
        else:
            conditions.set_true("NodesReady", "AllAlive", f"{len(expected)} of {len(expected)} nodes alive in Ray")

    async def next_change(self) -> None:
        """Return when something may have changed, and soon in any case."""
        await self._listed.wait(_LOOK_S)  # conditions of other nodes come by another road

    def nodes(self, count: int = 0) -> list[NodeReadiness]:
        """How far the node of each of the first ``count`` ranks (0: all) has come; before the directory is there, this
        one alone. Of the ranks above everybody's, only the first are told."""
        facts, now_s, report = self._board.facts, self._clock.monotonic_s(), []
        if (directory := facts.directory) is None:
            return [self._readiness_without_directory()]
        if not self._has_ray:
            return []
        entries = {rank: entry for entry, rank in self._roster.ranks()}
        alive, ray_known = self._roster.alive(), self._ray_known
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
                left_s = pause.gives_up_in_s(now_s, facts.ride_through_s)
                ready = replace(ready, paused_s=round(now_s - pause.since_s, 1), gives_up_in_s=round(left_s, 1))
            ready = replace(ready, ray_node_id=known.member.node_id if known.member else None, ray_known=ray_known)
            report.append(ready)
        return report

    def nodes_without_ray(self) -> list[NodeReadiness]:
        """How far each node has come that has no Ray by its own configuration."""
        directory = self._board.facts.directory
        if directory is None:
            return []
        known = (self._said_of(entry, HEAD_RANK, directory) for entry in self._roster.without_ray())
        return [_judged(replace(each, is_without_ray=True)) for each in known]

    def _said_of(self, entry: DirectoryEntry, rank: int, directory: Directory) -> NodeFacts:
        """Return what is known of a node beside what Ray knows."""
        facts, node_id = self._board.facts, entry.node_id
        is_own = node_id == self._node_id
        return NodeFacts(
            rank,
            entry,
            status=facts.node_status if is_own else facts.statuses.rows.get(node_id),
            is_silent=entry.hostname in facts.silent,
            may_be_back=node_id not in facts.stopped,
            has_left=node_id in directory.left,
        )

    @property
    def _ray_known(self) -> bool:
        """Ray tells who is alive, or its head has ended here, and everybody's Ray with it."""
        is_listed = any(member.rank == HEAD_RANK and member.alive for member in self._board.facts.ray_members)
        return is_listed or self._local_ray.has_ended

    def _readiness_without_directory(self) -> NodeReadiness:
        """Of this node, when it alone is known: nobody is ready before it is told who takes part."""
        lease = self._board.facts.running.lease if self._board.facts.running else None
        session = self._conditions.get("RegistryConnected")
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


def _judged(known: NodeFacts) -> NodeReadiness:
    """Return how far a node has come, with what its status says of itself; pure."""
    ready, status = readiness(known), known.status
    return ready if status is None else replace(ready, online=status.online, device=status.device)
