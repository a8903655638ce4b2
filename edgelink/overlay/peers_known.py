"""What a node knows of the others' answers, and how often it asks them; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address

from edgelink.conditions import Status
from edgelink.facts.part import Action
from edgelink.overlay.diagnosis import Diagnosis
from edgelink.overlay.echo import Echo, PeerClock
from edgelink.overlay.echo_proof import Identity, Proof
from edgelink.overlay.targets import Targets
from edgelink.overlay.traffic import Traffic

_PATIENCE_S = 1.0
_PROMPT_S = 0.3  # on a path that answers in less than a quarter of it
_EAGER_PATIENCE_S = 0.25  # a lost first question must not cost a second; a slower path is asked patiently later
EAGER_TRIES = 20
SILENCE_TRIES = 3
_REFRESH = 6  # periods after which a node is asked although it was heard: round trip and clock are to be known
_FULL_QUEUE_PATIENCE_S = 5.0
_FULL_QUEUE_TRIES = 6  # two looks at the kernel apart, so one at least is waited for patiently
_OTHERWISE_S = 10.0  # longer than between two questions, or two looks at the kernel, of who answers


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
        return self.silences >= SILENCE_TRIES

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
        tries = _FULL_QUEUE_TRIES if self.is_behind_queue else SILENCE_TRIES
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


def taken_in(name: str, known: Known, traffic: Traffic, look: Look, at_s: float) -> Known:
    """Put off the question to a node that was heard anyway, and ask at once where a connection hangs."""
    heard_s = traffic.heard_s.get(known.overlay_ip)
    if known.silences and heard_s is not None:  # a full queue, or a firewall, takes echoes only
        known = replace(known, acknowledged_s=max(known.acknowledged_s or 0.0, at_s - heard_s))
    if known.answered_s is None or known.silences or lacks_proof(known, look, name):
        is_prover = name in look.targets.provers
        return known.heard_otherwise(at_s - heard_s) if is_prover and heard_s is not None else known
    period_s = look.period_s(name)
    if known.overlay_ip in traffic.stuck or (traffic.uplink_is_stuck and name in look.targets.counted):
        return replace(known, due_s=at_s)
    if known.due_s <= at_s and heard_s is not None and heard_s < period_s and known.skipped < _REFRESH:
        heard = known.heard(at_s - heard_s)
        return replace(heard, due_s=at_s - heard_s + period_s, skipped=known.skipped + 1)
    return known


def disowned(name: str, known: Known, look: Look) -> Known:
    """Whom the registry's word is against, as of the time for which it is, is somebody else."""
    since_s = look.disowned.get(name)
    return known if since_s is None or since_s != known.otherwise_since_s else replace(known, proof=Proof.WRONG)


def lacks_proof(known: Known, look: Look, name: str) -> bool:
    """Whether a proof is to be had that the last answer did not bring."""
    return known.proof is Proof.WRONG or (name in look.targets.provers and known.proof is not Proof.PROVEN)


def patience_s(known: Known) -> float:
    """How long an answer is waited for: where answers were quick, silence is known sooner."""
    if known.is_behind_queue:
        return _FULL_QUEUE_PATIENCE_S
    if known.answered_s is None and known.silences < EAGER_TRIES:
        return _EAGER_PATIENCE_S
    return _usual_patience_s(known)


def _usual_patience_s(known: Known) -> float:
    slowest_ms = known.echo.rtt_ms if known.echo is not None else _PATIENCE_S * 1000
    return min(max(4 * slowest_ms / 1000, _PROMPT_S), _PATIENCE_S)
