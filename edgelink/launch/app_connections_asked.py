"""What is asked of a node about the TCP connections of its apps, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

Ends = tuple[str, str]  # the node's own end and the other one, each as address:port


@dataclass(frozen=True)
class ConnectionsQuestion:
    """Which connections does a node have with one of ``ports`` at either end?

    Args:
        peer: the overlay address of the other end. None: any.
        closes: of these it is to close those that it has.
    """

    ports: tuple[int, ...]
    peer: str | None = None
    closes: tuple[Ends, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def bytes_in(answer: Mapping[str, Any]) -> dict[Ends, int]:
    """Return the bytes of each connection in a node's answer, both ways together."""
    return {(each["own"], each["other"]): int(each["bytes"]) for each in answer["connections"]}


def answer_with(found: Mapping[Ends, int]) -> dict[str, Any]:
    """Return the answer that :func:`bytes_in` reads."""
    return {"connections": [{"own": own, "other": other, "bytes": count} for (own, other), count in found.items()]}


def without_other_end(here: Sequence[Ends], there: Sequence[Ends]) -> tuple[Ends, ...]:
    """Return the connections ``here`` of which the other node, asked later, has no end; pure."""
    known = {(other, own) for own, other in there}
    return tuple(ends for ends in here if ends not in known)
