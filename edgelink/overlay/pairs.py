"""Pairs of nodes that lost each other although both reach a relay: proven, healed, and told to people.

What is done when is decided in :mod:`edgelink.overlay.pair_heal`. Words go over the broker, which both reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from edgelink.clock import Clock
from edgelink.condition_table.informing import PAIRS_ALIVE
from edgelink.conditions import Said, is_not_so, is_so
from edgelink.config.schemes import End, tcp_ends
from edgelink.errors import EasyTierNotFoundError, OverlayError
from edgelink.facts.board import Board, Fact, Wish
from edgelink.facts.part import LOOK_S, Action, Decision, Part
from edgelink.log import get_logger
from edgelink.overlay.pair_heal import MORE_S, PROOF_S, RESTART_EVERY_S, Pair, Remedy, Word
from edgelink.overlay.pair_words import PairWords
from edgelink.overlay.relay_names import ipv4_addresses
from edgelink.overlay.status import Peer
from edgelink.protocol.payloads import Directory, DirectoryEntry, PairSilence, Role

_LOOK_S = 0.5  # while somebody is silent; all of it is in memory
_ROWS_S = 2.0  # a look at EasyTier's list is a process
_BY_WORDS = {"close": "closing a connection to the relay", "restart": "restarting EasyTier", "other": "the other side"}

RESTART_FOR_PAIR: Final[Fact[Wish]] = Fact("restart_for_pair")

log = get_logger("overlay")


class Overlay(Protocol):
    """What is asked of this node's EasyTier."""

    async def rows(self) -> list[Peer]:
        """Whom it lists."""

    async def close_connections_to(self, relays: list[tuple[str, int]]) -> list[str]:
        """Close its TCP connections to these addresses. Return the ends that were closed, none where it has none."""


@dataclass(frozen=True)
class Case:
    """One silence of one node, from its begin to its end."""

    silent_since_s: float
    first_said_s: float | None = None
    last_said_s: float | None = None
    lost_at: str = ""  # the time of day at which the pair was proven to be dead; empty: it was not
    lost_s: float = 0.0  # the same on the monotonic clock
    closed: bool = False
    found_none: bool = False  # there was no connection to close
    restarted: bool = False

    @property
    def healed_by(self) -> str:
        return "restart" if self.restarted else "close" if self.closed and not self.found_none else "other"


@dataclass(frozen=True)
class Seen:
    """What the part itself has seen and done.

    Attributes:
        at_s: when it looked last, on the monotonic clock. Long ago: it has not, or a word has come since.
        cases: the silences, by hostname.
        words: the last word of each node on its pair with this one, by hostname.
        listed: whom EasyTier lists. None: it does not say, or no relay answers.
        listed_s: when it was asked. None: it is to be asked anew.
        robot_moves: a training commands a robot of this machine.
        closed_s: when our connection to a relay was closed for a pair, on the monotonic clock.
        restarted_s: when EasyTier was restarted for a pair, by whichever daemon. None: it was not.
        last_healed: which pair was healed last, in words.
        changes: how often words have come.
    """

    at_s: float = float("-inf")
    cases: Mapping[str, Case] = field(default_factory=dict)
    words: Mapping[str, Word] = field(default_factory=dict)
    listed: frozenset[IPv4Address] | None = None
    listed_s: float | None = None
    robot_moves: bool = False
    closed_s: float = float("-inf")
    restarted_s: float | None = None
    last_healed: str = ""
    changes: int = 0


@dataclass(frozen=True)
class Inputs:
    """What pairs depend on."""

    directory: Directory | None
    silent: Mapping[str, float]
    answering: Mapping[str, float]
    own: Seen

    @property
    def silent_nodes(self) -> dict[str, float]:
        """Since when each silent node is. A relay has no pairs."""
        nodes = {entry.hostname for entry in self.directory.entries if not entry.is_relay} if self.directory else ()
        return {name: since_s for name, since_s in self.silent.items() if name in nodes}

    @property
    def relays(self) -> dict[str, float]:
        """Since when each relay that answers does."""
        relays = {entry.hostname for entry in self.directory.entries if entry.is_relay} if self.directory else ()
        return {name: since_s for name, since_s in self.answering.items() if name in relays}


@dataclass(frozen=True)
class Look(Action):
    """Follow the silences, take in what others say, and see whom EasyTier lists."""


@dataclass(frozen=True)
class Say(Action):
    """Tell a node that this one misses it."""

    name: str
    silence: PairSilence


@dataclass(frozen=True)
class NoteLoss(Action):
    """Tell people that a pair is dead."""

    name: str
    dead_for_s: float


@dataclass(frozen=True)
class Close(Action):
    """Close our connections to these relays, because of this node."""

    name: str
    relays: tuple[End, ...]


@dataclass(frozen=True)
class Restart(Action):
    """Wish that EasyTier is started anew, because of this node."""

    name: str


