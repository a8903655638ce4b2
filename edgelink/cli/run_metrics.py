"""What a driver says of its steps in the file that ``EDGELINK_METRICS_FILE`` names, for the head's web page."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from edgelink.training.run_record import MOST_METRICS, MOST_POINTS

_MOST_BYTES = 256 * 1024  # at a look
_LONGEST_FILE = 64 * 1024 * 1024
_LONGEST_NAME = 64
_STEP_NAMES = ("step", "iteration", "global_step")


class MetricsTail:
    """Follows one file, which may not be there yet."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._at = 0
        self._lines = 0

    def new_points(self) -> list[dict[str, Any]]:
        """The points of the lines that were finished since the last look; what is no JSON object with numbers is left
        out. Raises OSError."""
        try:
            with self._file.open("rb") as file:
                file.seek(self._at)
                text = file.read(_MOST_BYTES) if self._at < _LONGEST_FILE else b""
        except FileNotFoundError:
            return []
        whole, newline, rest = text.rpartition(b"\n")
        if not newline and len(rest) >= _MOST_BYTES:  # one line, and no end of it: no point of ours
            self._at += len(rest)
            return []
        self._at += len(whole) + len(newline)
        points = []
        for line in whole.splitlines():
            self._lines += 1
            point = _point(line, self._lines)
            if point is not None:
                points.append(point)
        return points[-MOST_POINTS:]


def _point(line: bytes, number: int) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    numbers = {str(name)[:_LONGEST_NAME]: float(value) for name, value in record.items() if _is_number(value)}
    step = next((numbers.pop(name) for name in _STEP_NAMES if name in numbers), float(number))
    if not numbers:
        return None
    return {"step": step, "values": dict(list(numbers.items())[:MOST_METRICS])}


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )
