"""One outage from its first failure to its recovery: what is new in it, and how long it lasts.

A failure that is tried again every few seconds is logged once, not once a try, and its end says how long it lasted.
"""

from __future__ import annotations

from collections.abc import Hashable

from edgelink.clock import Clock


class Outage:
    """Ask :meth:`is_news` at each failure, and :meth:`over` at each success."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s: float | None = None
        self._told: set[Hashable] = set()

    def is_news(self, what: Hashable) -> bool:
        """Whether ``what`` failed for the first time in this outage, which begins with its first failure."""
        if self._began_s is None:
            self._began_s = self._clock.monotonic_s()
        if what in self._told:
            return False
        self._told.add(what)
        return True

    def over(self) -> float | None:
        """How many seconds it lasted; None when there was none."""
        if self._began_s is None:
            return None
        lasted_s = self._clock.monotonic_s() - self._began_s
        self._began_s = None
        self._told.clear()
        return round(lasted_s, 1)
