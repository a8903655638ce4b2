"""Whether every overlay address is claimed by the node that holds its lease, and by nobody else.

Relay and head look every few seconds, so that two nodes with one address or name are told of while it is news.

A node that lost its uplink, or was switched off, and is back is listed twice until EasyTier finds out, in up to ten
seconds, that its old connection is dead; until then traffic may go there. So whoever is connected to it has the kernel
close dead connections while somebody is listed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import ADDRESSES_UNIQUE
from edgelink.conditions import ConditionSet, Status
from edgelink.errors import EasyTierNotFoundError, NotRecordedError, OverlayError
from edgelink.facts.board import Board
from edgelink.files import private_directory
from edgelink.log import get_logger
from edgelink.overlay.identity import TWIN_S, SignsOfLife, impostors, twins
from edgelink.overlay.status import Peer
from edgelink.process import inotify
from edgelink.reconcile import Wakeup
from edgelink.registry.claims import cloned

_LOOK_S = 15.0
_LOOK_CLOSELY_S = 3.0  # on relay and head
_LOOK_WHILE_WRONG_S = 5.0
_LOOK_AT_TWINS_S = 0.5
_REST_S = 1.0  # EasyTier may have much to say
_REST_ALONE_S = 10.0  # one that gets through to nobody has something to say at each try, every second
_ALONE_S = 10.0  # a network that has just been started comes together
_log = get_logger("overlay")


@dataclass(frozen=True)
class Inputs:
    """What is known of the addresses' holders besides EasyTier's list."""

    holders: Mapping[IPv4Address, str]
    alternations: tuple[tuple[str, float], ...]


class IdentitiesReconciler:
    """Sets ``AddressesUnique`` from EasyTier's list of peers and the registry's directory; informs only."""

    name: ClassVar[str] = "identities"
    condition: ClassVar[str] = ADDRESSES_UNIQUE.name

    def __init__(
        self,
        *,
        rows: Callable[[], Awaitable[list[Peer]]],
        close_dead: Callable[[], Awaitable[list[str]]],
        logs: Path,
        conditions: ConditionSet,
        clock: Clock,
        board: Board[Any],
        is_watchful: bool,
    ) -> None:
        """``is_watchful``: on relay and head."""
        self.wakeup = Wakeup()
        self._board = board
        board.read(Inputs, self.name, self.wakeup)
        self._look_s = _LOOK_CLOSELY_S if is_watchful else _LOOK_S
        self._signs = SignsOfLife()
        self._close_dead = close_dead
        self._logs = logs
        self._looked_s: float | None = None
        self._rest_s = 0.0
        self._in_company_s = clock.monotonic_s()  # when somebody else was listed last
        self._rows = rows
        self._conditions = conditions
        self._clock = clock
        self._twins_since_s: float | None = None

    async def run(self) -> None:
        """Look when EasyTier has something to say, such as that somebody has connected; until cancelled."""
        while True:
            try:
                private_directory(self._logs)
                break
            except NotRecordedError:  # EasyTier, which is not there without, tells of it
                await self._clock.sleep(_LOOK_S)
        with inotify.watching(self._logs, self.wakeup.set, growing=True):
            await asyncio.Event().wait()

    async def reconcile(self) -> float:
        now_s = self._clock.monotonic_s()
        if self._looked_s is not None and (left_s := self._looked_s + self._rest_s - now_s) > 0:
            return left_s
        self._looked_s, self._rest_s = now_s, _REST_S
        try:
            rows = await self._rows()
        except (EasyTierNotFoundError, OverlayError):
            self._conditions.set(self.condition, Status.UNKNOWN, "NotAsked", "EasyTier does not answer, see OverlayUp")
            return self._look_s
        if any(row.ipv4 and not row.is_self for row in rows):
            self._in_company_s = now_s
        elif now_s - self._in_company_s > _ALONE_S:
            self._rest_s = _REST_ALONE_S
        known = self._board.select(Inputs)
        if wrong := impostors(rows, known.holders):
            self._conditions.set_false(
                self.condition,
                "AddressClaimedTwice",
                f"{'; '.join(wrong)}: traffic goes to whoever started last. All else works; stop the one that does not "
                "belong there, and have it `edgelink join` for an address of its own",
            )
            return _LOOK_WHILE_WRONG_S
        if two_voices := cloned(known.alternations, now_s):
            self._conditions.set_false(
                self.condition,
                "NodeCloned",
                f"two machines take turns as {', '.join(two_voices)}: one has a copy of the other's disk. Stop the "
                "copy, run `edgelink leave` there, then `edgelink join` with a token of its own",
            )
            return _LOOK_WHILE_WRONG_S
        doubled = twins(rows)
        alive = self._signs.look(doubled, now_s)
        if doubled:
            for other_end in await self._close_dead():
                _log.info("overlay.dead_connection_closed", other_end=other_end, twins=list(doubled))
            return self._tell_of_twins(list(doubled), alive)
        self._twins_since_s = None
        self._conditions.set_true(self.condition, "Unique", "no overlay address is claimed twice")
        return self._look_s

    def _tell_of_twins(self, doubled: list[str], alive: list[str]) -> float:
        now_s = self._clock.monotonic_s()
        self._twins_since_s = now_s if self._twins_since_s is None else self._twins_since_s
        if not alive and now_s - self._twins_since_s < TWIN_S:
            self._rest_s = 0.0
            self._conditions.set_true(
                self.condition, "StaleTwin", f"restarted a moment ago, and still listed twice: {', '.join(doubled)}"
            )
            return _LOOK_AT_TWINS_S
        self._conditions.set_false(
            self.condition,
            "NodeListedTwice",
            (
                f"listed twice, and both are alive: {', '.join(alive)}: a machine has a copy of that node's disk. "
                if alive
                else f"listed twice for more than {TWIN_S:g} s: {', '.join(doubled)}: a machine with a copy of that "
                "node's disk? "
            )
            + "Traffic goes to whoever started last; stop the copy, run `edgelink leave` there, then `edgelink join` "
            "with a token of its own",
        )
        return _LOOK_WHILE_WRONG_S
