"""Pairs of nodes that lost each other although both reach a relay: proven, healed, and told to people.

What is done when is decided in :mod:`edgelink.overlay.pair_heal`. Words go over the broker, which both reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.condition_table.informing import PAIRS_ALIVE
from edgelink.conditions import ConditionSet
from edgelink.config.schemes import tcp_ends
from edgelink.errors import EasyTierNotFoundError, OverlayError, UntrustedError
from edgelink.facts.board import Board, Fact, Wish
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.pair_heal import PROOF_S, RESTART_EVERY_S, Pair, Remedy, Word
from edgelink.overlay.resolve import ipv4_addresses
from edgelink.overlay.status import Peer
from edgelink.registry.inbox import Inbox
from edgelink.registry.keys import Kind, NodeKey
from edgelink.registry.payloads import Directory, DirectoryEntry, PairSilence
from edgelink.registry.rate_limit import RateLimit
from edgelink.registry.topics import Topics
from edgelink.registry.words import word_of
from edgelink.training.trainer.robot.directory import LOCK, is_commanded, known_directories

_LOOK_S = 0.5  # while somebody is silent; all of it is in memory
_REST_S = 2.0
_ROWS_S = 2.0  # a look at EasyTier's list is a process
_BY_WORDS = {"close": "closing a connection to the relay", "restart": "restarting EasyTier", "other": "the other side"}

RESTART_FOR_PAIR: Final[Fact[Wish]] = Fact("restart_for_pair")

log = get_logger("overlay")


@dataclass(frozen=True)
class Inputs:
    """What pairs depend on, besides echoes, words and EasyTier's list."""

    directory: Directory | None


class Echoes(Protocol):
    """What is known of the other nodes' answers, by hostname and on the monotonic clock."""

    @property
    def silent(self) -> Mapping[str, float]:
        """Since when each silent node is."""

    @property
    def answering(self) -> Mapping[str, float]:
        """Since when each other one answers."""

    def ask_now(self, names: list[str]) -> None:
        """Ask these nodes at once."""


class Overlay(Protocol):
    """What is asked of this node's EasyTier."""

    async def rows(self) -> list[Peer]:
        """Whom it lists."""

    async def close_connections_to(self, relays: list[tuple[str, int]]) -> list[str]:
        """Close its TCP connections to these addresses. Return the ends that were closed, none where it has none."""


@dataclass
class _Case:
    """One silence of one node, from its begin to its end."""

    silent_since_s: float
    word: Word | None = None
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


@dataclass
class PairFigures:
    """What has happened since this daemon started, by hostname."""

    lost: Counter[str] = field(default_factory=Counter)
    healed: Counter[tuple[str, str]] = field(default_factory=Counter)


