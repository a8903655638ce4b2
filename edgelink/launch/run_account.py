"""The record that a run keeps of itself, for the head's daemon, its page and `edgelink status`."""

from __future__ import annotations

import threading
from typing import Any

from edgelink.clock import Clock
from edgelink.training.run_record import Attempt, RunRecord

_MOST_WORDS = 1000  # characters, as the record's field has it


class RunAccount:
    """Attempts follow each other: of a driver, or of apps, of which one is started again. Any thread may write."""

    def __init__(self, record: RunRecord, clock: Clock) -> None:
        self.record = record
        self._clock = clock
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Note the start of an attempt."""
        with self._lock:
            attempt = Attempt(number=len(self.record.attempts) + 1, started_at=self._clock.now())
            self.record = self.record.model_copy(update={"attempts": (*self.record.attempts, attempt)})

    def note(self, **changes: Any) -> bool:
        """Change the present attempt. Return whether that was a change; without an attempt, nothing has started."""
        with self._lock:
            before = self.record
            if not before.attempts:
                return False
            *earlier, last = before.attempts
            self.record = before.model_copy(update={"attempts": (*earlier, last.model_copy(update=changes))})
            return self.record != before

    def end(self, status: int, what_followed: str, *, lost: tuple[str, ...] = ()) -> bool:
        """Note how the present attempt ended. Return whether that was a change."""
        return self.note(
            ended_at=self._clock.now(),
            exit_status=status,
            lost_nodes=lost,
            what_followed=what_followed[:_MOST_WORDS],
            waits_for=(),
        )
