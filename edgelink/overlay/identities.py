"""Whether every overlay address is claimed by the node that holds its lease, and by nobody else.

Relay and head look every few seconds, so that two nodes with one address or name are told of while it is news.

A node that lost its uplink, or was switched off, and is back is listed twice until EasyTier finds out, in up to ten
seconds, that its old connection is dead; until then traffic may go there. So whoever is connected to it has the kernel
close dead connections while somebody is listed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import ADDRESSES_UNIQUE
from edgelink.conditions import Said, is_not_so, is_so, is_unknown
from edgelink.errors import NotRecordedError, OverlayError
from edgelink.facts.board import Board
from edgelink.facts.part import Action, Decision, Part
from edgelink.files import private_directory
from edgelink.log import get_logger
from edgelink.overlay.address_holders import TWIN_S, SignsOfLife, impostors, twins
from edgelink.overlay.status import Peer
from edgelink.process import inotify
from edgelink.protocol.alternation import cloned

_LOOK_S = 15.0
_LOOK_CLOSELY_S = 3.0  # on relay and head
_LOOK_WHILE_WRONG_S = 5.0
_LOOK_AT_TWINS_S = 0.5
_REST_S = 1.0  # EasyTier may have much to say
_REST_ALONE_S = 10.0  # one that gets through to nobody has something to say at each try, every second
_ALONE_S = 10.0  # a network that has just been started comes together
_log = get_logger("overlay")


@dataclass(frozen=True)
class Looked:
    """What EasyTier said when it was asked last.

    Attributes:
        at_s: when that was, on the monotonic clock. None: it was not asked yet.
        rows: whom it listed. None: it did not answer.
        alive: who is listed twice and alive twice.
        twins_since_s: since when somebody is listed twice.
        in_company_s: when EasyTier listed another node for the last time, else when this daemon started.
        has_closed: dead connections were closed since.
        has_news: EasyTier has written to its log since.
    """

    in_company_s: float
    at_s: float | None = None
    rows: tuple[Peer, ...] | None = None
    alive: tuple[str, ...] = ()
    twins_since_s: float | None = None
    has_closed: bool = False
    has_news: bool = False


@dataclass(frozen=True)
class Inputs:
    """What tells whether each address is its holder's."""

    holders: Mapping[IPv4Address, str]
    alternations: tuple[tuple[str, float], ...]
    own: Looked


@dataclass(frozen=True)
class Look(Action):
    """Ask EasyTier whom it lists."""


@dataclass(frozen=True)
class CloseDead(Action):
    """Have the kernel close EasyTier's dead connections."""


@dataclass(frozen=True)
class _Judgement:
    """What the last list means: what is said, how long the next one can wait, and how long it has to."""

    says: Said
    look_s: float
    rest_s: float
    closes: bool = False