class PairsReconciler:
    """Sets ``PairsAlive``; has a dead pair's connection closed, and at last EasyTier restarted."""

    name: ClassVar[str] = "pairs"
    condition: ClassVar[str] = PAIRS_ALIVE.name

    def __init__(
        self,
        *,
        key: NodeKey,
        board: Board[Any],
        echoes: Echoes,
        overlay: Overlay,
        send: Callable[[str, bytes], None],
        words: Inbox,
        note: Callable[..., None],
        conditions: ConditionSet,
        clock: Clock,
        restarted_file: Path,
        is_healing: bool,
        robot_moves: Callable[[], bool],
    ) -> None:
        """Arguments that need a word:

        words: what nodes say of whom they miss.
        note: write an event into the flight recorder.
        is_healing: False: it is only told.
        """
        self.wakeup = words.wakeup
        self.figures = PairFigures()
        self._key = key
        self._board = board
        self._wish_restart = board.claim(RESTART_FOR_PAIR, self.name)
        board.read(Inputs, self.name, self.wakeup)
        self._echoes = echoes
        self._overlay = overlay
        self._send = send
        self._inbox = words
        self._note = note
        self._conditions = conditions
        self._clock = clock
        self._restarted_file = restarted_file
        self._is_healing = is_healing
        self._robot_moves = robot_moves
        self._rate_limit = RateLimit(clock)
        self._disbelieved = Outage(clock)
        self._cases: dict[str, _Case] = {}
        self._words: dict[str, Word] = {}
        self._listed: frozenset[IPv4Address] = frozenset()
        self._listed_s: float | None = None
        self._last_healed = ""

    def _take_all(self, directory: Directory) -> None:
        for node_id, payload in self._inbox.take_all():
            try:
                self._take(node_id, payload, directory)
            except (UntrustedError, ValidationError) as error:
                if self._disbelieved.is_news(node_id):
                    log.warning("overlay.silence_not_believed", node_id=node_id, error=str(error))

    def _take(self, node_id: str, payload: bytes, directory: Directory) -> None:
        """Take a word that came on a node's topic. Raises UntrustedError, pydantic's ValidationError."""
        entry = directory.entry(node_id)
        if entry is None or node_id == self._key.node_id:
            return
        if self._rate_limit.exceeded(None, node_id) is not None:
            raise UntrustedError(f"{entry.hostname} misses others more often than it says", reason="RateLimited")
        said = word_of(entry, payload, Kind.PAIR_SILENCE, PairSilence, directory)
        if said.peer != self._key.node_id:
            return
        self._words[entry.hostname] = Word(
            self._clock.monotonic_s(), said.silent_for_s, said.relay_answers_for_s, said.lists_peer
        )
        self._echoes.ask_now([entry.hostname])

    async def reconcile(self) -> float:
        now_s = self._clock.monotonic_s()
        directory = self._board.select(Inputs).directory
        if directory is None:
            return _REST_S
        nodes = {entry.hostname: entry for entry in directory.entries if not entry.is_relay}
        relays = {entry.hostname: entry for entry in directory.entries if entry.is_relay}
        self._take_all(directory)
        silent = {name: since_s for name, since_s in self._echoes.silent.items() if name in nodes}
        self._follow(silent)
        answering = {name: since_s for name, since_s in self._echoes.answering.items() if name in relays}
        if self._cases and answering and await self._look_at_list(now_s):
            for name in list(self._cases):
                await self._treat(nodes[name], directory, answering, now_s)
        self._say()
        return _LOOK_S if self._cases else _REST_S

    def _follow(self, silent: Mapping[str, float]) -> None:
        """A case for each silence; one that ended is told of, if it was a dead pair."""
        for name, case in list(self._cases.items()):
            if silent.get(name) != case.silent_since_s:
                del self._cases[name]
                if name not in silent and case.lost_at:
                    self._tell_of_healing(name, case)
        for name, since_s in silent.items():
            case = self._cases.setdefault(name, _Case(since_s))
            case.word = self._words.get(name)

    async def _look_at_list(self, now_s: float) -> bool:
        """Know whom EasyTier lists, as of some seconds ago; False where it does not say."""
        if self._listed_s is None or now_s - self._listed_s >= _ROWS_S:
            try:
                rows = await self._overlay.rows()
            except (EasyTierNotFoundError, OverlayError):
                self._listed_s = None
                return False
            self._listed = frozenset(row.ipv4 for row in rows if row.ipv4 is not None and not row.is_self)
            self._listed_s = now_s
        return True

    async def _treat(
        self, entry: DirectoryEntry, directory: Directory, answering: Mapping[str, float], now_s: float
    ) -> None:
        """Say that we miss this node where that is due, and do about it what is ours to do."""
        case = self._cases[entry.hostname]
        relay_since_s = min(answering.values())
        pair = Pair(
            silent_since_s=case.silent_since_s,
            relay_since_s=relay_since_s,
            is_listed=entry.overlay_ip in self._listed,
            word=case.word,
            closed=case.closed,
            found_none=case.found_none,
            restarted=case.restarted,
            may_restart=self._may_restart(entry, now_s),
            breaks_tie=self._key.node_id < entry.node_id,
        )
        again_at_s = pair.says_again_at_s(case.first_said_s, case.last_said_s)
        if again_at_s is not None and again_at_s <= now_s:
            case.first_said_s = now_s if case.first_said_s is None else case.first_said_s
            case.last_said_s = now_s
            self._say_to(entry, directory, pair, now_s)
        dead_for_s = pair.dead_for_s(now_s)
        if dead_for_s >= PROOF_S and not case.lost_at:
            self._tell_of_loss(entry.hostname, case, dead_for_s)
        if case.lost_at:  # the other side may have healed it, and nobody's restart is to be in vain
            self._echoes.ask_now([entry.hostname])
        remedy = pair.remedy(now_s) if self._is_healing else Remedy.NONE
        if remedy is Remedy.CLOSE:
            case.closed = True
            closed = await self._overlay.close_connections_to(await _relays_of(directory, answering))
            case.found_none = not closed
            log.warning("overlay.pair_healing", node=entry.hostname, by="close", closed=closed)
            self._listed_s = None
            remedy = replace(pair, closed=True, found_none=case.found_none).remedy(now_s)
        if remedy is Remedy.RESTART:
            case.restarted = True
            self._restarted_file.write_text(str(now_s))
            log.warning("overlay.pair_healing", node=entry.hostname, by="restart")
            why = f"{entry.hostname} and this node lost each other, although a relay answers both"
            self._wish_restart(self._board.facts.restart_for_pair.again(why))
            self._listed_s = None

    def _may_restart(self, entry: DirectoryEntry, now_s: float) -> bool:
        """Not twice in ten minutes, whichever daemon did it; and no robot here loses its link for another robot's."""
        with suppress(OSError, ValueError):
            if now_s - float(self._restarted_file.read_text()) < RESTART_EVERY_S:
                return False
        return entry.role.value == "head" or not self._robot_moves()

    def _say_to(self, entry: DirectoryEntry, directory: Directory, pair: Pair, now_s: float) -> None:
        assert pair.relay_since_s is not None
        silence = PairSilence(
            network_id=directory.network_id,
            peer=entry.node_id,
            silent_for_s=round(now_s - pair.silent_since_s, 2),
            relay_answers_for_s=round(now_s - pair.relay_since_s, 2),
            lists_peer=pair.is_listed,
        )
        envelope = self._key.sign(Kind.PAIR_SILENCE, silence)
        topic = Topics(directory.network_id).silence(self._key.node_id)
        self._send(topic, envelope.model_dump_json().encode())

    # what people are told

    def _tell_of_loss(self, name: str, case: _Case, dead_for_s: float) -> None:
        case.lost_s = self._clock.monotonic_s() - dead_for_s
        case.lost_at = (self._clock.now() - timedelta(seconds=dead_for_s)).strftime("%H:%M:%S")
        self.figures.lost[name] += 1
        self._note("pair_lost", node=name)
        log.warning("overlay.pair_lost", node=name, why="both reach a relay, and not each other")

    def _tell_of_healing(self, name: str, case: _Case) -> None:
        took_s = self._clock.monotonic_s() - case.lost_s
        by = case.healed_by
        self.figures.healed[name, by] += 1
        self._last_healed = (
            f"{name} and this node lost each other at {case.lost_at}, and answer again after {took_s:.0f} s by "
            f"{_BY_WORDS[by]}"
        )
        self._note("pair_healed", node=name, by=by, took_s=round(took_s, 1))
        log.info("overlay.pair_healed", node=name, by=by, took_s=round(took_s, 1))

    def _say(self) -> None:
        lost = [f"{name} (since {case.lost_at})" for name, case in self._cases.items() if case.lost_at]
        if lost:
            self._conditions.set_false(
                self.condition, "PairLost", f"both reach a relay, but not each other: this node and {', '.join(lost)}"
            )
        elif self._last_healed:
            self._conditions.set_true(self.condition, "Healed", self._last_healed)
        else:
            self._conditions.set_true(self.condition, "NoneLost", "no other node is lost while a relay answers both")


def robot_moves() -> bool:
    """Whether a training commands a robot of this machine."""
    return any(
        is_commanded(directory, lock.name.removesuffix(LOCK))
        for directory in known_directories()
        for lock in directory.glob(f"*{LOCK}")
    )


async def _relays_of(directory: Directory, answering: Mapping[str, float]) -> list[tuple[str, int]]:
    """Addresses and ports at which the relays that answer are dialled by TCP; names are resolved."""
    found: list[tuple[str, int]] = []
    by_id = {entry.node_id: entry.hostname for entry in directory.entries}
    for node_id, addresses in directory.relays.items():
        for end in tcp_ends(addresses.overlay_peers) if by_id.get(node_id) in answering else ():
            found += [(address, end.port) for address in await ipv4_addresses(end.host)]
    return found
