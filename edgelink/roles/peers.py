"""Whether the other nodes answer over the overlay, from our overlay address.

A device with the right address proves nothing about the network behind it: with a wrong network name EasyTier
connects happily and sees nobody. Only an answer counts: an echo's, or the kernel's word that a TCP connection with
that node was acknowledged a moment ago. A node that is heard so is not asked, because bytes cost money on LTE.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, ClassVar, Final

from edgelink.clock import Clock
from edgelink.condition_table.informing import RELAYS_REACHABLE
from edgelink.condition_table.required import PEERS_REACHABLE
from edgelink.conditions import ConditionSet, Said, Status, is_not_so, is_so, is_unknown
from edgelink.facts.board import Board, Fact
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.diagnosis import Diagnosis
from edgelink.overlay.echo import Ask, Echo, PeerClock
from edgelink.overlay.targets import Targets
from edgelink.overlay.traffic import Traffic
from edgelink.reconcile import Wakeup
from edgelink.wording import few

_PATIENCE_S = 1.0
_PROMPT_S = 0.3  # on a path that answers in less than a quarter of it
_LOOK_AGAIN_S = 2.0  # at what the kernel knows, 4 ms of CPU; a packet goes out only when a node is due
_EAGER_S = 0.05  # the first answer is what `ray start` waits for
_EAGER_PATIENCE_S = 0.25  # a lost first question must not cost a second; a slower path is asked patiently later
_EAGER_TRIES = 20
_SILENCE_TRIES = 3
_REFRESH = 6  # periods after which a node is asked although it was heard: round trip and clock are to be known
_PATIENT_S = 2.0
_KEEN_S = 3.0  # an uplink that has changed is judged by answers after 2.5 s, on a metered one as well
_WHY_AGAIN_S = 10.0  # it takes a process of easytier-cli
_MOST_NAMED = 5

CUT_OFF = frozenset({"NobodyAnswers", "MtuBlackHole", "RelayUnreachable", "NetworkRefused", "WrongNetwork"})  # reasons
_NOBODY = "what carries the overlay is up, but nobody is there: check the other nodes' `edgelink status`"

WhySilent = Callable[[Iterable[IPv4Address]], Awaitable[Diagnosis | None]]
LookAtTraffic = Callable[[], Awaitable[Traffic]]


@dataclass(frozen=True)
class Cadence:
    """How often a node that answers is asked when nothing else is heard of it, in seconds.

    Attributes:
        needed_s: relays, the head, and on the head the members of its cluster.
        other_s: any other node, at least.
        share_s: any other node, by their number: together they cost one exchange in so many seconds.
        silent_s: between two questions to a node that does not answer and has to.
        silent_other_s: to one that does not have to. Whom EasyTier does not list costs no packet.
    """

    needed_s: float = 10.0
    other_s: float = 60.0
    share_s: float = 20.0
    silent_s: float = 0.5
    silent_other_s: float = 3.0

    def period_s(self, *, is_needed: bool, others: int) -> float:
        """The period of one node, where so many are not needed."""
        return self.needed_s if is_needed else max(self.other_s, others * self.share_s)


METERED = Cadence(needed_s=60.0, other_s=600.0, share_s=200.0, silent_s=5.0, silent_other_s=60.0)


class _Known:
    """What is known of one node's answers."""

    def __init__(self, overlay_ip: IPv4Address, now_s: float) -> None:
        self.overlay_ip = overlay_ip
        self.due_s = now_s
        self.silences = 0  # questions since the last answer
        self.answered_s: float | None = None  # when it was heard last, on the monotonic clock
        self.silent_since_s: float | None = None  # the first question that it did not answer
        self.answering_since_s: float | None = None  # the first answer after a silence
        self.skipped = 0  # periods in which it was heard without being asked
        self.echo: Echo | None = None
        self.clock = PeerClock()

    @property
    def is_silent(self) -> bool:
        """Whether it does not answer, and one lost packet is not the cause."""
        return self.silences >= _SILENCE_TRIES

    def heard(self, at_s: float) -> None:
        self.answered_s = at_s if self.answered_s is None else max(self.answered_s, at_s)
        self.answering_since_s = at_s if self.answering_since_s is None else self.answering_since_s
        self.silences, self.silent_since_s = 0, None

    def not_heard(self, at_s: float) -> None:
        self.silences += 1
        self.silent_since_s = at_s if self.silent_since_s is None else self.silent_since_s
        if self.is_silent:
            self.answering_since_s = None


