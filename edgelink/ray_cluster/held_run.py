"""The run that holds the head's lock, as the head's Ray has to know it."""

from __future__ import annotations

from dataclasses import dataclass

from edgelink.protocol.payloads import DirectoryEntry

Ranks = tuple[tuple[DirectoryEntry, int], ...]
"""Nodes with their ranks, in the order of the ranks."""


@dataclass(frozen=True)
class HeldRun:
    """One run, from its command to its end.

    Attributes:
        holder: who runs it, in words.
        ranks: the nodes that it relies on, with their ranks. None: it was not granted yet.
        nodes: node ids of the nodes that it asks for. Empty: all.
    """

    holder: str
    ranks: Ranks | None = None
    nodes: tuple[str, ...] = ()

    @property
    def is_granted(self) -> bool:
        """Whether it relies on the cluster as it is."""
        return self.ranks is not None

    @property
    def node_ids(self) -> frozenset[str]:
        """The nodes that it relies on."""
        return frozenset(entry.node_id for entry, _ in self.ranks or ())


@dataclass(frozen=True)
class Meeting:
    """Why edges may have to reach each other although no run is granted.

    Attributes:
        is_asked: the run that is about to be granted needs it.
        may_come_back_until_s: until then the run of a former daemon's time may come back, on the monotonic clock.
    """

    is_asked: bool = False
    may_come_back_until_s: float = 0.0
