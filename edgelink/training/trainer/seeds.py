"""Seeds from seeds."""

from __future__ import annotations

import numpy as np


def derived(seed: int, *part: int) -> int:
    """The seed of one part of what ``seed`` is of: below 2**31, which every simulator takes, and another one for
    other numbers."""
    return int(np.random.SeedSequence([seed, *part]).generate_state(1)[0]) >> 1
