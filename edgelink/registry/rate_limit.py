"""Token buckets: how many requests are looked at, of one node, to enrol under one token, and altogether.

Generous to a fleet that comes up at once, and a bound on what one stolen token can cost the relay. What exceeds it is
dropped; who means it asks again after two seconds.
"""

from __future__ import annotations

from edgelink.clock import Clock

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
