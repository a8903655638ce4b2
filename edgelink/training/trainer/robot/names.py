"""Names of the numbers in a robot's observations and actions, by which a dataset and other people's tools know them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgelink.training.trainer.learning.spaces import Spaces

CAMERA = "camera"
_CAMERA_NAME = re.compile(r"[A-Za-z0-9_-]+")  # part of a column's and of a directory's name


@dataclass(frozen=True)
class Names:
    """One name for each number. Pixels have a single one, the camera's."""

    observation: tuple[str, ...]
    action: tuple[str, ...]

    @classmethod
    def of(cls, spaces: Spaces, observation: Sequence[str] = (), action: Sequence[str] = ()) -> Names:
        """The names that a robot gives, and the default ones where it gives none.

        Raises:
            ValueError: they are too few or too many, or are not different texts.
        """
        numbers = 1 if spaces.is_pixels else spaces.observation_shape[0]
        seen = [CAMERA] if spaces.is_pixels else [f"observation_{index}" for index in range(numbers)]
        count = 1 if spaces.is_discrete else len(spaces.action_low)
        done = [f"action_{index}" for index in range(count)]
        found = cls(
            _checked("observation_names", observation, seen),
            _checked("action_names", action, done),
        )
        if spaces.is_pixels and not _CAMERA_NAME.fullmatch(found.observation[0]):
            raise ValueError(
                f"its observation_names say {found.observation[0]!r}; the name of a camera has letters, digits, _ and -"
            )
        return found

    @classmethod
    def from_dict(cls, spaces: Spaces, values: Mapping[str, Any]) -> Names:
        """Read what ``to_dict`` gave. Recordings of an earlier EdgeLink have no names."""
        return cls.of(spaces, values.get("observation", ()), values.get("action", ()))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _checked(what: str, given: Sequence[str], default: list[str]) -> tuple[str, ...]:
    if isinstance(given, str) or not all(isinstance(name, str) and name for name in given):
        raise ValueError(f"its {what} are {given!r}; they are a tuple of texts")
    names = tuple(given) or tuple(default)
    if len(names) != len(default) or len(set(names)) != len(names):
        raise ValueError(f"its {what} are {names!r}; its spaces want {len(default)} different names")
    return names
