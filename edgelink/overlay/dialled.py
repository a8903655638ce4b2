"""Keep the relays that a running EasyTier dials in step with those that are wanted, without restarting it.

What a core was started with stands in its configuration file. A relay that came later is added through EasyTier's
RPC; where that fails (no easytier-cli, one of another version), EasyTier learns of it at its next start. That
start is brought about only when nobody answers over the overlay any more: there is nothing to cut then, and the relay
that is missing may be the only one left.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.informing import RELAYS_DIALLED
from edgelink.conditions import is_not_so, is_so, is_unknown
from edgelink.errors import OverlayError
from edgelink.facts.board import Board, Fact, Wish
from edgelink.facts.part import Action, Decision, Part
from edgelink.log import get_logger
from edgelink.overlay.acquisition import EasyTierBinary
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.status import change_connector, connectors, peers

RESTART_FOR_RELAYS: Final[Fact[Wish]] = Fact("restart_for_relays")

_LOOK_S = 30.0
_CUT_OFF_LOOK_S = 1.0
_SETTLES_S = 5.0  # after a change of the secret; EasyTier dials again every second

log = get_logger("relays-dialled")


@dataclass(frozen=True)
class Wanted:
    """One EasyTier, and the relays that it is to dial."""

    easytier_ends: int
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Looked:
    """What the part itself has seen and done.

    Attributes:
        done: what it brought in step last.
        at_s: when it did so, on the monotonic clock.
        missing: the relays that this EasyTier could not be told of.
        version: the version of that EasyTier.
        listed_at_s: when it asked whom that EasyTier lists. None: it has not.
        lists_others: EasyTier listed another node then.
        has_wished: it has wished that EasyTier is started anew.
    """

    done: Wanted | None = None
    at_s: float = 0.0
    missing: tuple[str, ...] = ()
    version: str = ""
    listed_at_s: float | None = None
    lists_others: bool = False
    has_wished: bool = False


@dataclass(frozen=True)
class Inputs:
    """What the relays that are dialled depend on."""

    overlay_spec: OverlaySpec | None
    overlay_is_up: bool
    easytier_ends: int
    nobody_answers: bool
    secret_changed_s: float | None
    own: Looked


@dataclass(frozen=True)
class BringInStep(Action):
    """Have EasyTier dial these relays and no other one."""

    wanted: Wanted
    rpc_port: int


@dataclass(frozen=True)
class LookAround(Action):
    """Ask whom EasyTier lists."""

    rpc_port: int


@dataclass(frozen=True)
class StartAnew(Action):
    """Wish that EasyTier is started anew."""

    why: str


@dataclass(frozen=True)
class Forget(Action):
    """Take nothing that was seen for true any more: EasyTier may be another one once its device is up again."""


Do = BringInStep | LookAround | StartAnew | Forget


class RelaysDialled(Part[Inputs, Do]):
    """Sets ``RelaysDialled``, which only informs."""

    name: ClassVar[str] = "relays-dialled"
    condition: ClassVar[str] = RELAYS_DIALLED.name
    inputs = Inputs

    def __init__(
        self, *, board: Board[Any], binary: Callable[[], EasyTierBinary], config_path: Path, clock: Clock
    ) -> None:
        super().__init__(board, own=Looked())
        self.own: Looked
        self._board = board
        self._wish = board.claim(RESTART_FOR_RELAYS, self.name)
        self._binary = binary
        self._config_path = config_path
        self._clock = clock

    def plan(self, now: Inputs, at_s: float) -> Decision[Do]:
        spec, own = now.overlay_spec, now.own
        if spec is None or not now.overlay_is_up:
            told = is_unknown(self.condition, "OverlayDown", "the overlay device is not up")
            return Decision((told,), None if own == Looked() else Forget())
        wanted = Wanted(now.easytier_ends, spec.peers)
        try_again_s = own.at_s + _LOOK_S - at_s
        if own.done != wanted or (own.missing and try_again_s <= 0):
            return Decision(does=BringInStep(wanted, spec.rpc_port))
        if not own.missing:
            names = ", ".join(spec.peers) or "no other relay is known"
            return Decision((is_so(self.condition, "AllDialled", f"dialled: {names}"),))
        missing = ", ".join(own.missing)
        says = (
            is_not_so(
                self.condition, "NotDialledYet", f"EasyTier {own.version} learns of {missing} at its next start only"
            ),
        )
        settles_s = 0.0 if now.secret_changed_s is None else now.secret_changed_s + _SETTLES_S - at_s
        if not now.nobody_answers or own.has_wished:
            return Decision(says, again_s=try_again_s)
        if settles_s > 0:  # after a change of the secret the others are being started anew, too
            return Decision(says, again_s=min(settles_s, try_again_s))
        if own.listed_at_s is None or at_s >= own.listed_at_s + _CUT_OFF_LOOK_S:
            return Decision(says, LookAround(spec.rpc_port))
        if own.lists_others:
            return Decision(says, again_s=min(own.listed_at_s + _CUT_OFF_LOOK_S - at_s, try_again_s))
        return Decision(says, StartAnew(f"nobody answers, and it does not dial {missing} yet"))

    async def act(self, action: Do) -> None:
        match action:
            case BringInStep(wanted, rpc_port):
                missing, why = await self._bring_in_step(wanted.urls, rpc_port)
                if missing and missing != self.own.missing:
                    log.warning("relays-dialled.not_yet", urls=missing, why=why)
                version = self._binary().version if missing else ""
                self.own = Looked(wanted, self._clock.monotonic_s(), missing, version)
            case LookAround(rpc_port):
                try:
                    others = [row for row in await peers(self._binary(), rpc_port) if not row.is_self]
                except OverlayError:
                    others = []  # without a CLI, the silence has to do
                at_s = self._clock.monotonic_s()
                self.own = replace(self.own, listed_at_s=at_s, lists_others=bool(others))
            case StartAnew(why):
                self._wish(self._board.facts.restart_for_relays.again(why))
                self.own = replace(self.own, has_wished=True)
            case Forget():
                self.own = Looked()

    async def _bring_in_step(self, urls: tuple[str, ...], rpc_port: int) -> tuple[tuple[str, ...], str]:
        """Add and remove relays through the RPC. Return those that could not be added, and why."""
        wanted = set(urls)
        if wanted == self._started_with():
            return (), ""
        try:
            dialled = set(await connectors(self._binary(), rpc_port))
        except OverlayError as error:
            return tuple(url for url in urls if url not in self._started_with()), error.message
        missing, why = [], ""
        for url in urls:
            if url not in dialled and (refused := await self._refusal("add", url, rpc_port)):
                missing.append(url)
                why = refused
        for url in sorted(dialled - wanted):
            why = await self._refusal("remove", url, rpc_port) or why  # one too many costs nothing
        return tuple(missing), why

    async def _refusal(self, action: str, url: str, rpc_port: int) -> str:
        """Tell EasyTier of a relay. Return why it does not take it; empty: it does."""
        try:
            await change_connector(self._binary(), rpc_port, action, url)
        except OverlayError as error:
            return error.message
        log.info("relays-dialled.told", action=action, url=url)
        return ""

    def _started_with(self) -> set[str]:
        try:
            file = tomllib.loads(self._config_path.read_text())
        except (OSError, ValueError):
            return set()
        return {str(peer.get("uri")) for peer in file.get("peer", ())}
