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
