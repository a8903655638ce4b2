"""Whether the nodes that this one needs answer over the overlay, from our overlay address: the head, and one relay.

A device with the right address proves nothing about the network behind it: with a wrong network name EasyTier
connects happily and sees nobody. Only an answer counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import ClassVar

from edgelink.clock import Clock
from edgelink.condition_table.informing import RELAYS_REACHABLE
from edgelink.condition_table.required import PEERS_REACHABLE
from edgelink.conditions import ConditionSet, Status
from edgelink.overlay.diagnosis import Diagnosis
from edgelink.reconcile import Wakeup

_PING_TIMEOUT_S = 1.0
_PROMPT_S = 0.3  # on a path that answers in less than a quarter of it
_LOOK_AGAIN_S = 2.0  # two pings, half a millisecond of CPU
_EAGER_S = 0.05  # the first answer is what `ray start` waits for
_EAGER_PING_TIMEOUT_S = 0.25  # a lost first ping must not cost a second; a slower path is asked patiently later
_EAGER_TRIES = 20
_SILENCE_TRIES = 3
_PATIENT_S = 2.0
_WHY_AGAIN_S = 10.0  # it takes a process of easytier-cli

CUT_OFF = frozenset({"NobodyAnswers", "RelayUnreachable", "NetworkRefused", "WrongNetwork"})  # reasons
_NOBODY = "what carries the overlay is up, but nobody is there: check the other nodes' `edgelink status`"

WhySilent = Callable[[Iterable[IPv4Address]], Awaitable[Diagnosis | None]]
Ping = Callable[[IPv4Address, IPv4Address, float], Awaitable[float | None]]


@dataclass(frozen=True)
class Targets:
    """Overlay addresses by hostname: ``needed`` all have to answer, of ``relays`` one has to."""

    needed: Mapping[str, IPv4Address] = field(default_factory=dict)
    relays: Mapping[str, IPv4Address] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, IPv4Address]:
        return {**self.relays, **self.needed}

    def silent(self, answering: Mapping[str, object]) -> tuple[list[str], list[str]]:
        """Who does not answer and is missed, and which relays do not answer without being missed."""
        names = [name for name in self.needed if name not in answering]
        relays = [name for name in self.relays if name not in answering and name not in names]
        if len(relays) == len(self.relays):
            return [*relays, *names], []
        return names, relays


class PeersReconciler:
    """Keeps PeersReachable and RelaysReachable, and the round-trip times behind them."""

    name: ClassVar[str] = "peers"
    condition: ClassVar[str] = PEERS_REACHABLE.name
    relays_condition: ClassVar[str] = (
        RELAYS_REACHABLE.name
    )  # informs: with several, the silence of one costs nothing yet

    def __init__(
        self,
        *,
        own_ip: Callable[[], IPv4Address | None],
        targets: Callable[[], Targets | None],
        conditions: ConditionSet,
        clock: Clock,
        ping: Ping,
        on_change: Callable[[], None],
        why_silent: WhySilent | None = None,
    ) -> None:
        self.wakeup = Wakeup()
        self.rtt_ms: dict[str, float] = {}
        self.pings: Counter[str] = Counter()  # by hostname, since this daemon started
        self.lost_pings: Counter[str] = Counter()  # those of them that nobody answered
        # When the last question that somebody answered was asked, on the monotonic clock; None: none yet.
        self.last_answered_s: float | None = None
        self._own_ip = own_ip
        self._targets = targets
        self._conditions = conditions
        self._clock = clock
        self._ping = ping
        self._on_change = on_change
        self._why_silent = why_silent
        self._why: Diagnosis | None = None
        self._asked_why_s: float | None = None  # in this silence
        self._failures = 0
        self._relay_silences = 0

    async def reconcile(self) -> float:
        own_ip = self._own_ip()
        if own_ip is None or not self._conditions.is_true("OverlayUp"):
            self.rtt_ms, self._failures, self._asked_why_s = {}, 0, None  # eager again once it is up
            self._conditions.set(self.condition, Status.UNKNOWN, "OverlayDown", "the overlay device is not up")
            return _PATIENT_S
        targets = self._targets()
        if targets is None:
            self.rtt_ms = {}
            self._conditions.set(
                self.condition, Status.UNKNOWN, "DirectoryNotSeen", "the relay has not told yet who is in the network"
            )
            return _PATIENT_S
        was_reachable = self._conditions.is_true(self.condition)
        is_eager = not was_reachable and self._failures < _EAGER_TRIES
        timeout_s = _EAGER_PING_TIMEOUT_S if is_eager else self._patience_s()
        everyone = targets.all
        asked_s = self._clock.monotonic_s()
        answers = await asyncio.gather(*(self._ping(own_ip, ip, timeout_s) for ip in everyone.values()))
        self.rtt_ms = {name: rtt for name, rtt in zip(everyone, answers, strict=True) if rtt is not None}
        self.pings.update(list(everyone))
        self.lost_pings.update(name for name in everyone if name not in self.rtt_ms)
        if self.rtt_ms:
            self.last_answered_s, self._asked_why_s = asked_s, None
        silent, silent_relays = (
            [f"{name} ({everyone[name]})" for name in names] for names in targets.silent(self.rtt_ms)
        )
        if silent:
            return await self._unreachable(silent, targets, is_eager=is_eager)
        look_again_s = self._tell_of_relays(targets, silent_relays)
        self._failures = 0
        heard = ", ".join(self.rtt_ms) or "nobody has to"
        self._conditions.set_true(self.condition, "Reachable", f"answering over the overlay: {heard}")
        if not was_reachable:
            self._on_change()
        return look_again_s

    def _tell_of_relays(self, targets: Targets, silent: list[str]) -> float:
        self._relay_silences = self._relay_silences + 1 if silent else 0
        if 0 < self._relay_silences < _SILENCE_TRIES:
            return _PATIENT_S
        if silent:
            self._conditions.set_false(
                self.relays_condition,
                "RelaySilent",
                f"no answer over the overlay from {', '.join(silent)}, another relay carries on; if it is gone for "
                "good, `edgelink registry release` it",
            )
        else:
            names = ", ".join(targets.relays) or "none is needed"
            self._conditions.set_true(self.relays_condition, "AllAnswer", f"relays that answer: {names}")
        return _LOOK_AGAIN_S

    def _patience_s(self) -> float:
        """For one answer: where answers were quick, silence is known sooner."""
        slowest_ms = max(self.rtt_ms.values(), default=_PING_TIMEOUT_S * 1000)
        return min(max(4 * slowest_ms / 1000, _PROMPT_S), _PING_TIMEOUT_S)

    def stood_still(self) -> None:
        """This machine slept: what was known of the others is worth nothing, ask at once."""
        self._failures = 0
        self.wakeup.set()

    async def _unreachable(self, silent: list[str], targets: Targets, *, is_eager: bool) -> float:
        self._failures += 1
        if self._conditions.is_true(self.condition) and self._failures < _SILENCE_TRIES:
            return _EAGER_S  # asked again before it is said: one lost ping is what networks do
        everyone = not self.rtt_ms
        is_new = self._conditions.get(self.condition).status is Status.UNKNOWN
        if everyone and is_eager and is_new:  # EasyTier dials for the first time a second after its start
            self._conditions.set(
                self.condition, Status.UNKNOWN, "Connecting", f"waiting for an answer of {', '.join(silent)}"
            )
            return _EAGER_S
        reason, hint = "PeerSilent", f"{', '.join(self.rtt_ms)} answers; check that node's `edgelink status`"
        if everyone:
            found = await self._likeliest_cause(targets)
            reason, hint = (found.reason, found.message) if found else ("NobodyAnswers", _NOBODY)
        self._conditions.set_false(
            self.condition, reason, f"no answer over the overlay from {', '.join(silent)}; {hint}"
        )
        return _EAGER_S if is_eager else _PATIENT_S

    async def _likeliest_cause(self, targets: Targets) -> Diagnosis | None:
        """Why everybody is silent, asked for every 10 s."""
        now_s = self._clock.monotonic_s()
        if self._why_silent and (self._asked_why_s is None or now_s >= self._asked_why_s + _WHY_AGAIN_S):
            self._asked_why_s, self._why = now_s, await self._why_silent(targets.all.values())
        return self._why
