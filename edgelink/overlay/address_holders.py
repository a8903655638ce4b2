"""Who claims which overlay address, by EasyTier's list, against who holds it by the directory. Pure.

EasyTier detects no address that is used twice: traffic goes to whoever started last (measured), so a cloned disk
silently takes a robot's place. A node that restarted a moment ago may be listed twice as well, under another peer id:
over UDP for up to ten seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from edgelink.overlay.status import Peer, duplicates

TWIN_S = 90.0  # after that an earlier life of a node is no longer listed
_SIGNS = 2  # of life: what was on its way when a node died is one
_SIGN_S = 0.9


def impostors(rows: Iterable[Peer], holders: Mapping[IPv4Address, str]) -> list[str]:
    """Sentences about addresses that somebody else than their holder claims, or that two hostnames claim."""
    rows = list(rows)
    found = []
    twice = duplicates(rows)
    for ip, names in twice.items():
        holder = holders.get(ip)
        found.append(f"{ip} is claimed by {' and '.join(names)}" + (f"; it is {holder}'s" if holder else ""))
    for row in rows:
        if row.ipv4 is None or row.ipv4 in twice:
            continue
        holder = holders.get(row.ipv4)
        if holder is not None and holder != row.hostname:
            found.append(f"{row.ipv4} is {holder}'s, but {row.hostname} answers there")
    return found


def twins(rows: Iterable[Peer]) -> dict[str, list[Peer]]:
    """The rows of each node that is listed under several peer ids: a restart a moment ago, or a cloned disk.

    By hostname and the addresses that it is listed with, in words. A hostname has one address, so that one with two
    is listed here as well.
    """
    seen: dict[str, dict[str, Peer]] = {}
    for row in rows:
        if row.ipv4 is not None:
            seen.setdefault(row.hostname, {})[row.peer_id] = row
    found = {}
    for hostname, by_id in sorted(seen.items()):
        if len(by_id) > 1:
            addresses = sorted({str(row.ipv4) for row in by_id.values()})
            found[f"{hostname} ({', '.join(addresses)})"] = list(by_id.values())
    return found


class SignsOfLife:
    """Which of the nodes that are listed twice are alive twice.

    EasyTier asks each neighbour once a second: of one that lives, what came from it and how long it takes change all
    the time. Of one that is gone and still listed nothing does. Of a node that is reached through others nothing is
    known.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[tuple[str, float | None], float]] = {}  # by peer id: last signs, and since when
        self._count: Counter[str] = Counter()

    def look(self, found: Mapping[str, list[Peer]], now_s: float) -> list[str]:
        """Those that are; ``found`` is what :func:`twins` says now."""
        rows = {row.peer_id: row for group in found.values() for row in group}
        for peer_id in self._seen.keys() - rows.keys():
            del self._seen[peer_id], self._count[peer_id]
        for peer_id, row in rows.items():
            signs = (row.received, row.lat_ms)
            known = self._seen.get(peer_id)
            if known is None:
                self._seen[peer_id] = signs, now_s
            elif known[0] != signs and now_s - known[1] >= _SIGN_S:
                self._seen[peer_id] = signs, now_s
                self._count[peer_id] += 1
        return [name for name, group in found.items() if all(map(self._is_alive, group))]

    def _is_alive(self, row: Peer) -> bool:
        return row.is_self or (row.is_direct and self._count[row.peer_id] >= _SIGNS)
