"""What a task shows and lets do, as it is compared between workers."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from edgelink.training.trainer.learning.spaces import Spaces


def spaces(*limits: float) -> Spaces:
    return Spaces((2,), "float32", None, tuple(-limit for limit in limits), limits)


def test_limits_are_equal_whether_they_were_written_or_come_from_gymnasium() -> None:
    """Whose boxes have 32 bits; also after a way through JSON."""
    written = spaces(0.3, 2 * math.pi)
    boxed = spaces(*(float(limit) for limit in np.array([0.3, 2 * math.pi], np.float32)))
    assert written == boxed
    assert Spaces.from_json(written.to_json()) == written
    assert str(written) == "observations 2 float32, actions from (-0.3, -6.28319) to (0.3, 6.28319)"


@pytest.mark.parametrize("limit", [1e30, np.finfo(np.float32).max, 1e300, math.inf, math.nextafter(1e30, 0)])
def test_what_stands_for_no_limit_stays_none(limit: float) -> None:
    """Whatever type it is the largest number of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = spaces(limit)
    assert (found.action_low, found.action_high) == ((-math.inf,), (math.inf,))
