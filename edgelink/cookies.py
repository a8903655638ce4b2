"""Cookies: who shows one was answered here a moment ago, and nothing has to be remembered for that."""

from __future__ import annotations

import hashlib
import hmac
import os

from edgelink.clock import Clock


class Cookies:
    """HMACs of a name and of the present period, under a secret that lives as long as this object.

    Each counts for one to two periods, by the monotonic clock.
    """

    def __init__(self, period_s: float, clock: Clock) -> None:
        self._period_s = period_s
        self._clock = clock
        self._secret = os.urandom(32)

    def of(self, name: str) -> str:
        """Return what ``name`` is given now: 32 hexadecimal digits."""
        return self._made(name, 0)

    def counts(self, cookie: str, name: str) -> bool:
        """Return whether ``name`` was given this cookie, in this period or the one before."""
        return any(hmac.compare_digest(cookie, self._made(name, age)) for age in (0, 1))

    def _made(self, name: str, age: int) -> str:
        period = int(self._clock.monotonic_s() // self._period_s) - age
        return hmac.new(self._secret, f"{period} {name}".encode(), hashlib.sha256).hexdigest()[:32]
