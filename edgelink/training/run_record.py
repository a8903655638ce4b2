"""The account of one run: its attempts, how each ended and what was done about it. Kept by the command that runs it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_METRICS = 24  # of one point
MOST_POINTS = 1000  # told at once


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Attempt(_Part):
    """One start of the driver."""

    number: int = Field(ge=1)
    started_at: datetime
    ended_at: datetime | None = None
    exit_status: int | None = None
    lost_nodes: tuple[str, ...] = Field(default=(), max_length=1024)
    step: str | None = Field(default=None, max_length=64)  # how far it is, in its own words
    what_followed: str = Field(default="", max_length=1000)  # why it was run again, or not


class MetricsPoint(_Part):
    """What a driver said of one of its steps: numbers by name."""

    step: float = Field(allow_inf_nan=False)
    values: dict[Annotated[str, Field(max_length=64)], Annotated[float, Field(allow_inf_nan=False)]] = Field(
        max_length=MOST_METRICS
    )


class RunMetrics(_Part):
    """New points of a run."""

    run_id: str = Field(max_length=64)
    points: tuple[MetricsPoint, ...] = Field(max_length=MOST_POINTS)


class RunRecord(_Part):
    """``command`` is the program's name only: arguments may hold secrets."""

    run_id: str = Field(max_length=64)
    command: str = Field(max_length=4096)
    retries: int = 0
    on_node_loss: str = Field(default="wait", max_length=32)
    attempts: tuple[Attempt, ...] = Field(default=(), max_length=10_000)

    def without_steps(self) -> RunRecord:
        return self.model_copy(
            update={"attempts": tuple(attempt.model_copy(update={"step": None}) for attempt in self.attempts)}
        )

    def ended_without_a_word(self, now: datetime) -> RunRecord:
        """The record when the command that kept it is gone; the last attempt's end is when that was seen."""
        if not self.attempts or self.attempts[-1].ended_at is not None:
            return self
        last = self.attempts[-1].model_copy(
            update={"ended_at": now, "what_followed": "the command that held the run was ended"}
        )
        return self.model_copy(update={"attempts": (*self.attempts[:-1], last)})
