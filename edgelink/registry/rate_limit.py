"""Token buckets: how many requests are looked at, of one node, to enrol under one token, and altogether.

Generous to a fleet that comes up at once, and a bound on what one stolen token can cost the relay. What exceeds it is
dropped; who means it asks again after two seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from edgelink.clock import Clock
from edgelink.reconcile import Wakeup
from edgelink.registry.transport import Message

_MAX_BUCKETS = 8192


class Bucket:
    """Holds ``burst`` at most and gains ``rate`` a second."""

    def __init__(self, rate: float, burst: int, now_s: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = float(burst)
        self._at_s = now_s

    def is_full(self, now_s: float) -> bool:
        return self._filled(now_s) >= self._burst

    def has(self, now_s: float) -> bool:
        self._level, self._at_s = self._filled(now_s), now_s
        return self._level >= 1

    def take(self) -> None:
        self._level -= 1

    def _filled(self, now_s: float) -> float:
        return min(self._burst, self._level + (now_s - self._at_s) * self._rate)


class RateLimit:
    """Of requests to enrol, or of those of nodes; by the monotonic clock."""

    PER_NODE = (1.0, 5)  # requests a second, and at once
    PER_TOKEN = (100.0, 256)
    ALL = (200.0, 512)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all = Bucket(*self.ALL, clock.monotonic_s())
        self._buckets: dict[str, Bucket] = {}

    def exceeded(self, token_id: str | None, node_id: str) -> str | None:
        """Which limit this request (``token_id`` None: of a node) exceeds: ``node``, ``token`` or ``all``; None: it
        counts and may pass.

        One that is dropped for one limit does not count for the others.
        """
        now_s = self._clock.monotonic_s()
        limits = {"all": self._all, "node": self._bucket(f"node {node_id}", self.PER_NODE, now_s)}
        if token_id is not None:
            limits["token"] = self._bucket(f"token {token_id}", self.PER_TOKEN, now_s)
        for name, bucket in limits.items():
            if not bucket.has(now_s):
                return name
        for bucket in limits.values():
            bucket.take()
        return None

    def _bucket(self, name: str, limit: tuple[float, int], now_s: float) -> Bucket:
        bucket = self._buckets.get(name)
        if bucket is None:
            if len(self._buckets) >= _MAX_BUCKETS:
                self._buckets = {n: b for n, b in self._buckets.items() if not b.is_full(now_s)}
            bucket = self._buckets[name] = Bucket(*limit, now_s)
        return bucket


class StatusGate:
    """Lets each node's statuses pass as often as an honest node speaks; of those beyond, the newest waits its turn.

    So a node that floods costs the relay what another one does, and none is shown as it was before its last word.
    """

    PER_NODE = (2.0, 20)  # a second, and at once

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, Bucket] = {}  # of nodes that the broker knows
        self._waiting: dict[str, Message] = {}
        self._wakeup = Wakeup()

    def begin_session(self) -> None:
        """The broker says anew what each node said last."""
        self._waiting.clear()

    def passes(self, node_id: str, message: Message) -> bool:
        """Say whether ``message`` counts now. One that does not waits, in place of an earlier one of that node."""
        now_s = self._clock.monotonic_s()
        bucket = self._buckets.setdefault(node_id, Bucket(*self.PER_NODE, now_s))
        if node_id not in self._waiting and bucket.has(now_s):
            bucket.take()
            return True
        self._waiting[node_id] = message
        self._wakeup.set()
        return False

    async def run(self, take: Callable[[str, Message], None]) -> None:
        """Hand those that have waited to ``take``, each in its turn; ends by cancellation only."""
        while True:
            if not self._waiting:
                await self._wakeup.wait(None)
            await self._clock.sleep(1 / self.PER_NODE[0])
            now_s = self._clock.monotonic_s()
            for node_id in [node_id for node_id in self._waiting if self._buckets[node_id].has(now_s)]:
                self._buckets[node_id].take()
                take(node_id, self._waiting.pop(node_id))
