"""Whether the nodes that this one needs answer over the overlay, from our overlay address.

A device with the right address proves nothing about the network behind it: with a wrong network name EasyTier
connects happily and sees nobody. Only an answer counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
from typing import ClassVar

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet, Status
from edgelink.reconcile import Wakeup

_PING_TIMEOUT_S = 1.0
_LOOK_AGAIN_S = 10.0
_EAGER_S = 0.05  # the first answer is what `ray start` waits for
_EAGER_PING_TIMEOUT_S = 0.25  # a lost first ping must not cost a second; a slower path is asked patiently later
_EAGER_TRIES = 20
_SILENCE_TRIES = 3
_PATIENT_S = 2.0

Ping = Callable[[IPv4Address, IPv4Address, float], Awaitable[float | None]]


class PeersReconciler:
    """Keeps PeersReachable, and the round-trip times behind it."""

    name: ClassVar[str] = "peers"
    condition: ClassVar[str] = "PeersReachable"

    def __init__(
        self,
        *,
        own_ip: Callable[[], IPv4Address | None],
        targets: Callable[[], dict[str, IPv4Address] | None],
        conditions: ConditionSet,
        clock: Clock,
        ping: Ping,
        on_change: Callable[[], None],
    ) -> None:
        self.wakeup = Wakeup()
        self.rtt_ms: dict[str, float] = {}
        self._own_ip = own_ip
        self._targets = targets
        self._conditions = conditions
        self._clock = clock
        self._ping = ping
        self._on_change = on_change
        self._failures = 0

    async def reconcile(self) -> float:
        own_ip = self._own_ip()
        if own_ip is None or not self._conditions.is_true("OverlayUp"):
            self._conditions.set(self.condition, Status.UNKNOWN, "OverlayDown", "the overlay device is not up")
            return _PATIENT_S
        targets = self._targets()
        if targets is None:
            self._conditions.set(
                self.condition, Status.UNKNOWN, "DirectoryNotSeen", "the relay has not told yet who is in the network"
            )
            return _PATIENT_S
        was_reachable = self._conditions.is_true(self.condition)
        is_eager = not was_reachable and self._failures < _EAGER_TRIES
        timeout_s = _EAGER_PING_TIMEOUT_S if is_eager else _PING_TIMEOUT_S
        answers = await asyncio.gather(*(self._ping(own_ip, ip, timeout_s) for ip in targets.values()))
        self.rtt_ms = {name: rtt for name, rtt in zip(targets, answers, strict=True) if rtt is not None}
        silent = [f"{name} ({ip})" for name, ip in targets.items() if name not in self.rtt_ms]
        if silent:
            return self._unreachable(silent, everyone=not self.rtt_ms, is_eager=is_eager)
        self._failures = 0
        heard = ", ".join(self.rtt_ms) or "nobody has to"
        self._conditions.set_true(self.condition, "Reachable", f"answering over the overlay: {heard}")
        if not was_reachable:
            self._on_change()
        return _LOOK_AGAIN_S

    def _unreachable(self, silent: list[str], *, everyone: bool, is_eager: bool) -> float:
        self._failures += 1
        if self._conditions.is_true(self.condition) and self._failures < _SILENCE_TRIES:
            return _EAGER_S  # asked again before it is said: one lost ping is what networks do
        if everyone and is_eager:  # EasyTier dials for the first time a second after its start
            self._conditions.set(
                self.condition, Status.UNKNOWN, "Connecting", f"waiting for an answer of {', '.join(silent)}"
            )
            return _EAGER_S
        if everyone:
            reason, hint = (
                "NobodyAnswers",
                "check that the relay's EasyTier port is open (tcp 11010 by default) and its daemon is Ready; "
                "a network that is connected but sees nobody has another name or secret",
            )
        else:
            reason, hint = "PeerSilent", "check that node's `edgelink status`"
        self._conditions.set_false(
            self.condition, reason, f"no answer over the overlay from {', '.join(silent)}; {hint}"
        )
        return _EAGER_S if is_eager else _PATIENT_S
