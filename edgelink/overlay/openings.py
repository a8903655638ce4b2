"""The ports of a node that members reach over the overlay."""

from __future__ import annotations

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
