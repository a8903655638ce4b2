"""Who takes part in a head's Ray, with which rank, who is alive in it, and who is in the way (ADR 0008)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from edgelink.facts.board import Board, Fact
from edgelink.facts.facts import Facts
from edgelink.log import get_logger
from edgelink.protocol.payloads import DirectoryEntry
from edgelink.ray_cluster.held_run import Ranks
from edgelink.ray_cluster.membership import RayMember, strangers
from edgelink.runs.ranks import could_take_part, free_ranks, keeping_addresses, keeping_ranks, rank_map
from edgelink.runs.run_lock import RunLock
from edgelink.runs.without_ray import WithoutRayBook

WITHOUT_RAY: Final[Fact[frozenset[str]]] = Fact("without_ray")

log = get_logger("runs")


class Roster:
    """The nodes of one head's Ray."""

    def __init__(
        self, board: Board[Facts], node_id: str, lock: RunLock, without_ray: WithoutRayBook, *, has_ray: bool
    ) -> None:
        """``node_id`` is the head's own; ``has_ray``: whether the head itself has one."""
        self.members: Sequence[RayMember] = ()  # as Ray listed them last
        self._board = board
        self._node_id = node_id
        self._lock = lock
        self._without_ray = without_ray
        self._put_without_ray = board.claim(WITHOUT_RAY, "runs")
        self._has_ray = has_ray
        self._ranks: Ranks = ()  # as they were looked at last
        self._is_held_back = False
        self._labels: dict[str, Mapping[str, str]] = {}  # by node id

    def without_ray(self) -> list[DirectoryEntry]:
        """The nodes with a lease for Ray that have none by their own configuration."""
        known = self._ids_without_ray()
        return [entry for entry in could_take_part(self._board.facts.directory) if entry.node_id in known]

    def candidates(self) -> list[DirectoryEntry]:
        """The nodes that could take part in Ray, in the order of their ranks. Without Ray on the head there is none."""
        if not self._has_ray:
            return []
        return could_take_part(self._board.facts.directory, self._ids_without_ray())

    def _ids_without_ray(self) -> frozenset[str]:
        facts = self._board.facts
        if facts.directory is None:
            return frozenset()
        known = self._without_ray.look(facts.statuses, facts.directory)
        self._put_without_ray(known)
        return known if self._has_ray else known | {self._node_id}

    def ranks(self) -> Ranks:
        """Who takes part, with which rank; while a run is granted, no rank that it uses changes (ADR 0008)."""
        facts = self._board.facts
        now = rank_map(self.candidates(), self._lock.nodes)
        wanted = self._ranks = keeping_addresses(now, self._ranks, facts.waiting)
        in_use = self._lock.ranks
        if in_use is None:
            return wanted
        kept = keeping_ranks(wanted, in_use)
        self._lock.use_ranks(kept)
        is_held_back = kept is not wanted
        if is_held_back and not self._is_held_back:
            why = "a change of node ranks or addresses waits for the end of the run"
            log.info("runs.ranks_kept", why=why, holder=self._lock.holder)
        self._is_held_back = is_held_back
        return kept

    def alive(self) -> dict[tuple[str, int | None], RayMember]:
        """Whom Ray lists as alive, by address and rank.

        For a while after a restart, Ray lists the former Ray of a node as alive, too. The helper lists the newest
        first, and that one counts.
        """
        return {(member.ip, member.rank): member for member in reversed(self.members) if member.alive}

    def without_rank(self) -> list[RayMember]:
        """Who is alive in Ray, and was not started by EdgeLink; those with a rank are waited for until they go."""
        return [member for member, _ in self.strangers() if member.rank is None]

    def known_labels(self) -> Mapping[str, Mapping[str, str]]:
        """Of every node that was online since this daemon started: who is away does not tell them."""
        for status in self._board.facts.statuses.rows.values():
            if status.online:
                self._labels[status.node_id] = status.labels
        return self._labels

    def publishable(self) -> Ranks:
        """Who is to join Ray now: those whose rank is free, or theirs."""
        directory = self._board.facts.directory
        everybody = {str(entry.overlay_ip) for entry in directory.entries} if directory else set()
        held = {(member.ip, member.rank) for member in self.members if member.alive}
        return free_ranks(self.ranks(), held, everybody)

    def left_out(self) -> list[DirectoryEntry]:
        """Who could take part, but is not asked for by the run in progress."""
        taking_part = {entry.node_id for entry, _ in self.ranks()}
        return [entry for entry in self.candidates() if entry.node_id not in taking_part]

    def strangers(self) -> list[tuple[RayMember, str]]:
        """Who is alive in Ray without taking part, and what is to be said of each."""
        directory = self._board.facts.directory
        if directory is None:
            return []
        participants = {str(entry.overlay_ip): entry.hostname for entry, _ in self.ranks()}
        everybody = {str(entry.overlay_ip): entry.hostname for entry in directory.entries}
        return strangers(self.members, participants, everybody)