LAST_ANSWER_S: Final[Fact[float | None]] = Fact("last_answer_s")
ANSWERING: Final[Fact[Mapping[str, float]]] = Fact("answering")
SILENT: Final[Fact[Mapping[str, float]]] = Fact("silent")
NOBODY_ANSWERS: Final[Fact[bool]] = Fact("nobody_answers")


@dataclass(frozen=True)
class Around:
    """What decides which nodes are asked, and when."""

    overlay_spec: OverlaySpec | None
    overlay_is_up: bool
    targets: Targets | None
    is_metered: bool
    echo_wishes: int
    standstills: int


class PeersReconciler:
    """Keeps PeersReachable and RelaysReachable, and the round-trip times behind them."""

    name: ClassVar[str] = "peers"
    condition: ClassVar[str] = PEERS_REACHABLE.name
    # Informs: with several relays, the silence of one costs nothing yet.
    relays_condition: ClassVar[str] = RELAYS_REACHABLE.name

    def __init__(
        self,
        *,
        board: Board[Any],
        conditions: ConditionSet,
        clock: Clock,
        ask: Ask,
        look: LookAtTraffic,
        why_silent: WhySilent,
    ) -> None:
        self.wakeup = Wakeup()
        self.asked: Counter[str] = Counter()  # by hostname, since this daemon started
        self.lost: Counter[str] = Counter()  # those of them that nobody answered
        self._board = board
        self._put_last_answer_s = board.claim(LAST_ANSWER_S, self.name)
        self._put_answering = board.claim(ANSWERING, self.name)
        self._put_silent = board.claim(SILENT, self.name)
        self._put_nobody_answers = board.claim(NOBODY_ANSWERS, self.name)
        self._seen = board.select(Around)  # as of the last look
        board.read(Around, self.name, self.wakeup)
        self._known: dict[str, _Known] = {}
        self._conditions = conditions
        self._clock = clock
        self._ask = ask
        self._look = look
        self._why_silent = why_silent
        self._keen_until_s = 0.0
        self._why: Diagnosis | None = None
        self._asked_why_s: float | None = None  # in this silence

    @property
    def rtt_ms(self) -> dict[str, float]:
        """Round-trip time of the last echo, of each node that answers."""
        return {
            name: known.echo.rtt_ms
            for name, known in self._known.items()
            if known.echo is not None and not known.is_silent
        }

    @property
    def clock_offsets_ms(self) -> dict[str, float]:
        """How far the clock of each node is ahead of ours, as far as that is known."""
        offsets = {name: known.clock.offset_ms for name, known in self._known.items()}
        return {name: offset_ms for name, offset_ms in offsets.items() if offset_ms is not None}

    @property
    def silent(self) -> dict[str, float]:
        """Since when each silent node is, on the monotonic clock, by hostname."""
        return {
            name: known.silent_since_s
            for name, known in self._known.items()
            if known.is_silent and known.silent_since_s is not None
        }

    @property
    def answering(self) -> dict[str, float]:
        """Since when each node answers without a silence, on the monotonic clock, by hostname."""
        return {
            name: known.answering_since_s
            for name, known in self._known.items()
            if known.answering_since_s is not None and not known.is_silent
        }

    def ask_now(self, names: Iterable[str] | None = None) -> None:
        """Ask these nodes, or everybody, without waiting until they are due.

        Everybody is asked when this machine's uplink may have changed. Who does not answer is then asked again as often
        as on an uplink that is not metered, for three seconds.
        """
        now_s = self._clock.monotonic_s()
        if names is None:
            self._keen_until_s = now_s + _KEEN_S
        for name in self._known if names is None else names:
            if name in self._known:
                self._known[name].due_s = min(self._known[name].due_s, now_s)
        self.wakeup.set()

    async def reconcile(self) -> float:
        now = self._board.select(Around)
        before, self._seen = self._seen, now
        if _reasons_to_ask(now) != _reasons_to_ask(before):
            self.ask_now()
        if now.overlay_spec is None or not now.overlay_is_up:
            self._know({})
            self._asked_why_s = None  # eager again once it is up
            self._tell(is_unknown(self.condition, "OverlayDown", "the overlay device is not up"))
            return _PATIENT_S
        if (targets := now.targets) is None:
            self._know({})
            self._tell(
                is_unknown(self.condition, "DirectoryNotSeen", "the relay has not told yet who is in the network")
            )
            return _PATIENT_S
        everyone, now_s = targets.all, self._clock.monotonic_s()
        self._follow(everyone, now_s)
        self._take_in(await self._look(), targets, now_s)
        due = [name for name, known in self._known.items() if known.due_s <= now_s]
        await self._ask_all(due, targets, now.overlay_spec.overlay_ip.ip)
        await self._say(targets)
        return self._next_look_s()

    def _follow(self, everyone: Mapping[str, IPv4Address], now_s: float) -> None:
        """Know exactly those who are to be asked; who has another address is somebody new."""
        self._know(
            {
                name: known
                if (known := self._known.get(name)) is not None and known.overlay_ip == address
                else _Known(address, now_s)
                for name, address in everyone.items()
            }
        )

    def _know(self, known: dict[str, _Known]) -> None:
        self._known = known
        self._put_known()

    def _put_known(self) -> None:
        self._put_answering(self.answering)
        self._put_silent(self.silent)

    def _take_in(self, traffic: Traffic, targets: Targets, now_s: float) -> None:
        """Put off questions to who was heard anyway, and ask at once where a connection hangs."""
        counted = targets.counted
        for name, known in self._known.items():
            if known.answered_s is None or known.silences:
                continue
            heard_s = traffic.heard_s.get(known.overlay_ip)
            period_s = self._period_s(name, targets)
            if known.overlay_ip in traffic.stuck or (traffic.uplink_is_stuck and name in counted):
                known.due_s = now_s
            elif known.due_s <= now_s and heard_s is not None and heard_s < period_s and known.skipped < _REFRESH:
                known.heard(now_s - heard_s)
                known.due_s = now_s - heard_s + period_s
                known.skipped += 1

    async def _ask_all(self, due: list[str], targets: Targets, own_ip: IPv4Address) -> None:
        was_cut_off = not targets.counted.keys() & self.answering.keys()
        asked_s = self._clock.monotonic_s()
        everyone = [self._known[name] for name in due]
        answers = await asyncio.gather(*(self._ask(own_ip, known.overlay_ip, _patience_s(known)) for known in everyone))
        now_s = self._clock.monotonic_s()
        for name, known, echo in zip(due, everyone, answers, strict=True):
            self.asked[name] += 1
            if echo is None:
                self.lost[name] += 1
                known.not_heard(asked_s)
                known.due_s = now_s + self._again_s(known, targets, name)
            else:
                known.heard(asked_s)
                known.clock.note(echo)
                known.echo, known.skipped = echo, 0
                known.due_s = now_s + self._period_s(name, targets)
                self._put_last_answer_s(asked_s)
                self._asked_why_s = None
        self._put_known()
        if was_cut_off and targets.counted.keys() & self.answering.keys():  # the way is back: who else is?
            for known in self._known.values():
                known.due_s = min(known.due_s, now_s) if known.answered_s != asked_s else known.due_s

    def _period_s(self, name: str, targets: Targets) -> float:
        others = len(targets.others)
        return self._cadence(name, targets).period_s(is_needed=name in targets.counted, others=others)

    def _cadence(self, name: str, targets: Targets) -> Cadence:
        """The longer periods where a question costs money at either end."""
        return METERED if self._seen.is_metered or name in targets.metered else Cadence()

    def _again_s(self, known: _Known, targets: Targets, name: str) -> float:
        """The pause after a question that nobody answered."""
        tries = _EAGER_TRIES if known.answered_s is None else _SILENCE_TRIES
        if known.silences < tries:
            return _EAGER_S
        is_keen = self._clock.monotonic_s() < self._keen_until_s
        cadence = Cadence() if is_keen else self._cadence(name, targets)
        return cadence.silent_s if name in targets.counted else cadence.silent_other_s

    def _next_look_s(self) -> float:
        now_s = self._clock.monotonic_s()
        next_s = min((known.due_s for known in self._known.values()), default=now_s + _LOOK_AGAIN_S)
        return min(max(next_s - now_s, 0.0), _LOOK_AGAIN_S)

    # what is said

    async def _say(self, targets: Targets) -> None:
        was_reachable = self._conditions.is_true(self.condition)
        silent = {name for name, known in self._known.items() if known.is_silent}
        if not was_reachable:  # then only an answer counts, not that nobody was asked three times yet
            unknown = (name for name in {**targets.needed, **targets.relays} if self._known[name].answered_s is None)
            silent.update(unknown)
        missed, relays = targets.silent(silent)
        if missed:
            await self._unreachable(missed, targets)
            return
        doubtful = [n for n in targets.counted if n not in relays and self._known[n].silences]
        if doubtful and was_reachable:
            return  # asked again before it is said: one lost packet is what networks do
        self._say_of_relays(targets, relays)
        answering = self.answering
        heard = ", ".join(name for name in targets.counted if name in answering) or "nobody has to"
        others = [name for name in targets.others if name in silent]
        also = f"; no answer from {few(others, most=_MOST_NAMED)}, which nothing here waits for" if others else ""
        metered = self._metered_in_words(targets)
        self._tell(is_so(self.condition, "Reachable", f"answering over the overlay: {heard}{also}{metered}"))

    def _tell(self, said: Said) -> None:
        self._conditions.say(said)
        self._put_nobody_answers(said.reason in CUT_OFF)

    def _metered_in_words(self, targets: Targets) -> str:
        """Who is asked seldom, and therefore missed late."""
        every = f"asked every {METERED.needed_s:g} s"
        if self._seen.is_metered:
            return f"; metered: {every}"
        names = [name for name in targets.counted if name in targets.metered]
        return f"; metered: {few(names, most=_MOST_NAMED)}, {every}" if names else ""

    def _say_of_relays(self, targets: Targets, silent: list[str]) -> None:
        if silent:
            self._conditions.set_false(
                self.relays_condition,
                "RelaySilent",
                f"no answer over the overlay from {', '.join(map(self._with_address, silent))}, another relay carries "
                "on; if it is gone for good, `edgelink registry release` it",
            )
        else:
            names = ", ".join(targets.relays) or "none is needed"
            self._conditions.set_true(self.relays_condition, "AllAnswer", f"relays that answer: {names}")

    async def _unreachable(self, silent: list[str], targets: Targets) -> None:
        answering = [name for name in targets.counted if name in self.answering]
        is_eager = all(known.silences < _EAGER_TRIES for known in self._known.values() if known.answered_s is None)
        is_new = self._conditions.get(self.condition).status is Status.UNKNOWN
        names = ", ".join(map(self._with_address, silent))
        if not answering and is_eager and is_new:  # EasyTier dials for the first time a second after its start
            self._tell(is_unknown(self.condition, "Connecting", f"waiting for an answer of {names}"))
            return
        reason = "PeerSilent"
        hint = f"answers come from {few(answering, most=_MOST_NAMED)}; check that node's `edgelink status`"
        if not answering:
            found = await self._likeliest_cause(targets)
            reason, hint = (found.reason, found.message) if found else ("NobodyAnswers", _NOBODY)
        self._tell(is_not_so(self.condition, reason, f"no answer over the overlay from {names}; {hint}"))

    async def _likeliest_cause(self, targets: Targets) -> Diagnosis | None:
        """Why everybody is silent, asked for every 10 s."""
        now_s = self._clock.monotonic_s()
        if self._asked_why_s is None or now_s >= self._asked_why_s + _WHY_AGAIN_S:
            self._asked_why_s, self._why = now_s, await self._why_silent(targets.counted.values())
        return self._why

    def _with_address(self, name: str) -> str:
        return f"{name} ({self._known[name].overlay_ip})"


def _reasons_to_ask(now: Around) -> tuple[int, int, bool]:
    """What has everybody asked at once when it changes. After a sleep, what is known of the others is worth nothing."""
    return now.echo_wishes, now.standstills, now.is_metered


def _patience_s(known: _Known) -> float:
    """How long an answer is waited for: where answers were quick, silence is known sooner."""
    if known.answered_s is None and known.silences < _EAGER_TRIES:
        return _EAGER_PATIENCE_S
    slowest_ms = known.echo.rtt_ms if known.echo is not None else _PATIENCE_S * 1000
    return min(max(4 * slowest_ms / 1000, _PROMPT_S), _PATIENCE_S)
