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
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.informing import RELAYS_REACHABLE
from edgelink.condition_table.required import PEERS_REACHABLE
from edgelink.conditions import ConditionSet, Said, Status, is_not_so, is_so, is_unknown
from edgelink.facts.board import Board, Fact
from edgelink.facts.part import Action, Decision, Part
from edgelink.log import get_logger
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.diagnosis import CUT_OFF, Diagnosis
from edgelink.overlay.echo import Ask, Echo, PeerClock
from edgelink.overlay.echo_proof import Identity, Proof
from edgelink.overlay.targets import Targets
from edgelink.overlay.traffic import Traffic
from edgelink.wording import few

_log = get_logger("overlay")
_PATIENCE_S = 1.0
_PROMPT_S = 0.3  # on a path that answers in less than a quarter of it
_LOOK_AGAIN_S = 2.0  # at what the kernel knows, 4 ms of CPU; a packet goes out only when a node is due
_REST_S = 0.001  # a node, between two looks, each of which is at all nodes; who lacks an answer is not put off
_EAGER_S = 0.05  # the first answer is what `ray start` waits for
_EAGER_PATIENCE_S = 0.25  # a lost first question must not cost a second; a slower path is asked patiently later
_EAGER_TRIES = 20
_SILENCE_TRIES = 3
_REFRESH = 6  # periods after which a node is asked although it was heard: round trip and clock are to be known
_KEEN_S = 3.0  # an uplink that has changed is judged by answers after 2.5 s, on a metered one as well
_WHY_AGAIN_S = 10.0  # it takes a process of easytier-cli
_MOST_NAMED = 5
_FULL_QUEUE_PATIENCE_S = 5.0
_FULL_QUEUE_TRIES = 6  # two looks at the kernel apart, so one at least is waited for patiently
_OTHERWISE_S = 10.0  # longer than between two questions, or two looks at the kernel, of who answers

_NOBODY = "what carries the overlay is up, but nobody is there: check the other nodes' `edgelink status`"

WhySilent = Callable[[Iterable[IPv4Address]], Awaitable[Diagnosis | None]]
CloseConnections = Callable[[Collection[IPv4Address]], Awaitable[list[str]]]
LookAtTraffic = Callable[[], Awaitable[Traffic]]


@dataclass(frozen=True)
class Cadence:
    """How often a node that answers is asked when nothing else is heard of it, in seconds.

    Attributes:
        needed_s: relays and the head.
        member_s: on the head, the members of its cluster: their silence is told to everybody within 10 s.
        other_s: any other node, at least.
        share_s: any other node, by their number: together they cost one exchange in so many seconds.
        silent_s: between two questions to a node that does not answer and has to.
        silent_other_s: to one that does not have to. Whom EasyTier does not list costs no packet.
    """

    needed_s: float = 10.0
    member_s: float = 6.0
    other_s: float = 60.0
    share_s: float = 20.0
    silent_s: float = 0.5
    silent_other_s: float = 3.0


METERED = Cadence(needed_s=60.0, member_s=60.0, other_s=600.0, share_s=200.0, silent_s=5.0, silent_other_s=60.0)


