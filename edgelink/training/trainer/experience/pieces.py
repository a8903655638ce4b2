"""Large contents on their way through Ray's memory: in pieces, a few at a time, so that an outage costs those only.

Ray begins an object anew after an outage, and once for each time that it asked for it meanwhile, which is every ten
seconds: 8 MB that were on their way when the link went dark for 30 s crossed three times (ADR 0028).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgelink.training.trainer.experience.parcel import Payload

AT_ONCE = 4  # pieces on their way: enough to fill a long link, and few enough to lose in an outage


@dataclass(frozen=True)
class Pieces:
    """A payload that lies in Ray's memory where it was made."""

    names: tuple[Any, ...]  # what the pieces are fetched by, in order


def chunks(content: bytes, size_bytes: int) -> list[bytes]:
    """``content`` in pieces."""
    return [content[start : start + size_bytes] for start in range(0, max(1, len(content)), size_bytes)]


def in_pieces(payload: Payload, size_bytes: int, put: Callable[[bytes], Any]) -> Payload | Pieces:
    """``payload`` in pieces of ``size_bytes``, or as it is where they would all be on their way at once."""
    if sum(len(array.data) for array in payload.arrays.values()) <= AT_ONCE * size_bytes:
        return payload
    return Pieces(tuple(put(piece) for piece in chunks(pickle.dumps(payload, protocol=5), size_bytes)))


def brought(found: Payload | Pieces, fetch: Callable[[Sequence[Any]], Sequence[bytes]]) -> Payload:
    """The payload, with what ``in_pieces`` made of it fetched; ``fetch`` may block."""
    if isinstance(found, Payload):
        return found
    content: list[bytes] = []
    for begin in range(0, len(found.names), AT_ONCE):
        content += fetch(found.names[begin : begin + AT_ONCE])
    payload: Payload = pickle.loads(b"".join(content))  # noqa: S301 - as Ray itself would: from a worker of this run
    return payload
