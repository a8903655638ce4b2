"""Generalised advantage estimation over one fragment; pure numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Bools, Floats


def advantages(
    rewards: Floats,
    values: Floats,
    next_values: Floats,
    terminated: Bools,
    truncated: Bools,
    *,
    discount: float,
    trace: float,
) -> Floats:
    """Advantages of shape (steps, environments).

    Args:
        next_values: value of what follows each step; of the *final* observation where the episode was truncated.
            Where it terminated, nothing follows, whatever stands here.
        trace: lambda; how far ahead real rewards are trusted over the value estimate.
    """
    result = np.zeros_like(values)
    running: Any = np.zeros(values.shape[1], dtype=np.float32)
    goes_on = 1.0 - terminated.astype(np.float32)
    linked = 1.0 - (terminated | truncated).astype(np.float32)
    errors = rewards + discount * next_values * goes_on - values
    for step in range(len(rewards) - 1, -1, -1):
        running = errors[step] + discount * trace * linked[step] * running
        result[step] = running
    return result
