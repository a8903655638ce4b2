"""Lengths of time as people write them: ``90``, ``90s``, ``5m``, ``1h``, ``2d``."""

from __future__ import annotations

import re

_PATTERN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration_s(text: str) -> float:
    """The seconds; raises ValueError."""
    match = _PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration like 90s, 5m or 1h")
    return float(match["number"]) * _SECONDS[match["unit"]]


def brief(seconds: float) -> str:
    """``12s``, ``2m10s``, ``3h05m``, ``2d04h``: how long something has been so."""
    whole = int(seconds)
    for unit_s, unit, part_s, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= unit_s:
            return f"{whole // unit_s}{unit}{whole % unit_s // part_s:02d}{part}"
    return f"{whole}s"


def in_words(seconds: float) -> str:
    """``1 h``, ``90 min``, ``90 s``: as short as it is exact."""
    for unit_s, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return f"{seconds / unit_s:g} {unit}"
    return f"{seconds:g} s"