Do = Look | Say | NoteLoss | Close | Restart


@dataclass
class PairFigures:
    """What has happened since this daemon started, by hostname."""

    lost: Counter[str] = field(default_factory=Counter)
    healed: Counter[tuple[str, str]] = field(default_factory=Counter)


class Pairs(Part[Inputs, Do]):
    """Sets ``PairsAlive``; has a dead pair's connection closed, and at last EasyTier restarted."""

    name: ClassVar[str] = "pairs"
    condition: ClassVar[str] = PAIRS_ALIVE.name
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        ask_now: Callable[[list[str]], None],
        overlay: Overlay,
        words: PairWords,
        note: Callable[..., None],
        clock: Clock,
        restarted_file: Path | None,
        robot_moves: Callable[[], bool],
    ) -> None:
        """Arguments that need a word:

        ask_now: have these nodes asked for an echo at once.
        note: write an event into the flight recorder.
        restarted_file: tells the next daemon when EasyTier was restarted for a pair. None: pairs are told of only.
        """
        super().__init__(board, own=Seen())
        self.own: Seen
        self.figures = PairFigures()
        self._board = board
        self._wish_restart = board.claim(RESTART_FOR_PAIR, self.name)
        self._ask_now = ask_now
        self._overlay = overlay
        self._words = words
        self._note = note
        self._clock = clock
        self._restarted_file = restarted_file
        self._robot_moves = robot_moves

    async def run(self) -> None:
        """Have the part look at each word of another node; until cancelled."""
        while True:
            await self._words.come.wait(None)
            self.own = replace(self.own, at_s=float("-inf"))
            self.look_again()

    def plan(self, now: Inputs, at_s: float) -> Decision[Do]:
        own, directory = now.own, now.directory
        if directory is None:
            return Decision()
        again_s = own.at_s + (_LOOK_S if own.cases else LOOK_S) - at_s
        if again_s <= 0 or now.silent_nodes != {name: case.silent_since_s for name, case in own.cases.items()}:
            return Decision(does=Look())
        for entry in directory.entries if own.listed is not None else ():
            if entry.hostname in own.cases and (action := self._due(entry, directory, now, at_s)) is not None:
                return Decision((_said(own),), action)
        return Decision((_said(own),), again_s=again_s)

    def _due(self, entry: DirectoryEntry, directory: Directory, now: Inputs, at_s: float) -> Do | None:
        """Return what is due for a node that is silent."""
        own, name = now.own, entry.hostname
        case = own.cases[name]
        pair = Pair(
            silent_since_s=case.silent_since_s,
            relay_since_s=min(now.relays.values(), default=None),
            is_listed=entry.overlay_ip in (own.listed or ()),
            word=own.words.get(name),
            closed=case.closed,
            found_none=case.found_none,
            restarted=case.restarted,
            may_restart=_may_restart(entry, own, at_s),
            breaks_tie=self._words.node_id < entry.node_id,
        )
        again_at_s = pair.says_again_at_s(case.first_said_s, case.last_said_s)
        if again_at_s is not None and again_at_s <= at_s:
            assert pair.relay_since_s is not None
            silence = PairSilence(
                network_id=directory.network_id,
                peer=entry.node_id,
                silent_for_s=round(at_s - pair.silent_since_s, 2),
                relay_answers_for_s=round(at_s - pair.relay_since_s, 2),
                lists_peer=pair.is_listed,
            )
            return Say(name, silence)
        dead_for_s = pair.dead_for_s(at_s)
        if dead_for_s >= PROOF_S and not case.lost_at:
            return NoteLoss(name, dead_for_s)
        remedy = Remedy.NONE if self._restarted_file is None else pair.remedy(at_s)
        if remedy is Remedy.CLOSE:
            return Close(name, _relays_of(directory, now.relays))
        return Restart(name) if remedy is Remedy.RESTART else None

    async def act(self, action: Do) -> None:
        at_s = self._clock.monotonic_s()
        match action:
            case Look():
                await self._look()
            case Say(name, silence):
                first_said_s = self.own.cases[name].first_said_s
                self._change(name, first_said_s=at_s if first_said_s is None else first_said_s, last_said_s=at_s)
                self._words.say(silence)
            case NoteLoss(name, dead_for_s):
                lost_at = (self._clock.now() - timedelta(seconds=dead_for_s)).strftime("%H:%M:%S")
                self._change(name, lost_at=lost_at, lost_s=at_s - dead_for_s)
                self.figures.lost[name] += 1
                self._note("pair_lost", node=name)
                log.warning("overlay.pair_lost", node=name, why="both reach a relay, and not each other")
                self._ask_now([name])
            case Close(name, _) if at_s - self.own.closed_s < MORE_S:  # it was closed for another pair, and serves all
                self._change(name, closed=True)
            case Close(name, relays):
                self._change(name, closed=True)
                ends = [(ip, end.port) for end in relays for ip in await ipv4_addresses(end.host)]
                closed = await self._overlay.close_connections_to(ends)
                self._change(name, found_none=not closed)
                self.own = replace(self.own, listed_s=None)
                if closed:
                    self.own = replace(self.own, closed_s=at_s)
                    log.warning("overlay.pair_healing", node=name, by="close", closed=closed)
            case Restart(name):
                self._change(name, restarted=True)
                assert self._restarted_file is not None
                self._restarted_file.write_text(str(at_s))
                self.own = replace(self.own, restarted_s=at_s, listed_s=None)
                log.warning("overlay.pair_healing", node=name, by="restart")
                why = f"{name} and this node lost each other, although a relay answers both"
                self._wish_restart(self._board.facts.restart_for_pair.again(why))

    def _change(self, name: str, **changes: Any) -> None:
        """Write down what was done about a silence."""
        self.own = replace(self.own, cases={**self.own.cases, name: replace(self.own.cases[name], **changes)})

    async def _look(self) -> None:
        now = self._board.select(Inputs, self.own)
        self._follow(now.silent_nodes)
        if self.own.cases and now.relays:
            await self._look_at_easytier()
        else:
            self.own = replace(self.own, listed=None, listed_s=None)
        if now.directory is not None:
            heard = self._words.heard(now.directory)
            self.own = replace(self.own, words={**self.own.words, **heard})
            if heard:
                self._ask_now(list(heard))
        self.own = replace(self.own, at_s=self._clock.monotonic_s())

    def _follow(self, silent: Mapping[str, float]) -> None:
        """Have a case for each silence. One that ended is told of, if it was a dead pair."""
        kept = {name: case for name, case in self.own.cases.items() if silent.get(name) == case.silent_since_s}
        for name, case in self.own.cases.items():
            if name not in silent and case.lost_at:
                self._tell_of_healing(name, case)
        self.own = replace(self.own, cases={name: kept.get(name, Case(since_s)) for name, since_s in silent.items()})

    async def _look_at_easytier(self) -> None:
        """Know whom EasyTier lists, as of some seconds ago, and what stands against a restart."""
        at_s, listed, listed_s, restarted_s = self._clock.monotonic_s(), self.own.listed, self.own.listed_s, None
        if listed_s is None or at_s - listed_s >= _ROWS_S:
            try:
                rows = await self._overlay.rows()
            except (EasyTierNotFoundError, OverlayError):
                self.own = replace(self.own, listed=None, listed_s=None)
                return
            listed, listed_s = frozenset(row.ipv4 for row in rows if row.ipv4 is not None and not row.is_self), at_s
        with suppress(OSError, ValueError):
            if self._restarted_file is not None:
                restarted_s = float(self._restarted_file.read_text())
        self.own = replace(
            self.own, listed=listed, listed_s=listed_s, robot_moves=self._robot_moves(), restarted_s=restarted_s
        )
        if lost := [name for name, case in self.own.cases.items() if case.lost_at]:
            self._ask_now(lost)  # the other side may have healed it, and nobody's restart is to be in vain

    def _tell_of_healing(self, name: str, case: Case) -> None:
        took_s = self._clock.monotonic_s() - case.lost_s
        by = case.healed_by
        self.figures.healed[name, by] += 1
        healed = f"answer again after {took_s:.0f} s by {_BY_WORDS[by]}"
        told = f"{name} and this node lost each other at {case.lost_at}, and {healed}"
        self.own = replace(self.own, last_healed=told)
        self._note("pair_healed", node=name, by=by, took_s=round(took_s, 1))
        log.info("overlay.pair_healed", node=name, by=by, took_s=round(took_s, 1))


