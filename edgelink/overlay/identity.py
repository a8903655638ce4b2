"""Who claims which overlay address, by EasyTier's list, against who holds it by the directory. Pure.

EasyTier detects no address that is used twice: traffic goes to whoever started last (measured), so a cloned disk
silently takes a robot's place. A node that restarted a moment ago may be listed twice as well, under another peer id:
over UDP for up to ten seconds, by versions before 2.5 also longer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address

from edgelink.overlay.status import Peer, duplicates

TWIN_S = 90.0  # after that an earlier life of a node is no longer listed


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


def twins(rows: Iterable[Peer]) -> list[str]:
    """Hostnames that are listed with one address under several peer ids: a restart a moment ago, or a cloned disk."""
    seen: dict[tuple[IPv4Address, str], set[str]] = {}
    for row in rows:
        if row.ipv4 is not None:
            seen.setdefault((row.ipv4, row.hostname), set()).add(row.peer_id)
    return sorted(f"{hostname} ({ip})" for (ip, hostname), ids in seen.items() if len(ids) > 1)
