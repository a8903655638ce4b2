"""Whether the other nodes answer over the overlay, from our overlay address.

A device with the right address proves nothing about the network behind it: with a wrong network name EasyTier
connects happily and sees nobody. Only an answer counts: an echo's, or the kernel's word that a TCP connection with
that node was acknowledged a moment ago. A node that is heard so is not asked, because bytes cost money on LTE.

An echo's answer proves who gave it (ADR 0041). Where that is another node, its address is an impostor's until the right
one answers. An answer without a proof, such as a refusal, counts as an answer, and proves nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.required import PEERS_REACHABLE
from edgelink.conditions import ConditionSet, is_unknown
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import Action, Decision, Part
from edgelink.log import get_logger
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.diagnosis import CUT_OFF, Diagnosis
from edgelink.overlay.echo import Ask
from edgelink.overlay.echo_proof import Proof
from edgelink.overlay.peers_known import (
    EAGER_TRIES,
    SILENCE_TRIES,
    Cadence,
    Known,
    Look,
    Seen,
    disowned,
    lacks_proof,
    patience_s,
    taken_in,
)
from edgelink.overlay.peers_words import says
from edgelink.overlay.targets import Targets
from edgelink.overlay.traffic import Traffic

_log = get_logger("overlay")
_LOOK_AGAIN_S = 2.0  # at what the kernel knows, 4 ms of CPU; a packet goes out only when a node is due
_REST_S = 0.001  # a node, between two looks, each of which is at all nodes; who lacks an answer is not put off
_EAGER_S = 0.05  # the first answer is what `ray start` waits for
_KEEN_S = 3.0  # an uplink that has changed is judged by answers after 2.5 s, on a metered one as well
_WHY_AGAIN_S = 10.0  # it takes a process of easytier-cli

WhySilent = Callable[[Iterable[IPv4Address]], Awaitable[Diagnosis | None]]
CloseConnections = Callable[[Collection[IPv4Address]], Awaitable[list[str]]]
LookAtTraffic = Callable[[], Awaitable[Traffic]]


LAST_ANSWER_S: Final[Fact[float | None]] = Fact("last_answer_s")
ANSWERING: Final[Fact[Mapping[str, float]]] = Fact("answering")
SILENT: Final[Fact[Mapping[str, float]]] = Fact("silent")
UNHEARD: Final[Fact[Mapping[str, float | None]]] = Fact("unheard")
PROVEN: Final[Fact[frozenset[str]]] = Fact("proven")
UNPROVEN: Final[Fact[Mapping[str, float]]] = Fact("unproven")
DOUBTED: Final[Fact[frozenset[IPv4Address]]] = Fact("doubted")
IMPOSTORS: Final[Fact[frozenset[IPv4Address]]] = Fact("impostors")


@dataclass(frozen=True)
class AskAll(Action):
    """Ask these nodes, all at once."""

    names: tuple[str, ...]
    own_ip: IPv4Address


@dataclass(frozen=True)
class FindCause(Action):
    """Find out why nobody answers, while the broker is as ``broker_away`` says."""

    addresses: tuple[IPv4Address, ...]
    broker_away: str | None


@dataclass(frozen=True)
class Forget(Action):
    """Know nothing of anybody: nobody is asked."""


Do = Look | AskAll | FindCause | Forget


@dataclass(frozen=True)
class Inputs:
    """What decides which nodes are asked, and when."""

    overlay_spec: OverlaySpec | None
    overlay_is_up: bool
    targets: Targets | None
    is_metered: bool
    echo_wishes: int
    standstills: int
    broker_away: str | None
    disowned: Mapping[str, float]
    own: Seen


class Peers(Part[Inputs, Do]):
    """Keeps PeersReachable and RelaysReachable, and the round-trip times behind them."""

    name: ClassVar[str] = "peers"
    condition: ClassVar[str] = PEERS_REACHABLE.name
    inputs = Inputs

    def __init__(
        self,
        *,
        board: Board[Any],
        conditions: ConditionSet,
        clock: Clock,
        ask: Ask,
        look: LookAtTraffic,
        why_silent: WhySilent,
        close: CloseConnections,
    ) -> None:
        super().__init__(board, own=Seen())
        self.own: Seen
        self.asked: Counter[str] = Counter()  # by hostname, since this daemon started
        self.lost: Counter[str] = Counter()  # those of them that nobody answered
        self._put_last_answer_s = board.claim(LAST_ANSWER_S, self.name)
        self._put_answering = board.claim(ANSWERING, self.name)
        self._put_silent = board.claim(SILENT, self.name)
        self._put_unheard = board.claim(UNHEARD, self.name)
        self._put_proven = board.claim(PROVEN, self.name)
        self._put_unproven = board.claim(UNPROVEN, self.name)
        self._put_doubted = board.claim(DOUBTED, self.name)
        self._put_impostors = board.claim(IMPOSTORS, self.name)
        self._conditions = conditions
        self._clock = clock
        self._ask = ask
        self._look_at_traffic = look
        self._why_silent = why_silent
        self._close = close

    @property
    def rtt_ms(self) -> dict[str, float]:
        """Round-trip time of the last echo, of each node that answers."""
        return {
            name: known.echo.rtt_ms
            for name, known in self.own.known.items()
            if known.echo is not None and not known.is_silent
        }

    @property
    def clock_offsets_ms(self) -> dict[str, float]:
        """How far the clock of each node is ahead of ours, as far as that is known."""
        offsets = {name: known.clock.offset_ms for name, known in self.own.known.items()}
        return {name: offset_ms for name, offset_ms in offsets.items() if offset_ms is not None}

    def ask_now(self, names: Iterable[str] | None = None) -> None:
        """Ask these nodes, or everybody, without waiting until they are due.

        Everybody is asked when this machine's uplink may have changed. Who does not answer is then asked again as often
        as on an uplink that is not metered, for three seconds.
        """
        now_s, known = self._clock.monotonic_s(), self.own.known
        if names is None:
            self.own = replace(self.own, keen_until_s=now_s + _KEEN_S)
        hurried = {
            name: replace(known[name], due_s=min(known[name].due_s, now_s))
            for name in (known if names is None else names)
            if name in known
        }
        self.own = replace(self.own, known={**known, **hurried})
        self.wakeup.set()

    def plan(self, now: Inputs, at_s: float) -> Decision[Do]:
        own, spec = now.own, now.overlay_spec
        if spec is None or not now.overlay_is_up:
            told = is_unknown(self.condition, "OverlayDown", "the overlay device is not up")
        elif now.targets is None:
            told = is_unknown(self.condition, "DirectoryNotSeen", "the relay has not told yet who is in the network")
        else:
            look = Look(now.targets, now.is_metered, now.echo_wishes, now.standstills, now.disowned)
            return self._plan(now, look, spec.overlay_ip.ip, at_s)
        return Decision((told,), None if own == Seen() else Forget())

    def _plan(self, now: Inputs, look: Look, own_ip: IPv4Address, at_s: float) -> Decision[Do]:
        own = now.own
        if own.due:
            return Decision(does=AskAll(own.due, own_ip))
        if own.look != look:
            return Decision(does=look)
        said = says(own, look)
        is_cut_off = bool(said) and said[-1].reason in CUT_OFF
        is_old = own.why_s is None or at_s >= own.why_s + _WHY_AGAIN_S or own.why_broker != now.broker_away
        if is_cut_off and is_old:
            return Decision(does=FindCause(tuple(look.targets.counted.values()), now.broker_away))
        rested_s = own.looked_s + len(own.known) * _REST_S
        due_s = (known.due_s if known.silences else max(known.due_s, rested_s) for known in own.known.values())
        again_s = min([own.looked_s + _LOOK_AGAIN_S, *due_s]) - at_s
        return Decision(said, look) if again_s <= 0 else Decision(said, again_s=again_s)

    async def act(self, action: Do) -> None:
        match action:
            case Look():
                await self._look(action)
            case AskAll(names, own_ip):
                await self._ask_all(names, own_ip)
            case FindCause(addresses, broker_away):
                try:
                    why = await self._why_silent(addresses)
                    self.own = replace(self.own, why=why)
                finally:  # who answers is to be asked although this fails
                    self.own = replace(self.own, why_s=self._clock.monotonic_s(), why_broker=broker_away)
            case Forget():
                self._know(Seen())

    def _know(self, own: Seen) -> None:
        self.own = own
        self._put_answering(own.answering)
        self._put_silent(own.silent)
        self._put_unheard(own.unheard)
        self._put_proven(own.proven)
        self._put_unproven(own.unproven(self._clock.monotonic_s()))
        self._put_doubted(own.doubted)
        self._put_impostors(own.impostors)

    async def _look(self, look: Look) -> None:
        own, at_s = self.own, self._clock.monotonic_s()
        identities = look.targets.identities
        nodes = {name: Known(ip, at_s, identity=identities.get(name)) for name, ip in look.targets.all.items()}
        for name, before in own.known.items():
            new = nodes.get(name)
            if new is not None and new.is_same(before):  # else it is somebody new
                sooner_s = min(before.due_s, at_s + look.period_s(name))  # it may matter more than before
                nodes[name] = replace(disowned(name, before, look), due_s=sooner_s)
        status = self._conditions.get(self.condition).status
        self._know(replace(own, known=nodes, look=look, status=status))
        if own.look is not None and own.look.doubts != look.doubts:
            self.ask_now()
        if impostors := self.own.impostors:  # at each look: one may be made before the firewall's rule stands
            for closed in await self._close(impostors):
                _log.warning("overlay.impostors_connection_closed", other_end=closed)
        traffic = await self._look_at_traffic()
        nodes = {name: taken_in(name, known, traffic, look, at_s) for name, known in self.own.known.items()}
        for name in look.targets.provers & nodes.keys():
            if traffic.has_new(nodes[name].overlay_ip, self.own.traffic):  # with whom?
                nodes[name] = replace(nodes[name], due_s=at_s)
        due = tuple(name for name, known in nodes.items() if known.due_s <= at_s)
        self._know(replace(self.own, known=nodes, looked_s=at_s, due=due, traffic=traffic))

    async def _ask_all(self, names: tuple[str, ...], own_ip: IPv4Address) -> None:
        own, asked_s = self.own, self._clock.monotonic_s()
        assert own.look is not None
        counted = own.look.targets.counted.keys()
        was_cut_off = not counted & own.answering.keys()
        self.own = replace(own, due=(), status=self._conditions.get(self.condition).status)
        everyone = [own.known[name] for name in names]
        answers = await asyncio.gather(
            *(self._ask(own_ip, each.overlay_ip, patience_s(each), each.identity) for each in everyone)
        )
        at_s, known = self._clock.monotonic_s(), dict(self.own.known)
        for name, echo in zip(names, answers, strict=True):
            self.asked[name] += 1
            if echo is None:
                self.lost[name] += 1
                silent = known[name].not_heard(asked_s)
                known[name] = replace(silent, due_s=at_s + self._again_s(silent, own.look, name))
            else:
                heard = replace(known[name].heard(asked_s).judged(echo.proof), echo=echo, skipped=0)
                if name in own.look.targets.provers and heard.proof is not Proof.PROVEN:
                    heard = heard.heard_otherwise(asked_s)
                if heard.proof is not Proof.WRONG:
                    heard.clock.note(echo)
                known[name] = replace(heard, due_s=at_s + self._after_s(heard, own.look, name))
                self._put_last_answer_s(asked_s)
                self.own = replace(self.own, why_s=None)
        self.own = replace(self.own, known=known)
        await self._doubt(own.look.targets.provers.intersection(names), own.look)
        self._know(self.own)
        if was_cut_off and counted & self.own.answering.keys():  # the way is back: who else is?
            self.ask_now([name for name, each in known.items() if each.answered_s != asked_s])

    async def _doubt(self, names: Collection[str], look: Look) -> None:
        """Doubt who has just not proven itself often enough; who acknowledges only later may be another."""
        if any(self.own.known[name].unproven == SILENCE_TRIES for name in names):
            traffic, at_s = await self._look_at_traffic(), self._clock.monotonic_s()
            heard = {name: taken_in(name, each, traffic, look, at_s) for name, each in self.own.known.items()}
            self.own = replace(self.own, known=heard)
        known = self.own.known
        self.own = replace(self.own, known={**known, **{name: known[name].doubted() for name in names}})

    def _after_s(self, known: Known, look: Look, name: str) -> float:
        """The pause after an answer. A proof that is missing is asked for as an answer that is missing would be."""
        if not lacks_proof(known, look, name):
            return look.period_s(name)
        return self._again_s(replace(known, silences=known.unproven), look, name)

    def _again_s(self, known: Known, look: Look, name: str) -> float:
        """The pause after a question that nobody answered."""
        if known.silences < (EAGER_TRIES if known.answered_s is None else SILENCE_TRIES):
            return _EAGER_S
        is_keen = self._clock.monotonic_s() < self.own.keen_until_s
        cadence = Cadence() if is_keen else look.cadence(name)
        return cadence.silent_s if name in look.targets.counted else cadence.silent_other_s