class Identities(Part[Inputs, Look | CloseDead]):
    """Sets ``AddressesUnique`` from EasyTier's list of peers and the registry's directory; informs only."""

    name: ClassVar[str] = "identities"
    condition: ClassVar[str] = ADDRESSES_UNIQUE.name
    inputs = Inputs

    def __init__(
        self,
        *,
        rows: Callable[[], Awaitable[list[Peer]]],
        close_dead: Callable[[], Awaitable[list[str]]],
        logs: Path,
        clock: Clock,
        board: Board[Any],
        is_watchful: bool,
    ) -> None:
        """``is_watchful``: on relay and head."""
        super().__init__(board, own=Looked(in_company_s=clock.monotonic_s()))
        self.own: Looked
        self._look_s = _LOOK_CLOSELY_S if is_watchful else _LOOK_S
        self._signs = SignsOfLife()
        self._rows = rows
        self._close_dead = close_dead
        self._logs = logs
        self._clock = clock

    async def run(self) -> None:
        """Look when EasyTier has something to say, such as that somebody has connected; until cancelled."""
        while True:
            try:
                private_directory(self._logs)
                break
            except NotRecordedError:  # EasyTier, which is not there without, tells of it
                await self._clock.sleep(_LOOK_S)
        with inotify.watching(self._logs, self.note_news, growing=True):
            await asyncio.Event().wait()

    def note_news(self) -> None:
        """EasyTier has written to its log. A broken one does so as often as it can, which is told once a look."""
        if not self.own.has_news:
            self.own = replace(self.own, has_news=True)
            self.wakeup.set()

    def plan(self, now: Inputs, at_s: float) -> Decision[Look | CloseDead]:
        own = now.own
        if own.at_s is None:
            return Decision(does=Look())
        found = self._judged(now, at_s)
        due_s = own.at_s + (found.rest_s if own.has_news else max(found.rest_s, found.look_s))
        if at_s >= due_s:
            return Decision((found.says,), Look())
        return Decision((found.says,), CloseDead() if found.closes and not own.has_closed else None, due_s - at_s)

    async def act(self, action: Look | CloseDead) -> None:
        match action:
            case Look():
                await self._look()
            case CloseDead():
                doubled = list(twins(self.own.rows or ()))
                for other_end in await self._close_dead():
                    _log.info("overlay.dead_connection_closed", other_end=other_end, twins=doubled)
                self.own = replace(self.own, has_closed=True)

    async def _look(self) -> None:
        at_s = self._clock.monotonic_s()
        self.own = replace(self.own, has_news=False)
        try:
            rows = tuple(await self._rows())
        except OverlayError:
            self.own = replace(self.own, at_s=at_s, rows=None)
            return
        doubled = twins(rows)
        has_company = any(row.ipv4 and not row.is_self for row in rows)
        since_s = at_s if self.own.twins_since_s is None else self.own.twins_since_s
        self.own = replace(
            self.own,
            at_s=at_s,
            rows=rows,
            alive=tuple(self._signs.look(doubled, at_s)),
            twins_since_s=since_s if doubled else None,
            in_company_s=at_s if has_company else self.own.in_company_s,
            has_closed=False,
        )

    def _judged(self, now: Inputs, at_s: float) -> _Judgement:
        rows, own = now.own.rows, now.own
        if rows is None or own.at_s is None:
            told = is_unknown(self.condition, "NotAsked", "EasyTier does not answer, see OverlayUp")
            return _Judgement(told, self._look_s, _REST_S)
        rest_s = _REST_ALONE_S if own.at_s - own.in_company_s > _ALONE_S else _REST_S
        if wrong := impostors(rows, now.holders):
            told = is_not_so(
                self.condition,
                "AddressClaimedTwice",
                f"{'; '.join(wrong)}: traffic goes to whoever started last. All else works; stop the one that does not "
                "belong there, and run `edgelink up` with a token of its own there",
            )
            return _Judgement(told, _LOOK_WHILE_WRONG_S, rest_s)
        if two_voices := cloned(now.alternations, at_s):
            told = is_not_so(
                self.condition,
                "NodeCloned",
                f"two machines take turns as {', '.join(two_voices)}: one has a copy of the other's disk. Stop the "
                "copy, run `edgelink leave` there, then `edgelink up` with a token of its own",
            )
            return _Judgement(told, _LOOK_WHILE_WRONG_S, rest_s)
        if doubled := list(twins(rows)):
            return self._judged_twins(doubled, own, at_s, rest_s)
        return _Judgement(is_so(self.condition, "Unique", "no overlay address is claimed twice"), self._look_s, rest_s)

    def _judged_twins(self, doubled: list[str], own: Looked, at_s: float, rest_s: float) -> _Judgement:
        if not own.alive and own.twins_since_s is not None and at_s - own.twins_since_s < TWIN_S:
            told = is_so(
                self.condition, "StaleTwin", f"restarted a moment ago, and still listed twice: {', '.join(doubled)}"
            )
            return _Judgement(told, _LOOK_AT_TWINS_S, 0.0, closes=True)
        told = is_not_so(
            self.condition,
            "NodeListedTwice",
            (
                f"listed twice, and both are alive: {', '.join(own.alive)}: a machine has a copy of that node's disk. "
                if own.alive
                else f"listed twice for more than {TWIN_S:g} s: {', '.join(doubled)}: a machine with a copy of that "
                "node's disk? "
            )
            + "Traffic goes to whoever started last; stop the copy, run `edgelink leave` there, then `edgelink up` "
            "with a token of its own",
        )
        return _Judgement(told, _LOOK_WHILE_WRONG_S, rest_s, closes=True)
