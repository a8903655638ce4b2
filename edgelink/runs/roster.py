"""Who takes part in a head's Ray, with which rank, who is alive in it, and who is in the way (ADR 0008)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from edgelink.facts.board import Board, Fact
from edgelink.facts.facts import Facts
from edgelink.log import get_logger
from edgelink.protocol.payloads import ClusterSpec, Directory, DirectoryEntry
from edgelink.ray_cluster.held_run import HeldRun, Ranks
from edgelink.ray_cluster.ray_members import RayMember, strangers
from edgelink.runs.ranks import could_take_part, free_ranks, keeping_addresses, keeping_ranks, rank_map
from edgelink.runs.run_lock import RunLock
from edgelink.runs.without_ray import WithoutRayBook

RANKS: Final[Fact[Ranks]] = Fact("ranks")
PUBLISHABLE: Final[Fact[Ranks]] = Fact("publishable")

log = get_logger("runs")


@dataclass(frozen=True)
class Candidates:
    """The facts that :func:`ranks` depends on, besides the configuration."""

    directory: Directory | None
    without_ray: frozenset[str]
    waiting: frozenset[str]
    cluster_spec: ClusterSpec | None
    run: HeldRun | None


def ranks(now: Candidates, *, has_ray: bool) -> Ranks:
    """Return who takes part, with which rank. While a run is granted, no rank that it uses changes (ADR 0008).

    Without Ray on the head nobody does, but those on whom such a run relies.
    """
    wanted, in_use = wanted_ranks(now, has_ray=has_ray), now.run.ranks if now.run is not None else None
    return wanted if in_use is None else keeping_ranks(wanted, in_use)


def wanted_ranks(now: Candidates, *, has_ray: bool) -> Ranks:
    """Return who would take part, with which rank, if no run was granted."""
    candidates = could_take_part(now.directory, now.without_ray) if has_ray else []
    taking_part = rank_map(candidates, now.run.nodes if now.run is not None else ())
    return keeping_addresses(taking_part, now.cluster_spec, now.waiting)


@dataclass(frozen=True)
class Joining:
    """The facts that :func:`publishable` depends on."""

    directory: Directory | None
    ranks: Ranks
    ray_members: tuple[RayMember, ...]


def publishable(now: Joining) -> Ranks:
    """Return who is to join Ray now: those whose rank is free, or theirs."""
    everybody = {str(entry.overlay_ip) for entry in now.directory.entries} if now.directory is not None else set()
    return free_ranks(now.ranks, {(member.ip, member.rank) for member in now.ray_members if member.alive}, everybody)


class Roster:
    """The nodes of one head's Ray."""

    def __init__(
        self, board: Board[Facts], node_id: str, lock: RunLock, without_ray: WithoutRayBook, *, has_ray: bool
    ) -> None:
        """``node_id`` is the head's own; ``has_ray``: whether the head itself has one."""
        self._board = board
        self._node_id = node_id
        self._lock = lock
        self._without_ray = without_ray
        self._has_ray = has_ray
        self._is_held_back = False
        board.derive(RANKS, "ranks", Candidates, partial(ranks, has_ray=has_ray))
        board.derive(PUBLISHABLE, "free ranks", Joining, publishable)
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
        known = self._without_ray.look()
        return known if self._has_ray else known | {self._node_id}

    def look(self) -> None:
        """Take note of what the nodes say, while they are there to say it, and of a change that waits for the run."""
        self.known_labels()
        kept, now = self.ranks(), self._board.select(Candidates)
        is_held_back = False
        if now.run is not None and now.run.is_granted:
            self._lock.use_ranks(kept)
            is_held_back = kept != wanted_ranks(now, has_ray=self._has_ray)
            if is_held_back and not self._is_held_back:
                why = "a change of node ranks or addresses waits for the end of the run"
                log.info("runs.ranks_kept", why=why, holder=now.run.holder)
        self._is_held_back = is_held_back

    def ranks(self) -> Ranks:
        """Who takes part, with which rank, after what the nodes have said up to now; see :func:`ranks`."""
        self._ids_without_ray()
        return self._board.facts.ranks

    def alive(self) -> dict[tuple[str, int | None], RayMember]:
        """Whom Ray lists as alive, by address and rank.

        For a while after a restart, Ray lists the former Ray of a node as alive, too. The helper lists the newest
        first, and that one counts.
        """
        return {(member.ip, member.rank): member for member in reversed(self._board.facts.ray_members) if member.alive}

    def without_rank(self) -> list[RayMember]:
        """Who is alive in Ray, and was not started by EdgeLink; those with a rank are waited for until they go."""
        return [member for member, _ in self.strangers() if member.rank is None]

    def known_labels(self) -> Mapping[str, Mapping[str, str]]:
        """Of every node that was online since this daemon started: who is away does not tell them."""
        for status in self._board.facts.statuses.rows.values():
            if status.online:
                self._labels[status.node_id] = status.labels
        return self._labels

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
        return strangers(self._board.facts.ray_members, participants, everybody)
