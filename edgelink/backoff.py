"""Exponential back-off with full jitter, the one place that throws dice."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from ``first_s`` to ``cap_s``; each is drawn from the upper half of its range.

    The jitter keeps a fleet that lost its relay at one instant from coming back at one instant.
    """

    def __init__(self, first_s: float, cap_s: float, rng: random.Random | None = None) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._rng = rng or random.Random()
        self._tries = 0

    def next_s(self) -> float:
        ceiling_s = min(self._cap_s, self._first_s * 2**self._tries)
        self._tries = min(self._tries + 1, 32)
        return float(ceiling_s * self._rng.uniform(0.5, 1.0))

    def reset(self) -> None:
        self._tries = 0