@dataclass(frozen=True)
class Known:
    """What is known of one node's answers; times on the monotonic clock."""

    overlay_ip: IPv4Address
    due_s: float  # when it is to be asked
    silences: int = 0  # questions since the last answer
    answered_s: float | None = None  # when it was heard last
    acknowledged_s: float | None = None  # when a connection with it was heard last, since its echo was lost
    silent_since_s: float | None = None  # the first question that it did not answer
    answering_since_s: float | None = None  # the first answer after a silence
    skipped: int = 0  # periods in which it was heard without being asked
    identity: Identity | None = None  # whose answer counts as its own
    proof: Proof = Proof.UNPROVEN  # of the last answer; somebody else is one until a right answer comes
    unproven: int = 0  # questions since the last answer that proved who it is
    is_doubted: bool = False  # for want of a proof; what is heard on old connections ends no doubt
    otherwise_s: float | None = None  # when it was heard last without the proof that is wanted
    otherwise_since_s: float | None = None  # since when that is so, without a pause
    echo: Echo | None = None
    clock: PeerClock = field(default_factory=PeerClock, compare=False)

    @property
    def is_silent(self) -> bool:
        """Whether it does not answer, and one lost packet is not the cause."""
        return self.silences >= _SILENCE_TRIES

    @property
    def last_heard_s(self) -> float | None:
        """When it was heard last, by an echo or on a connection. None: it never was."""
        return max((at_s for at_s in (self.answered_s, self.acknowledged_s) if at_s is not None), default=None)

    @property
    def is_behind_queue(self) -> bool:
        """Whether its connections went on after a question that it did not answer: a full queue takes seconds."""
        heard_s, since_s = self.otherwise_s, self.silent_since_s
        return heard_s is not None and since_s is not None and heard_s >= since_s + _usual_patience_s(self)

    def doubted(self) -> Known:
        """It, after a question: doubted where neither one lost packet nor a full queue explains the missing proof."""
        tries = _FULL_QUEUE_TRIES if self.is_behind_queue else _SILENCE_TRIES
        return replace(self, is_doubted=self.unproven > 0 and (self.is_doubted or self.unproven >= tries))

    def is_same(self, other: Known) -> bool:
        """Whether both are one node at one address."""
        return (self.overlay_ip, self.identity) == (other.overlay_ip, other.identity)

    def heard(self, at_s: float) -> Known:
        answered_s = at_s if self.answered_s is None else max(self.answered_s, at_s)
        since_s = at_s if self.answering_since_s is None else self.answering_since_s
        return replace(self, answered_s=answered_s, answering_since_s=since_s, silences=0, silent_since_s=None)

    def not_heard(self, at_s: float) -> Known:
        since_s = at_s if self.silent_since_s is None else self.silent_since_s
        known = replace(self, silences=self.silences + 1, silent_since_s=since_s, unproven=self.unproven + 1)
        return replace(known, answering_since_s=None) if known.is_silent else known

    def judged(self, proof: Proof) -> Known:
        if proof is Proof.PROVEN:
            return replace(self, proof=proof, unproven=0, otherwise_s=None, otherwise_since_s=None)
        is_wrong = Proof.WRONG in (proof, self.proof)
        return replace(self, proof=Proof.WRONG if is_wrong else Proof.UNPROVEN, unproven=self.unproven + 1)

    def heard_otherwise(self, at_s: float) -> Known:
        """It was heard at ``at_s``, and its proof is still missing."""
        since_s = self.otherwise_since_s if self.is_heard_otherwise(at_s) else at_s
        return replace(self, otherwise_s=max(at_s, self.otherwise_s or at_s), otherwise_since_s=since_s)

    def is_heard_otherwise(self, at_s: float) -> bool:
        """Whether it was heard without its proof a moment before ``at_s``. An outage ends that."""
        return self.otherwise_s is not None and at_s - self.otherwise_s <= _OTHERWISE_S


LAST_ANSWER_S: Final[Fact[float | None]] = Fact("last_answer_s")
ANSWERING: Final[Fact[Mapping[str, float]]] = Fact("answering")
SILENT: Final[Fact[Mapping[str, float]]] = Fact("silent")
UNHEARD: Final[Fact[Mapping[str, float | None]]] = Fact("unheard")
PROVEN: Final[Fact[frozenset[str]]] = Fact("proven")
UNPROVEN: Final[Fact[Mapping[str, float]]] = Fact("unproven")
DOUBTED: Final[Fact[frozenset[IPv4Address]]] = Fact("doubted")
IMPOSTORS: Final[Fact[frozenset[IPv4Address]]] = Fact("impostors")


