"""A fragment on its way to the learner: a small account for the driver, and a payload that only the learner opens.

All observations of a fragment, from the oldest that its first step saw to the one after its last step, are one series:
so the difference of each to the one before is small, and none is sent twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.codec import Packed, pack, unpack
from edgelink.training.trainer.experience.fragment import Fragment, Observations
from edgelink.training.trainer.experience.frames import Stack

OBSERVATIONS, ACTIONS = "observations", "actions"  # the two components of a fragment's bytes
_SERIES, _CUT = "series", "cut_observations"
_OTHERS = ("actions", "log_probs", "rewards", "terminated", "truncated")


@dataclass(frozen=True)
class About:
    """What the driver needs to know of a fragment."""

    rank: int
    ticket: int
    weights_version: int
    samples: int
    episode_returns: tuple[float, ...]
    episode_lengths: tuple[int, ...]
    sent_bytes: Mapping[str, int]  # by component, as packed
    raw_bytes: Mapping[str, int]  # of the same arrays before
    frames: int  # single observations in it
    collect_s: float = 0.0
    waited_s: float = 0.0  # for weights new enough
    fetch_s: float = 0.0  # what the newest weights took to get here
    produced: int = 0  # samples of this worker so far, with these
    weights_bytes: int = 0  # that it has got so far


@dataclass(frozen=True)
class Payload:
    """A packed fragment."""

    rank: int
    ticket: int
    weights_version: int
    depth: int  # of the stack
    arrays: Mapping[str, Packed]


def packed(fragment: Fragment, history: Observations) -> tuple[About, Payload]:
    """``fragment`` holds single frames; ``history`` are those before its first, oldest first."""
    series = np.concatenate([history, fragment.observations, fragment.last_observations[None]])
    arrays = {_SERIES: pack(series), _CUT: pack(fragment.cut_observations)}
    arrays |= {name: pack(getattr(fragment, name)) for name in _OTHERS}
    observations = (_SERIES, _CUT)
    about = About(
        fragment.rank,
        fragment.ticket,
        fragment.weights_version,
        fragment.samples,
        fragment.episode_returns,
        fragment.episode_lengths,
        _by_component({name: len(found.data) for name, found in arrays.items()}, observations),
        _by_component({name: found.raw_bytes for name, found in arrays.items()}, observations),
        frames=series.shape[0] * series.shape[1] + len(fragment.cut_observations),
    )
    return about, Payload(fragment.rank, fragment.ticket, fragment.weights_version, len(history) + 1, arrays)


def opened(payload: Payload) -> Fragment:
    """The fragment as the policy saw it, with its frames stacked."""
    arrays: dict[str, Any] = {name: unpack(found) for name, found in payload.arrays.items()}
    series, cut = arrays.pop(_SERIES), arrays.pop(_CUT)
    before = payload.depth - 1
    if payload.depth == 1:
        observations, last = series[:-1], series[-1]
    else:
        observations, last, cut = _stacked(series, cut, arrays["terminated"], arrays["truncated"], before)
    return Fragment(
        rank=payload.rank,
        ticket=payload.ticket,
        weights_version=payload.weights_version,
        observations=observations,
        cut_observations=cut,
        last_observations=last,
        **arrays,
    )


def _stacked(series: Any, cut: Any, terminated: Any, truncated: Any, before: int) -> tuple[Any, Any, Any]:
    stack = Stack(before + 1, series[before], series[:before])
    seen, finals, taken = [stack.seen], [], 0
    for step, following in enumerate(series[before + 1 :]):
        count = int(truncated[step].sum())
        finals.append(stack.final(cut[taken : taken + count], truncated[step]))
        taken += count
        stack.push(following, terminated[step] | truncated[step])
        seen.append(stack.seen)
    return np.stack(seen[:-1]), seen[-1], np.concatenate(finals)


def _by_component(sizes: Mapping[str, int], observations: tuple[str, ...]) -> dict[str, int]:
    return {
        OBSERVATIONS: sum(size for name, size in sizes.items() if name in observations),
        ACTIONS: sum(size for name, size in sizes.items() if name not in observations),
    }
