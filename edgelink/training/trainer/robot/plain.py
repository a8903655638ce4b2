"""What a robot's own code says, as JSON can hold it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_MOST_BYTES = 64 << 10  # of a robot's own report: one message between its processes


def plain(value: Any) -> Any:
    """Numpy's values as Python's; None for what is no finite number; in words what JSON does not know."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def report_json(report: Any) -> bytes:
    """The message in which a robot's own report goes to the attendant; says so where that cannot be."""
    try:
        content = json.dumps({"report": dict(plain(report))}).encode()
    except Exception as error:  # others' values: whatever they raise
        return _left_out(f"{type(error).__name__} while it was written as JSON")
    if len(content) > _MOST_BYTES:
        return _left_out(f"{len(content) >> 10} KiB are too many, at most {_MOST_BYTES >> 10} KiB")
    return content


def _left_out(why: str) -> bytes:
    return json.dumps({"report": {"report_error": f"report() of the robot is left out: {why}"}}).encode()