@dataclass(frozen=True)
class Look(Action):
    """Follow the nodes that are asked, and see whom the kernel has heard."""

    targets: Targets
    is_metered: bool
    echo_wishes: int
    standstills: int
    disowned: Mapping[str, float] = field(default_factory=dict)

    @property
    def doubts(self) -> tuple[bool, int, int]:
        """What has everybody asked at once when it changes. After a sleep, what is known of others is worth nothing."""
        return self.is_metered, self.echo_wishes, self.standstills

    def cadence(self, name: str) -> Cadence:
        """The longer periods where a question costs money at either end."""
        return METERED if self.is_metered or name in self.targets.metered else Cadence()

    def period_s(self, name: str) -> float:
        cadence, targets = self.cadence(name), self.targets
        if name in targets.needed or name in targets.relays:
            return cadence.needed_s
        if name in targets.members or name in targets.alive:
            return cadence.member_s
        return max(cadence.other_s, len(targets.others) * cadence.share_s)


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
class Seen:
    """What the part itself has seen.

    Attributes:
        known: what is known of each node that is asked, by hostname.
        look: the last look. None: nobody is asked.
        looked_s: when that was, on the monotonic clock.
        due: who was due then, and is to be asked now.
        traffic: what the kernel knew then.
        status: what the condition said before the last look or question.
        keen_until_s: until when a silent node is asked as often as on an uplink that is not metered.
        why: the likeliest cause of everybody's silence.
        why_s: when that was asked for last in this silence. None: it was not.
        why_broker: how the broker was then.
    """

    known: Mapping[str, Known] = field(default_factory=dict)
    look: Look | None = None
    looked_s: float = 0.0
    due: tuple[str, ...] = ()
    traffic: Traffic = field(default_factory=Traffic, compare=False)
    status: Status = Status.UNKNOWN
    keen_until_s: float = 0.0
    why: Diagnosis | None = None
    why_s: float | None = None
    why_broker: str | None = None

    @property
    def answering(self) -> dict[str, float]:
        """Since when each node answers without a silence, on the monotonic clock, by hostname."""
        return {
            name: known.answering_since_s
            for name, known in self.known.items()
            if known.answering_since_s is not None and not known.is_silent and known.proof is not Proof.WRONG
        }

    @property
    def silent(self) -> dict[str, float]:
        """Since when each silent node is, on the monotonic clock, by hostname."""
        return {
            name: known.silent_since_s
            for name, known in self.known.items()
            if known.is_silent and known.silent_since_s is not None
        }

    @property
    def unheard(self) -> dict[str, float | None]:
        """When each silent node was heard last, on the monotonic clock, by hostname. None: it never was."""
        return {name: known.last_heard_s for name, known in self.known.items() if known.is_silent}

    @property
    def proven(self) -> frozenset[str]:
        """Who has proven with its last answer who it is."""
        return frozenset(name for name, known in self.known.items() if known.proof is Proof.PROVEN)

    @property
    def impostors(self) -> frozenset[IPv4Address]:
        """Where somebody else has answered, and the right node not since."""
        return frozenset(known.overlay_ip for known in self.known.values() if known.proof is Proof.WRONG)

    @property
    def doubted(self) -> frozenset[IPv4Address]:
        """Who could prove who it is, and has not for some questions. One lost packet is no doubt."""
        provers = frozenset[str]() if self.look is None else self.look.targets.provers
        doubted = [self.known[name] for name in provers & self.known.keys() if self.known[name].is_doubted]
        return frozenset(known.overlay_ip for known in doubted)

    def unproven(self, at_s: float) -> dict[str, float]:
        """Who could prove itself, is heard and does not; since when that is so without a pause."""
        provers = frozenset[str]() if self.look is None else self.look.targets.provers
        return {
            name: known.otherwise_since_s
            for name, known in self.known.items()
            if name in provers and known.otherwise_since_s is not None and known.is_heard_otherwise(at_s)
        }

    def with_addresses(self, names: list[str]) -> str:
        return ", ".join(f"{name} ({self.known[name].overlay_ip})" for name in names)


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
        says = _says(own, look)
        is_cut_off = bool(says) and says[-1].reason in CUT_OFF
        is_old = own.why_s is None or at_s >= own.why_s + _WHY_AGAIN_S or own.why_broker != now.broker_away
        if is_cut_off and is_old:
            return Decision(does=FindCause(tuple(look.targets.counted.values()), now.broker_away))
        rested_s = own.looked_s + len(own.known) * _REST_S
        due_s = (known.due_s if known.silences else max(known.due_s, rested_s) for known in own.known.values())
        again_s = min([own.looked_s + _LOOK_AGAIN_S, *due_s]) - at_s
        return Decision(says, look) if again_s <= 0 else Decision(says, again_s=again_s)

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
                nodes[name] = replace(_disowned(name, before, look), due_s=sooner_s)
        status = self._conditions.get(self.condition).status
        self._know(replace(own, known=nodes, look=look, status=status))
        if own.look is not None and own.look.doubts != look.doubts:
            self.ask_now()
        if impostors := self.own.impostors:  # at each look: one may be made before the firewall's rule stands
            for closed in await self._close(impostors):
                _log.warning("overlay.impostors_connection_closed", other_end=closed)
        traffic = await self._look_at_traffic()
        nodes = {name: _taken_in(name, known, traffic, look, at_s) for name, known in self.own.known.items()}
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
            *(self._ask(own_ip, each.overlay_ip, _patience_s(each), each.identity) for each in everyone)
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
        self._know(replace(self.own, known=known))
        await self._doubt(own.look.targets.provers.intersection(names), own.look)
        if was_cut_off and counted & self.own.answering.keys():  # the way is back: who else is?
            self.ask_now([name for name, each in known.items() if each.answered_s != asked_s])

    async def _doubt(self, names: Collection[str], look: Look) -> None:
        """Doubt who has just not proven itself often enough; who acknowledges only later may be another."""
        if any(self.own.known[name].unproven == _SILENCE_TRIES for name in names):
            traffic, at_s = await self._look_at_traffic(), self._clock.monotonic_s()
            heard = {name: _taken_in(name, each, traffic, look, at_s) for name, each in self.own.known.items()}
            self.own = replace(self.own, known=heard)
        known = self.own.known
        self._know(replace(self.own, known={**known, **{name: known[name].doubted() for name in names}}))

    def _after_s(self, known: Known, look: Look, name: str) -> float:
        """The pause after an answer. A proof that is missing is asked for as an answer that is missing would be."""
        if not _lacks_proof(known, look, name):
            return look.period_s(name)
        return self._again_s(replace(known, silences=known.unproven), look, name)

    def _again_s(self, known: Known, look: Look, name: str) -> float:
        """The pause after a question that nobody answered."""
        if known.silences < (_EAGER_TRIES if known.answered_s is None else _SILENCE_TRIES):
            return _EAGER_S
        is_keen = self._clock.monotonic_s() < self.own.keen_until_s
        cadence = Cadence() if is_keen else look.cadence(name)
        return cadence.silent_s if name in look.targets.counted else cadence.silent_other_s


