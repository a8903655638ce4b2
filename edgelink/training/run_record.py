"""The account of one run: its attempts, how each ended and what was done about it. Kept by the command that runs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_COMMAND = 4096  # characters
_SCRIPT = re.compile(r"[\w./+~-]+\.(py|sh)")  # no address, which may have a password in it
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
    waits_for: tuple[Annotated[str, Field(max_length=300)], ...] = Field(default=(), max_length=20)  # in Ray, now


class MetricsPoint(_Part):
    """What a driver said of one of its steps: numbers by name."""

    step: float = Field(allow_inf_nan=False)
    values: dict[Annotated[str, Field(max_length=64)], Annotated[float, Field(allow_inf_nan=False)]] = Field(
        max_length=MOST_METRICS
    )


def program_of(argv: Sequence[str]) -> str:
    """The program, with the script that it is to run, or the verb of EdgeLink's; other arguments may hold secrets."""
    words = list(argv[:1])
    for word in argv[1:2]:
        is_verb = Path(argv[0]).name == "edgelink" and word.isalpha()
        words += [word] if is_verb or _SCRIPT.fullmatch(word) else []
    return " ".join(words)[:MOST_COMMAND]


class RunMetrics(_Part):
    """New points of a run."""

    run_id: str = Field(max_length=64)
    points: tuple[MetricsPoint, ...] = Field(max_length=MOST_POINTS)


class RunRecord(_Part):
    """``command`` is as ``program_of`` gives it."""

    run_id: str = Field(max_length=64)
    command: str = Field(max_length=MOST_COMMAND)
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
            update={"ended_at": now, "what_followed": "the command that held the run was ended", "waits_for": ()}
        )
        return self.model_copy(update={"attempts": (*self.attempts[:-1], last)})