def _said(own: Seen) -> Said:
    lost = [f"{name} (since {case.lost_at})" for name, case in own.cases.items() if case.lost_at]
    if lost:
        told = f"both reach a relay, but not each other: this node and {', '.join(lost)}"
        return is_not_so(PAIRS_ALIVE.name, "PairLost", told)
    if own.last_healed:
        return is_so(PAIRS_ALIVE.name, "Healed", own.last_healed)
    return is_so(PAIRS_ALIVE.name, "NoneLost", "no other node is lost while a relay answers both")


def _may_restart(entry: DirectoryEntry, own: Seen, at_s: float) -> bool:
    """Not twice in ten minutes, whichever daemon did it; and no robot here loses its link for another robot's."""
    if own.restarted_s is not None and at_s - own.restarted_s < RESTART_EVERY_S:
        return False
    return entry.role is Role.HEAD or not own.robot_moves


def _relays_of(directory: Directory, answering: Collection[str]) -> tuple[End, ...]:
    """Return where the relays that answer are dialled by TCP."""
    by_id = {entry.node_id: entry.hostname for entry in directory.entries}
    dialled = (found.overlay_peers for node_id, found in directory.relays.items() if by_id.get(node_id) in answering)
    return tuple(end for urls in dialled for end in tcp_ends(urls))
