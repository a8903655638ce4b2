"""Fragments put together for one update; pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Floats, Fragment, Observations
from edgelink.training.trainer.learning.advantage import advantages
from edgelink.training.trainer.learning.spaces import Spaces


def observations_of(spaces: Spaces, fragments: Sequence[Fragment]) -> Observations:
    """Of all samples, fragment by fragment; after them what follows each fragment: its last ones, then its cut ones."""
    shape = spaces.observation_shape
    found: list[Any] = [np.zeros((0, *shape), spaces.observation_dtype)]  # a learner may get no fragment
    found += [fragment.observations.reshape(-1, *shape) for fragment in fragments]
    for fragment in fragments:
        found += [fragment.last_observations, fragment.cut_observations.reshape(-1, *shape)]
    rows: Observations = np.concatenate(found)
    return rows


def actions_of(spaces: Spaces, fragments: Sequence[Fragment]) -> Actions:
    """As the network counts: numbers of discrete actions, units of continuous ones; one row a sample."""
    if spaces.is_discrete:
        return np.concatenate([np.zeros(0, np.int64), *(fragment.actions.reshape(-1) for fragment in fragments)])
    centre, reach = spaces.centre_and_reach()
    rows = [fragment.actions.reshape(-1, spaces.outputs) for fragment in fragments]
    units: Floats = np.concatenate([np.zeros((0, spaces.outputs), np.float32), *rows])
    return (units - centre) / reach


def gains_and_values(
    fragments: Sequence[Fragment], judged: Floats, *, reward_scale: float, discount: float, trace: float
) -> tuple[Floats, Floats]:
    """Advantage and value of each sample.

    Args:
        judged: values of ``observations_of``.
    """
    gains: list[Any] = [np.zeros(0, np.float32)]
    start, tail = 0, sum(fragment.samples for fragment in fragments)
    samples = tail
    for fragment in fragments:
        steps, environments = fragment.rewards.shape
        values = judged[start : start + fragment.samples].reshape(steps, environments)
        start += fragment.samples
        last, tail = judged[tail : tail + environments], tail + environments
        cut, tail = judged[tail : tail + len(fragment.cut_observations)], tail + len(fragment.cut_observations)
        following: Any = np.concatenate([values[1:], last[None]])
        following[fragment.truncated] = cut
        rewards = fragment.rewards * np.float32(reward_scale)
        found = advantages(
            rewards, values, following, fragment.terminated, fragment.truncated, discount=discount, trace=trace
        )
        gains.append(found.reshape(-1))
    return np.concatenate(gains), judged[:samples]
