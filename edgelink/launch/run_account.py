"""The record that a run of apps keeps of itself, for the head's daemon, its page and `edgelink status`."""

from __future__ import annotations

import secrets

from edgelink.clock import Clock
from edgelink.training.run_record import Attempt, RunRecord


class RunAccount:
    """Attempts follow each other as with a driver: one ends, and the next begins, when an app is started again."""

    def __init__(self, file_name: str, retries: int, clock: Clock) -> None:
        self._clock = clock
        self.record = RunRecord(run_id=secrets.token_hex(8), command=f"--apps {file_name}", retries=retries)

    def begin(self) -> None:
        """Note the start of the apps, or of one of them again."""
        attempt = Attempt(number=len(self.record.attempts) + 1, started_at=self._clock.now())
        self.record = self.record.model_copy(update={"attempts": (*self.record.attempts, attempt)})

    def end(self, status: int, what_followed: str, *, lost: tuple[str, ...] = ()) -> None:
        """Note how the present attempt ended. Without one, nothing has started."""
        if not self.record.attempts:
            return
        *before, last = self.record.attempts
        ended = last.model_copy(
            update={
                "ended_at": self._clock.now(),
                "exit_status": status,
                "lost_nodes": lost,
                "what_followed": what_followed[:1000],
            }
        )
        self.record = self.record.model_copy(update={"attempts": (*before, ended)})
