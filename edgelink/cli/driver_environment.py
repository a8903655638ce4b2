"""What the caller asks for in the driver's environment, and what is said of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edgelink.training.driver_environment import DriverEnvironment, Fate, Grant, decide, kind_of
from edgelink.training.framework import Framework, Kind

# Every shell has these, and nobody misses them in a driver.
_UNREMARKABLE = (Kind.SESSION, Kind.LEFTOVER)
_SHELLS_OWN = frozenset({"LANGUAGE", "HOSTNAME", "TZ", "MANPATH"})


@dataclass(frozen=True)
class EnvironmentWishes:
    """``--framework``, and ``--env`` as pairs; a value of None: the caller's own."""

    framework: str | None = None
    given: tuple[tuple[str, str | None], ...] = ()

    def over(self, caller: Mapping[str, str]) -> dict[str, str]:
        """``caller`` with what was given a value."""
        return {**caller, **{name: value for name, value in self.given if value is not None}}


def driver_environment(
    granted: Mapping[str, Any], framework: Framework, wishes: EnvironmentWishes
) -> DriverEnvironment:
    """What becomes of our own environment in that of the driver; ``granted`` is the head daemon's answer."""
    return decide(os.environ, Grant.from_dict(granted), framework, wishes.given)


def say_what_is_dropped(environment: DriverEnvironment, say: Callable[[str], None]) -> None:
    """One line, where something is missing that somebody may have set on purpose."""
    names = [
        name
        for name in environment.names(Fate.DROPPED)
        if kind_of(name) not in _UNREMARKABLE and name not in _SHELLS_OWN and not name.startswith(("LC_", "_"))
    ]
    if names:
        say(f"not passed to CMD: {', '.join(names)} (why: `edgelink env --show`; --env K or driver.pass_env passes it)")
