"""When to start a process again that ended unasked: at once after a healthy life, else with growing pauses."""

from __future__ import annotations

import random
from collections import deque

from edgelink.backoff import Backoff
from edgelink.clock import Clock

HEALTHY_LIFE_S = 60.0
LOOP_ENDS = 3
LOOP_WINDOW_S = 300.0
_PATIENCE = 10.0  # times the first pause, for a machine that is too busy


class RestartPolicy:
    """Back-off with jitter from ``first_s`` to ``cap_s``, and the knowledge of a crash loop.

    A crash loop is ``LOOP_ENDS`` ends or failed starts within ``LOOP_WINDOW_S`` without a healthy life between them:
    ``HEALTHY_LIFE_S`` of serving. Starts that a busy machine made fail do not count.
    """

    def __init__(self, clock: Clock, *, first_s: float, cap_s: float, rng: random.Random | None = None) -> None:
        self._clock = clock
        self._backoff = Backoff(first_s, cap_s, rng)
        self._patience = Backoff(_PATIENCE * first_s, 2 * cap_s, rng)
        self._ends_s: deque[float] = deque(maxlen=LOOP_ENDS)
        self._last_end_s: float | None = None
        self._not_before_s = clock.monotonic_s()

    @property
    def due_s(self) -> float:
        """When the next start is due, on the monotonic clock."""
        return self._not_before_s

    @property
    def wait_s(self) -> float:
        """Seconds until the next start is due; 0 when it is."""
        return max(0.0, self._not_before_s - self._clock.monotonic_s())

    @property
    def is_crash_loop(self) -> bool:
        return len(self._ends_s) == LOOP_ENDS and self._ends_s[-1] - self._ends_s[0] <= LOOP_WINDOW_S

    def note_end(self, *, served: bool) -> None:
        """It ended unasked, or did not start; ``served``: it had come as far as doing its work."""
        now_s = self._clock.monotonic_s()
        if served and (self._last_end_s is None or now_s - self._last_end_s >= HEALTHY_LIFE_S):
            self.forgive()
        else:
            self._not_before_s = now_s + self._backoff.next_s()
        self._last_end_s = now_s
        self._ends_s.append(now_s)

    def note_too_busy(self) -> None:
        """It did not start because the machine was too busy. The pause is longer, and this is no crash."""
        self._not_before_s = self._clock.monotonic_s() + self._patience.next_s()

    def forgive(self) -> None:
        """What made it end is over: the next start is due now, and what was counts no more."""
        self._backoff.reset()
        self._patience.reset()
        self._ends_s.clear()
        self._not_before_s = self._clock.monotonic_s()