def _taken_in(name: str, known: Known, traffic: Traffic, look: Look, at_s: float) -> Known:
    """Put off the question to a node that was heard anyway, and ask at once where a connection hangs."""
    heard_s = traffic.heard_s.get(known.overlay_ip)
    if known.silences and heard_s is not None:  # a full queue, or a firewall, takes echoes only
        known = replace(known, acknowledged_s=max(known.acknowledged_s or 0.0, at_s - heard_s))
    if known.answered_s is None or known.silences or _lacks_proof(known, look, name):
        is_prover = name in look.targets.provers
        return known.heard_otherwise(at_s - heard_s) if is_prover and heard_s is not None else known
    period_s = look.period_s(name)
    if known.overlay_ip in traffic.stuck or (traffic.uplink_is_stuck and name in look.targets.counted):
        return replace(known, due_s=at_s)
    if known.due_s <= at_s and heard_s is not None and heard_s < period_s and known.skipped < _REFRESH:
        heard = known.heard(at_s - heard_s)
        return replace(heard, due_s=at_s - heard_s + period_s, skipped=known.skipped + 1)
    return known


def _disowned(name: str, known: Known, look: Look) -> Known:
    """Whom the registry's word is against, as of the time for which it is, is somebody else."""
    since_s = look.disowned.get(name)
    return known if since_s is None or since_s != known.otherwise_since_s else replace(known, proof=Proof.WRONG)


def _lacks_proof(known: Known, look: Look, name: str) -> bool:
    """Whether a proof is to be had that the last answer did not bring."""
    return known.proof is Proof.WRONG or (name in look.targets.provers and known.proof is not Proof.PROVEN)


# what is said


