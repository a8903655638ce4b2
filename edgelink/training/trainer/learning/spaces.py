"""What a task shows and what it lets do: plain data that env workers report and networks are made from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Floats, Observations

DISCRETE, CONTINUOUS, PIXELS = "discrete", "continuous", "pixels"
_NO_LIMIT = 1e30  # and beyond: the largest number of a type stands for none, and half the range would overflow
_MIN_PIXELS = 8  # the smaller of the two networks for images makes one position out of it
_SUPPORTED = (
    "supported are observations in a Box (numbers, or uint8 images of height x width x channels) and actions in "
    "Discrete or in a Box of numbers; a wrapper of gymnasium's, such as FlattenObservation, may bring it to that"
)


@dataclass(frozen=True)
class Spaces:
    """Of one environment; equal for all that are trained together."""

    observation_shape: tuple[int, ...]  # (features,), or (height, width, channels) of pixels
    observation_dtype: str  # "float32", or "uint8" for pixels
    action_count: int | None  # of discrete actions; None: continuous
    action_low: tuple[float, ...] = ()  # limits of each dimension of a continuous action, infinite where it has none
    action_high: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        # Plain numbers, also of those who have them from an array of numpy's.
        object.__setattr__(self, "observation_shape", tuple(int(size) for size in self.observation_shape))
        for name in ("action_low", "action_high"):
            object.__setattr__(self, name, tuple(_limit(float(limit)) for limit in getattr(self, name)))
        if self.action_count is not None:
            object.__setattr__(self, "action_count", int(self.action_count))

    @property
    def is_pixels(self) -> bool:
        return self.observation_dtype == "uint8"

    @property
    def is_discrete(self) -> bool:
        return self.action_count is not None

    @property
    def kind(self) -> str:
        """Which defaults suit it: images take other ones than numbers, whatever the actions are."""
        if self.is_pixels:
            return PIXELS
        return DISCRETE if self.is_discrete else CONTINUOUS

    @property
    def features(self) -> int:
        """Numbers in one observation."""
        return int(np.prod(self.observation_shape))

    @property
    def outputs(self) -> int:
        """Of the policy network: a score for each action, or the middle of each dimension."""
        return self.action_count if self.action_count is not None else len(self.action_low)

    def centre_and_reach(self) -> tuple[Floats, Floats]:
        """A continuous action is centre + reach × unit; where a limit is infinite, unit and action are the same.

        Where the limits leave one action only, reach is 1: what is drawn there is cut to it like any other.
        """
        low, high = np.asarray(self.action_low, np.float64), np.asarray(self.action_high, np.float64)
        is_bounded = np.isfinite(low) & np.isfinite(high)
        low, high = np.where(is_bounded, low, -1.0), np.where(is_bounded, high, 1.0)
        reach = np.where(low.astype(np.float32) == high.astype(np.float32), 1.0, (high - low) / 2)
        return (low + (high - low) / 2).astype(np.float32), reach.astype(np.float32)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spaces:
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Spaces:
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
        }
        return cls(**values)

    def __str__(self) -> str:
        shape = " x ".join(str(size) for size in self.observation_shape)
        if self.is_discrete:
            return f"observations {shape} {self.observation_dtype}, {self.action_count} actions"
        low, high = (", ".join(f"{value:g}" for value in limit) for limit in (self.action_low, self.action_high))
        return f"observations {shape} {self.observation_dtype}, actions from ({low}) to ({high})"


def _limit(value: float) -> float:
    """As gymnasium has it, whose limits are of 32 bits: so a robot and a simulator of the same limits are equal."""
    if abs(value) < _NO_LIMIT:
        value = float(np.float32(value))
    return math.copysign(math.inf, value) if abs(value) >= _NO_LIMIT else value


def spaces_of(environment: Any, task: str) -> Spaces:
    """The spaces of a gymnasium environment; ``task`` is its name for errors.

    Raises:
        ValueError: one of them is of a kind that is not supported.
    """
    seen, done = environment.observation_space, environment.action_space
    if type(seen).__name__ != "Box":
        raise ValueError(f"the observations of {task} are {_named(seen)}: {_SUPPORTED}")
    shape, dtype = tuple(int(size) for size in seen.shape), "float32"
    if seen.dtype == np.uint8 and len(shape) in (2, 3):
        shape, dtype = (*shape, 1)[:3], "uint8"
        if min(shape[:2]) < max(_MIN_PIXELS, shape[2]):  # else the channels come first
            raise ValueError(
                f"the images of {task} are {' x '.join(map(str, shape))}: height and width must be "
                f"{_MIN_PIXELS} or more, and come before the channels"
            )
    else:
        shape = (int(np.prod(shape)),)
    if type(done).__name__ == "Discrete":
        return Spaces(shape, dtype, int(done.n))
    if type(done).__name__ == "Box" and np.issubdtype(done.dtype, np.floating):
        low, high = (tuple(float(value) for value in limit.reshape(-1)) for limit in (done.low, done.high))
        return Spaces(shape, dtype, None, low, high)
    raise ValueError(f"the actions of {task} are {_named(done)}: {_SUPPORTED}")


def _named(space: Any) -> str:
    text = str(space)
    return f"a {type(space).__name__}" if len(text) > 60 else text


def viewed(spaces: Spaces, rows: Any) -> Observations:
    """Observations of several environments, as ``spaces`` says they look."""
    found: Observations = np.asarray(rows, dtype=spaces.observation_dtype)
    return found.reshape(len(found), *spaces.observation_shape)
