"""The nodes that this one asks over the overlay, and what it waits for of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from edgelink.overlay.echo_proof import Identity


@dataclass(frozen=True)
class Targets:
    """Overlay addresses by hostname.

    Attributes:
        needed: all have to answer, before Ray may start here.
        relays: one of them has to, before Ray may start here.
        members: all have to answer, or it is said; Ray goes on all the same.
        others: asked, and told of.
        metered: those of them whose uplink costs by the byte.
        alive: those of them that Ray lists: on the head, their silence is told to everybody within 10 s.
        identities: whom the answer of each has to come from.
        provers: those that can prove it: the head, once its cluster spec is there. Ray does not start here before that.
    """

    needed: Mapping[str, IPv4Address] = field(default_factory=dict)
    relays: Mapping[str, IPv4Address] = field(default_factory=dict)
    members: Mapping[str, IPv4Address] = field(default_factory=dict)
    others: Mapping[str, IPv4Address] = field(default_factory=dict)
    metered: frozenset[str] = frozenset()
    alive: frozenset[str] = frozenset()
    identities: Mapping[str, Identity] = field(default_factory=dict)
    provers: frozenset[str] = frozenset()

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

    def are_enough(self, answering: Iterable[str], proven: Iterable[str]) -> bool:
        """Whether Ray may start while these nodes answer: all that are needed, and one relay if there is any.

        Of those that are needed, all that can prove who they are have to be in ``proven``.
        """
        found = set(answering)
        if not (self.provers & self.needed.keys()).issubset(proven):
            return False
        return found.issuperset(self.needed) and (not self.relays or not found.isdisjoint(self.relays))