def _says(own: Seen, look: Look) -> tuple[Said, ...]:
    """Return what the answers say, PeersReachable last. One lost packet says nothing."""
    targets, was_reachable = look.targets, own.status is Status.TRUE
    silent = {name for name, known in own.known.items() if known.is_silent}
    if not was_reachable:  # then only an answer counts, not that nobody was asked three times yet
        silent.update(name for name in {**targets.needed, **targets.relays} if own.known[name].answered_s is None)
    wrong = [name for name, known in own.known.items() if known.proof is Proof.WRONG]
    silent.update(wrong)
    missed, relays = targets.silent(silent)
    if missed and set(missed).isdisjoint(wrong):
        return (_unreachable(own, targets, missed),)
    if missed:
        return (_not_who_they_say(own, [name for name in missed if name in wrong]),)
    doubtful = [name for name in targets.counted if name not in relays and own.known[name].silences]
    if doubtful and was_reachable:
        return ()  # asked again before it is said: one lost packet is what networks do
    answering = own.answering
    heard = ", ".join(name for name in targets.counted if name in answering) or "nobody has to"
    others = [name for name in targets.others if name in silent and name not in wrong]
    also = f"; no answer from {few(others, most=_MOST_NAMED)}" if others else ""
    told = f"answering over the overlay: {heard}{also}{_metered_in_words(look)}{_proofs_in_words(own, targets)}"
    return _of_relays(own, targets, relays), is_so(PEERS_REACHABLE.name, "Reachable", told)


def _metered_in_words(look: Look) -> str:
    """Who is asked seldom, and therefore missed late."""
    every = f"asked every {METERED.needed_s:g} s"
    if look.is_metered:
        return f"; metered: {every}"
    names = [name for name in look.targets.counted if name in look.targets.metered]
    return f"; metered: {few(names, most=_MOST_NAMED)}, {every}" if names else ""


def _proofs_in_words(own: Seen, targets: Targets) -> str:
    """Who answers and does not prove who it is, where that matters, and who is somebody else."""
    proven, told = own.proven, ""
    if lacking := [name for name in targets.needed if name in targets.provers and name not in proven]:
        told += f"; {few(lacking)} does not prove who it is: new connections with it wait, and so does a start of Ray"
    if unproven := [name for name in targets.needed if name not in targets.provers and name not in proven]:
        told += f"; {few(unproven)} does not prove who it is: its echo is not up"
    if wrong := [name for name, known in own.known.items() if known.proof is Proof.WRONG]:
        told += f"; somebody else answers as {own.with_addresses(wrong)}, and is kept out"
    return told


def _not_who_they_say(own: Seen, wrong: list[str]) -> Said:
    return is_not_so(
        PEERS_REACHABLE.name,
        "PeerNotWhoItSays",
        f"somebody else answers at the address of {own.with_addresses(wrong)}: nothing but echoes passes until the "
        "right node answers; `edgelink status` on relay or head names who else has that address",
    )


def _of_relays(own: Seen, targets: Targets, silent: list[str]) -> Said:
    """Say which relays are silent. It only informs: with several relays, the silence of one costs nothing yet."""
    if not silent:
        names = ", ".join(targets.relays) or "none is needed"
        return is_so(RELAYS_REACHABLE.name, "AllAnswer", f"relays that answer: {names}")
    told = f"no answer over the overlay from {own.with_addresses(silent)}, another relay carries on"
    return is_not_so(
        RELAYS_REACHABLE.name, "RelaySilent", f"{told}; if it is gone for good, `edgelink registry release` it"
    )


def _unreachable(own: Seen, targets: Targets, silent: list[str]) -> Said:
    heard = own.answering
    answering = [name for name in targets.counted if name in heard]
    is_eager = all(known.silences < _EAGER_TRIES for known in own.known.values() if known.answered_s is None)
    names = own.with_addresses(silent)
    if not answering and is_eager and own.status is Status.UNKNOWN:  # EasyTier dials first a second after its start
        return is_unknown(PEERS_REACHABLE.name, "Connecting", f"waiting for an answer of {names}")
    reason = "PeerSilent"
    hint = f"answers come from {few(answering, most=_MOST_NAMED)}; check that node's `edgelink status`"
    if not answering:
        found = own.why
        reason, hint = (found.reason, found.message) if found else ("NobodyAnswers", _NOBODY)
    return is_not_so(PEERS_REACHABLE.name, reason, f"no answer over the overlay from {names}; {hint}")


def _patience_s(known: Known) -> float:
    """How long an answer is waited for: where answers were quick, silence is known sooner."""
    if known.is_behind_queue:
        return _FULL_QUEUE_PATIENCE_S
    if known.answered_s is None and known.silences < _EAGER_TRIES:
        return _EAGER_PATIENCE_S
    return _usual_patience_s(known)


def _usual_patience_s(known: Known) -> float:
    slowest_ms = known.echo.rtt_ms if known.echo is not None else _PATIENCE_S * 1000
    return min(max(4 * slowest_ms / 1000, _PROMPT_S), _PATIENCE_S)
