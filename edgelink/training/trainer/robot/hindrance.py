"""Why a robot does not run, as whoever trains is told."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Hindrance:
    """``words`` is empty while it runs, begins, or holds for a moment."""

    words: str = ""
    needs_person: bool = False  # it goes on only when a person says so: training waits for as long as that takes
