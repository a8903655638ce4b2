"""A running node takes up the lease that the operator has given it by `edgelink registry set`.

::

    told of a newer lease ──▶ somebody has workers here? wait ──▶ on disk ──▶ Ray ends, while its address still works
    ──▶ EasyTier on the new address ──▶ Ray on it

EasyTier and Ray follow by themselves: what they were started with has another hash then. A daemon that is killed on the
way finds the new lease on its disk, and goes on.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.conditions import Said, Status, is_so
from edgelink.errors import NotRecordedError
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import Action, Decision, Part
from edgelink.log import get_logger
from edgelink.member.lease_watch import HeardLease
from edgelink.member.membership_store import MembershipStore
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Envelope, Lease
from edgelink.protocol.statuses import LEASED, WAITS

LEASE_IN_USE: Final[Fact[Envelope | None]] = Fact("lease_in_use")
COMING_LEASE: Final[Fact[Lease | None]] = Fact("coming_lease")

_IN_USE_LOOK_S = 5.0
_FULL_DISK_S = 5.0
_RAY_LOOK_S = 0.2
_RAY_PATIENCE_S = 30.0  # raylet says goodbye in 2 s; workers that do not end are killed after 15 s

log = get_logger("node")


def lease_in_words(lease: Lease) -> str:
    rank = "no rank" if lease.preferred_rank is None else f"preferred rank {lease.preferred_rank}"
    return f"{lease.hostname} holds {lease.overlay_ip} and {rank}"


@dataclass(frozen=True)
class Looked:
    """What the part itself has seen.

    Attributes:
        lease: the lease for which it has looked who works here. None: it has not looked.
        at_s: when it did so, on the monotonic clock. Long ago: it has not.
        users: who works here, in words.
        waited_for: who did so last, until the lease is in use.
        has_ended: no Ray runs here any more.
        since_s: since when the coming lease waits for that.
        refused: a lease that this daemon cannot take up, as was said.
    """

    lease: Lease | None = None
    at_s: float = float("-inf")
    users: tuple[str, ...] = ()
    waited_for: tuple[str, ...] = ()
    has_ended: bool = False
    since_s: float = 0.0
    refused: Lease | None = None


@dataclass(frozen=True)
class Inputs:
    """What a node that follows its lease depends on."""

    running: Membership | None
    next_lease: HeardLease | None
    coming_lease: Lease | None
    admission: Admission
    claim_word: Said | None
    own: Looked


@dataclass(frozen=True)
class Refuse(Action):
    """Say that this daemon cannot take the lease up."""

    lease: Lease


@dataclass(frozen=True)
class Look(Action):
    """Look who works under this node's address."""

    lease: Lease


@dataclass(frozen=True)
class Record(Action):
    """Have the lease on disk. Ray ends then, while its address still works."""

    heard: HeardLease


@dataclass(frozen=True)
class Use(Action):
    """Run with the lease on disk."""

    heard: HeardLease


class Occupants(Protocol):
    """Who works under this node's overlay address."""

    @property
    def has_ended(self) -> bool:
        """It is certain that no Ray runs here."""

    def in_use(self) -> list[str]:
        """Who would lose their work if the address went, in words."""


class NoOccupants:
    """Nobody: no Ray runs on a relay."""

    has_ended = True

    def in_use(self) -> list[str]:
        return []


