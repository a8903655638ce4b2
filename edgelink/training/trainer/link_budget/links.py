"""Links between nodes as they were measured, and how long something takes on its way over one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Way = tuple[int, int]  # node ranks: from, to

_FIRST_WINDOW_BYTES = 10 * 1200  # what TCP sends before anything is confirmed: ten packets of an overlay
_JITTER_SHARE = 0.9
_PACKET_BYTES = 1300  # of an overlay
# Of a packet that nothing follows TCP learns after two round trips that it was lost; measured with a trainer that
# waits for its turn, at 100 and 500 ms: two and a half to three.
_HELD_ROUND_TRIPS = 2.75


@dataclass(frozen=True)
class Link:
    """One direction between two nodes, for TCP over the overlay.

    Attributes:
        rtt_ms: median of small exchanges; there and back.
        jitter_ms: by how much the slowest tenth of them was longer.
        mbit_per_s: what arrived of a stream.
        loss: share of the segments that TCP sent again; None: the kernel does not tell. What an outer TCP of the
            tunnel repairs shows as jitter, not here.
        held_up: of the packets of small messages, the share that was lost and, until it was there after all, held up
            what came behind it, whoever sent it again; there and back. 0 where the way is too short to be asked.
    """

    source: int
    target: int
    rtt_ms: float
    mbit_per_s: float
    jitter_ms: float = 0.0
    loss: float | None = None
    congestion_control: str = ""
    held_up: float = 0.0

    @property
    def way(self) -> Way:
        return self.source, self.target

    @property
    def lost(self) -> float | None:
        """The share of lost packets, by whichever way of counting sees more of them; None: not known."""
        return max(self.loss or 0.0, self.held_up) if self.held_up or self.loss is not None else None

    @property
    def bytes_per_s(self) -> float:
        return self.mbit_per_s * 125_000

    def transfer_s(self, size_bytes: float, *, is_warm: bool = False) -> float:
        """From the first byte's start to the last one's arrival.

        Args:
            is_warm: on a connection that sends all the time; else it was idle, and TCP begins slowly. BBR goes on with
                the rate that it knew.
        """
        if size_bytes <= 0:
            return 0.0
        rtt_s = self.rtt_ms / 1000
        if is_warm or self.congestion_control == "bbr":
            return rtt_s / 2 + size_bytes / self.bytes_per_s
        window, sent, waited_s = float(_FIRST_WINDOW_BYTES), 0.0, 0.0
        while sent + window < size_bytes and window < self.bytes_per_s * rtt_s:
            sent += window
            window *= 2
            waited_s += rtt_s
        return rtt_s / 2 + waited_s + (size_bytes - sent) / self.bytes_per_s

    def message_s(self, size_bytes: float) -> float:
        """How long a message with so many bytes in it is on its way, while nothing else is; also an empty one."""
        return self.rtt_ms / 2000 if size_bytes <= 0 else self.transfer_s(size_bytes)

    def held_s(self, size_bytes: float) -> float:
        """How long lost packets hold up who waits for so many bytes, in the mean."""
        return size_bytes / _PACKET_BYTES * self.held_up * self._one_held_s

    def behind_s(self, bytes_per_s: float, back_bytes_per_s: float) -> float:
        """How long what sets out at any moment waits for packets that were lost before it, in the mean.

        Args:
            bytes_per_s: of all that is sent this way.
            back_bytes_per_s: the other way, of which every other packet is confirmed by one on this way.
        """
        lost_per_s = (bytes_per_s + back_bytes_per_s / 2) / _PACKET_BYTES * self.held_up
        are_lost = min(1.0, lost_per_s * self._one_held_s)  # in the time before in which it matters
        return are_lost * self._one_held_s / 2  # half of the time is over, in the mean

    @property
    def _one_held_s(self) -> float:
        return _HELD_ROUND_TRIPS * self.rtt_ms / 1000

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Measured:
    """All links that were measured, and the names of the nodes by rank."""

    links: Mapping[Way, Link]
    names: Mapping[int, str]

    def name(self, rank: int) -> str:
        return self.names.get(rank) or f"node {rank}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = {str(rank): name for rank, name in self.names.items()}
        return {"names": names, "links": [link.to_dict() for link in self.links.values()]}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Measured:
        """What :meth:`to_dict` made. Raises ValueError, KeyError, TypeError."""
        links = [Link(**each) for each in content["links"]]
        for link in links:
            _check(link)
        return cls({link.way: link for link in links}, {int(rank): name for rank, name in content["names"].items()})


def _check(link: Link) -> None:
    """Raises ValueError: nothing could be predicted with such numbers."""
    way = f"the link {link.source} → {link.target}"
    if not 0 < link.mbit_per_s < math.inf:
        raise ValueError(f"{way} has mbit_per_s {link.mbit_per_s}, and not a finite number above 0")
    for name in ("rtt_ms", "jitter_ms", "loss", "held_up"):
        value = getattr(link, name)
        if value is not None and not 0 <= value < math.inf:
            raise ValueError(f"{way} has {name} {value}, and not a finite number from 0 on")


def measured(told: Iterable[Mapping[str, Any]], ranks: Mapping[str, int]) -> tuple[Measured, list[str]]:
    """What the exchange told of the links, and of those that could not be measured, why.

    Args:
        told: its ``measured`` event's ``links``.
        ranks: by the node's name.
    """
    ways = {(ranks[each["from"]], ranks[each["to"]]): each for each in told}
    links, problems = {}, []
    for (source, target), each in ways.items():
        if "error" in each or not each["mbit_per_s"] > 0:
            problems.append(f"{each['from']} → {each['to']}: {each.get('error', 'nothing of a stream arrived')}")
            continue
        back = ways.get((target, source), {})
        trickled = 2 * sum(direction.get("trickled", 0) for direction in (each, back))  # there and back
        held_up = sum(direction.get("held_up", 0) for direction in (each, back))
        round_trips_ms = [*each["round_trips_ms"], *back.get("round_trips_ms", ())]
        rtt_ms = statistics.median(round_trips_ms)
        links[source, target] = Link(
            source,
            target,
            rtt_ms=round(rtt_ms, 2),
            mbit_per_s=each["mbit_per_s"],
            jitter_ms=round(max(0.0, _at(round_trips_ms, _JITTER_SHARE) - rtt_ms), 2),
            loss=round(each["retransmitted"] / each["segments"], 5) if each.get("segments") else None,
            congestion_control=each.get("congestion_control", ""),
            held_up=round(held_up / trickled, 5) if trickled else 0.0,
        )
    return Measured(links, {rank: name for name, rank in ranks.items()}), problems


def _at(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
