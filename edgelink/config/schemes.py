"""The schemes of EasyTier's URLs, and what carries each: the kernel knows TCP's connections, and can close them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

OVER_TCP = frozenset({"tcp", "ws", "wss"})
OVER_UDP = frozenset({"udp", "wg", "quic"})


class End(NamedTuple):
    """A host and port at which EasyTier listens, or that it dials. ``port`` is 0 where the URL has none."""

    host: str
    port: int


def tcp_ends(urls: Iterable[str]) -> list[End]:
    """Return host and port of each URL that EasyTier uses over the kernel's TCP. Pure."""
    parts = [urlsplit(url) for url in urls]
    return [End(part.hostname, part.port or 0) for part in parts if part.scheme in OVER_TCP and part.hostname]
