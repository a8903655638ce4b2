"""The ports of a node that members reach over the overlay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal


@dataclass(frozen=True)
class Opening:
    """Ports of this node that members may reach over the overlay.

    Attributes:
        first: the first port.
        last: the last port.
        sources: the overlay addresses that may reach them. None: those of all members.
    """

    protocol: Literal["tcp", "udp"]
    first: int
    last: int
    sources: frozenset[IPv4Address] | None = None

    @property
    def in_words(self) -> str:
        """The ports, and how many may reach them."""
        ports = f"{self.protocol}/{self.first}" + ("" if self.first == self.last else f"-{self.last}")
        if self.sources is None:
            return f"{ports} from all"
        return f"{ports} from {next(iter(self.sources)) if len(self.sources) == 1 else f'{len(self.sources)} nodes'}"


def told(openings: Iterable[Opening], most: int) -> tuple[str, ...]:
    """Return the openings in words, in order of their ports, and no more than ``most`` of them."""
    words = [one.in_words for one in sorted(openings, key=lambda one: (one.protocol, one.first, one.last))]
    return tuple(words) if len(words) <= most else (*words[: most - 1], f"and {len(words) - most + 1} more")
