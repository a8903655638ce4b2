"""Ranges of ports, each from its first port to its last."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = Iterable[tuple[int, int]]


def merged(ranges: Ranges) -> tuple[tuple[int, int], ...]:
    """Without overlaps, which nft refuses; pure."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def without(ranges: Ranges, others: Ranges) -> tuple[tuple[int, int], ...]:
    """``ranges`` but for what ``others`` cover; pure."""
    left = list(merged(ranges))
    for low, high in others:
        left = [
            part
            for first, last in left
            for part in ((first, min(last, low - 1)), (max(first, high + 1), last))
            if part[0] <= part[1]
        ]
    return tuple(left)


def within(ranges: Ranges, bounds: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """What of ``ranges`` lies in ``bounds``; pure."""
    low, high = bounds
    return tuple((max(first, low), min(last, high)) for first, last in merged(ranges) if first <= high and low <= last)


def listed(ranges: Ranges) -> str:
    """As people and nft write them; pure."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in merged(ranges))


def in_words(protocol: str, first: int, last: int) -> str:
    """Return a range of ports as people write it, such as ``tcp/8000-8099``; pure."""
    return f"{protocol}/{listed([(first, last)])}"
