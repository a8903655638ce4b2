"""Whether anything moves on the ports of an app, from what `ss` says; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_BYTES = re.compile(r"\bbytes_(?:acked|received):(\d+)")


def look_argv(ports: Sequence[int]) -> list[str]:
    """The command whose answer :func:`bytes_of` reads."""
    wanted = " or ".join(f"sport = :{port}" for port in ports)
    return ["ss", "-tinHO", "state", "established", f"( {wanted} )"]


def ask_argv(port: str, other_end: str) -> list[str]:
    """The command that prints the connection from ``port`` of its node to ``other_end``, in whatever state it is."""
    address, _, other_port = other_end.rpartition(":")
    return ["ss", "-tanHO", f"( sport = :{port} and dport = :{other_port} and dst {address} )"]


def close_argv(own_end: str, other_end: str) -> list[str]:
    """The command that closes one connection of its node; only root can."""
    own_port, (address, _, port) = own_end.rpartition(":")[2], other_end.rpartition(":")
    return ["ss", "-K", "-tnH", f"( sport = :{own_port} and dport = :{port} and dst {address} )"]


def bytes_of(text: str) -> dict[tuple[str, str], int]:
    """The bytes of each established connection, both ways together, by its own and its other end."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        ends = [word for word in words[:6] if re.search(r":\d+$", word)]
        if len(ends) >= 2:
            found[_plain(ends[0]), _plain(ends[1])] = sum(map(int, _BYTES.findall(line)))
    return found


def _plain(end: str) -> str:
    """``[::ffff:10.10.0.2]:50051`` is 10.10.0.2:50051."""
    return re.sub(r"^\[::ffff:([0-9.]+)\]", r"\1", end)


class PortProgress:
    """Watches one app's ports. Nothing is stuck that has not moved before, nor while a node does not answer."""

    def __init__(self, stuck_after_s: float) -> None:
        self._stuck_after_s = stuck_after_s
        self._seen: Mapping[tuple[str, str], int] = {}
        self._moved_s: float | None = None

    def is_stuck(self, seen: Mapping[tuple[str, str], int], now_s: float, *, all_answer: bool) -> bool:
        """Take one look, and return whether nothing has moved for too long."""
        has_moved = any(count > self._seen.get(ends, 0) for ends, count in seen.items())
        self._seen = seen
        if has_moved or (self._moved_s is not None and not all_answer):
            self._moved_s = now_s
        return self._moved_s is not None and now_s - self._moved_s >= self._stuck_after_s

    def forget(self) -> None:
        """The app, or who talks to it, was started anew."""
        self._seen, self._moved_s = {}, None
