"""What the operator opens on this node over the overlay, by access rules and in its own configuration."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final, Literal

from edgelink.config import Config
from edgelink.facts.board import Fact
from edgelink.member.access_watch import AccessTold
from edgelink.overlay.openings import Opening
from edgelink.protocol.payloads import Directory, NodeAccess
from edgelink.shield.inside import allowed_openings

OPENINGS: Final[Fact[frozenset[Opening]]] = Fact("openings")

_Ports = tuple[Literal["tcp", "udp"], int, int]


@dataclass(frozen=True)
class Allowed:
    """What the openings of this node depend on, besides the configuration."""

    access: AccessTold
    directory: Directory | None


def openings(now: Allowed, *, config: Config) -> frozenset[Opening]:
    """Return what the operator opens on this node, by access rules and in its own configuration.

    A document that waits for room on the disk closes what it no longer opens, and opens nothing yet.
    """
    told = now.access
    recorded = _opened(told.recorded)
    if told.newest != told.recorded:
        newest = _opened(told.newest)
        recorded = {ports: _both(recorded[ports], newest[ports]) for ports in recorded.keys() & newest.keys()}
    by_rules = frozenset(Opening(*ports, sources) for ports, sources in recorded.items() if sources != frozenset())
    return by_rules | allowed_openings(config, now.directory)


def _opened(document: NodeAccess | None) -> dict[_Ports, frozenset[IPv4Address] | None]:
    return {
        (one.protocol, one.first, one.last): None if one.sources is None else frozenset(one.addresses)
        for one in (document.openings if document is not None else ())
    }


def _both(one: frozenset[IPv4Address] | None, other: frozenset[IPv4Address] | None) -> frozenset[IPv4Address] | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other
