"""The nodes that this one asks over the overlay, and what it waits for of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address


@dataclass(frozen=True)
class Targets:
    """Overlay addresses by hostname.

    Attributes:
        needed: all have to answer, before Ray may start here.
        relays: one of them has to, before Ray may start here.
        members: all have to answer, or it is said; Ray goes on all the same.
        others: asked, and told of.
        metered: those of them whose uplink costs by the byte.
    """

    needed: Mapping[str, IPv4Address] = field(default_factory=dict)
    relays: Mapping[str, IPv4Address] = field(default_factory=dict)
    members: Mapping[str, IPv4Address] = field(default_factory=dict)
    others: Mapping[str, IPv4Address] = field(default_factory=dict)
    metered: frozenset[str] = frozenset()

    @property
    def all(self) -> dict[str, IPv4Address]:
        """Everybody who is asked."""
        return {**self.others, **self.members, **self.relays, **self.needed}

    @property
    def counted(self) -> dict[str, IPv4Address]:
        """Everybody whose silence is told as one."""
        return {**self.relays, **self.needed, **self.members}

    def silent(self, silent: Iterable[str]) -> tuple[list[str], list[str]]:
        """Which of the silent are missed, and which relays are silent without being missed."""
        found = set(silent)
        names = [name for name in {**self.needed, **self.members} if name in found]
        relays = [name for name in self.relays if name in found and name not in names]
        if len(relays) == len(self.relays):
            return [*relays, *names], []
        return names, relays

    def are_enough(self, answering: Iterable[str]) -> bool:
        """Whether Ray may start while these nodes answer: all that are needed, and one relay if there is any."""
        found = set(answering)
        return found.issuperset(self.needed) and (not self.relays or not found.isdisjoint(self.relays))
