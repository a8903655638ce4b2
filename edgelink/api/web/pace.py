"""How fast a run goes now, and how far it is to go: told from its steps of the last ten minutes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Hashable
from datetime import datetime

_WINDOW_S = 600.0
_APART_S = 5.0
_LEAST_S = 10.0
_WORDS = re.compile(r"(?:[A-Za-z]+ )?(\d+(?:\.\d+)?)(?:\s*(?:/|of)\s*(\d+))?")


class Pace:
    """Follows the steps of one attempt of one run at a time."""

    def __init__(self) -> None:
        self._attempt: Hashable = None
        self._seen: deque[tuple[float, float]] = deque()

    def note(self, attempt: Hashable, at: datetime, step: float) -> None:
        """It has come to ``step``. Another attempt begins anew."""
        at_s = at.timestamp()
        if attempt != self._attempt or (self._seen and step < self._seen[-1][1]):
            self._attempt = attempt
            self._seen.clear()
        if not self._seen or at_s - self._seen[-1][0] >= _APART_S:
            self._seen.append((at_s, step))
        while len(self._seen) > 2 and at_s - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()

    def steps_per_s(self) -> float | None:
        """Three digits of it. None: it is not known yet."""
        if not self._seen:
            return None
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        lasted_s = last_s - first_s
        return float(f"{(last - first) / lasted_s:.3g}") if lasted_s >= _LEAST_S and last > first else None


def step_of(words: str | None) -> tuple[float | None, float | None]:
    """The step and the total that ``142``, ``142/400`` or ``iteration 142 of 400`` tell; pure."""
    found = _WORDS.fullmatch((words or "").strip())
    if found is None:
        return None, None
    return float(found[1]), float(found[2]) if found[2] else None