class LeaseFollower(Part[Inputs, Refuse | Look | Record | Use]):
    """Follows the lease that counts, and sets ``Leased``."""

    name: ClassVar[str] = "lease"
    condition: ClassVar[str] = LEASED
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        store: MembershipStore,
        occupants: Occupants,
        clock: Clock,
    ) -> None:
        super().__init__(board, own=Looked())
        self.own: Looked
        self._board = board
        self._store = store
        self._occupants = occupants
        self._clock = clock
        self._use = board.claim(LEASE_IN_USE, self.name)
        self._expect = board.claim(COMING_LEASE, self.name)

    def begin(self) -> None:
        """Run with the lease on disk, and with no other one before this says so."""
        membership = self._board.select(Inputs, self.own).running
        assert membership is not None
        self._use(membership.lease_envelope)

    def plan(self, now: Inputs, at_s: float) -> Decision[Refuse | Look | Record | Use]:
        return replace(self._follow(now, at_s), says=leased(now))

    def _follow(self, now: Inputs, at_s: float) -> Decision[Refuse | Look | Record | Use]:
        heard, own = now.next_lease, now.own
        if now.running is None or heard is None or not heard.is_newer_than(now.running.lease):
            return Decision()
        if now.admission.is_doubted:
            return Decision()
        present, lease = now.running.lease, heard.lease
        if not _is_same_place(present, lease):
            return Decision(does=None if own.refused == lease else Refuse(lease))
        moves = (present.hostname, present.overlay_ip) != (lease.hostname, lease.overlay_ip)
        if moves and now.coming_lease is None:
            if own.lease != lease or at_s >= own.at_s + _IN_USE_LOOK_S:
                return Decision(does=Look(lease))
            if own.users:
                return Decision(again_s=own.at_s + _IN_USE_LOOK_S - at_s)
        if now.coming_lease != lease:
            return Decision(does=Record(heard), again_s=_FULL_DISK_S)
        if moves and not own.has_ended and at_s < own.since_s + _RAY_PATIENCE_S:
            left_s = own.at_s + _RAY_LOOK_S - at_s
            return Decision(does=Look(lease)) if left_s <= 0 else Decision(again_s=left_s)
        return Decision(does=Use(heard))

    async def act(self, action: Refuse | Look | Record | Use) -> None:
        match action:
            case Refuse(lease):
                self.own = replace(self.own, refused=lease)
                log.warning("node.lease_not_taken_up", why="it is for another role: start this daemon anew")
            case Look(lease):
                has_ended, users = self._occupants.has_ended, tuple(self._occupants.in_use())
                at_s = self._clock.monotonic_s()
                waited_for = users or self.own.waited_for
                self.own = replace(
                    self.own, lease=lease, at_s=at_s, users=users, waited_for=waited_for, has_ended=has_ended
                )
            case Record(heard):
                with suppress(NotRecordedError):  # StateRecorded tells of it; the present lease goes on working
                    self._store.change(lambda on_disk: on_disk.with_lease(heard.envelope))
                    self.own = Looked(waited_for=self.own.waited_for, since_s=self._clock.monotonic_s())
                    self._expect(heard.lease)
            case Use(heard):
                lease = heard.lease
                self._use(heard.envelope)
                self._expect(None)
                self.own = replace(self.own, waited_for=())
                log.info(
                    "node.lease_changed",
                    hostname=lease.hostname,
                    overlay_ip=str(lease.overlay_ip),
                    epoch=lease.lease_epoch,
                )


def leased(now: Inputs) -> tuple[Said, ...]:
    """What ``Leased`` says: what keeps this machine from being the node, what a change of its lease waits for, or it.

    Nothing before the node is a member.
    """
    word, heard = now.claim_word, now.next_lease
    if now.running is None:
        return ()
    if word is not None and word.status is not Status.TRUE:
        return (word,)
    holds = lease_in_words(now.running.lease)
    if now.own.waited_for and heard is not None and heard.is_newer_than(now.running.lease):
        users = ", ".join(now.own.waited_for)
        coming = lease_in_words(heard.lease)
        waits = f"{holds}; by the operator's word {coming} once nobody works here any more: {users}"
        return (is_so(LEASED, WAITS, waits),)
    if word is not None:
        return (replace(word, message=f"{holds}; {word.message}"),)
    return (is_so(LEASED, "Leased", holds),)


def _is_same_place(one: Lease, other: Lease) -> bool:
    """Whether a daemon that was started with one can go on with the other; pure."""
    return (one.role, one.is_relay, one.cidr, one.verify_key) == (
        other.role,
        other.is_relay,
        other.cidr,
        other.verify_key,
    )
