"""A list of nodes that is too long for one message: the directory names relays and head, pages hold all the others.

Up to :data:`MAX_WHOLE` nodes there are no pages. A page holds the nodes of 256 neighbouring overlay addresses, so that
a change re-sends that page only. The directory states each page's digest: a page counts with the directory that names
it and no other, whatever order they come in.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from ipaddress import IPv4Network

from edgelink.protocol.payloads import Directory, DirectoryEntry, Envelope, Role, RosterPage

MAX_WHOLE = 256
_PAGE_BITS = 8


def digest(page: Envelope) -> str:
    return hashlib.sha256(page.body.encode()).hexdigest()


def pages_of(entries: tuple[DirectoryEntry, ...], network_id: str, cidr: IPv4Network) -> dict[int, RosterPage]:
    """All ``entries`` by page; empty where the directory itself has room for them."""
    if len(entries) <= MAX_WHOLE:
        return {}
    first = int(cidr.network_address)
    pages: dict[int, list[DirectoryEntry]] = {}
    for entry in entries:
        pages.setdefault((int(entry.overlay_ip) - first) >> _PAGE_BITS, []).append(entry)
    return {
        number: RosterPage(network_id=network_id, page=number, entries=tuple(pages[number])) for number in sorted(pages)
    }


def shortened(directory: Directory, pages: Mapping[int, Envelope]) -> Directory:
    """The directory that goes with ``pages``."""
    if not pages:
        return directory
    entries = tuple(entry for entry in directory.entries if entry.is_relay or entry.role is Role.HEAD)
    return directory.model_copy(update={"entries": entries, "roster": {n: digest(page) for n, page in pages.items()}})


class Pages:
    """The pages that a node was sent: of each number the one that its directory names, and the newest."""

    def __init__(self) -> None:
        self._pages: dict[int, dict[str, RosterPage]] = {}

    def put(self, stated: str, page: RosterPage, named: Directory | None) -> bool:
        """Whether it is a new one. ``stated`` is its digest, ``named`` the directory that counts now."""
        known = self._pages.setdefault(page.page, {})
        is_new = stated not in known
        kept = named.roster.get(page.page) if named is not None else None
        self._pages[page.page] = {name: old for name, old in known.items() if name == kept} | {stated: page}
        return is_new

    def get(self, number: int, stated: str) -> RosterPage | None:
        return self._pages.get(number, {}).get(stated)


def completed(directory: Directory, pages: Pages) -> Directory | None:
    """The directory with all nodes; None while one of its pages is not there."""
    if not directory.roster:
        return directory
    entries: list[DirectoryEntry] = []
    for number, stated in directory.roster.items():
        page = pages.get(number, stated)
        if page is None:
            return None
        entries += page.entries
    return directory.model_copy(update={"entries": tuple(entries)})
