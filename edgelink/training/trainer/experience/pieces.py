"""Large contents on their way through Ray's memory: in pieces, only as many at a time as keep the link busy, so that an
outage costs those only.

Ray begins an object anew after an outage, and once for each time that it asked for it meanwhile, which is after 10 s,
30 s, 70 s and so on: 8 MB that were on their way when the link went dark for 30 s crossed three times (ADR 0028).
"""

from __future__ import annotations

import math
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what is large is known without numpy, too: to `edgelink plan`
    from edgelink.training.trainer.experience.parcel import Payload

FIRST = 4  # pieces on their way before anything is known of the link; what has no more is left whole
_LEAST, _MOST = 2, 32

# Those of the named pieces that are here, at least one; blocks until then. All that were named go on coming.
Fetch = Callable[[Sequence[Any]], Mapping[Any, bytes]]


@dataclass(frozen=True)
class Pieces:
    """A payload that lies in Ray's memory where it was made."""

    names: tuple[Any, ...]  # what the pieces are fetched by, in order


def fetch_by(ray: Any) -> Fetch:
    """``ray`` is the module."""

    def fetch(names: Sequence[Any]) -> Mapping[Any, bytes]:
        here, _ = ray.wait(list(names), num_returns=1)
        return dict(zip(here, ray.get(here), strict=True))

    return fetch


def chunks(content: bytes, size_bytes: int) -> Iterator[bytes]:
    """``content`` in pieces."""
    return (content[start : start + size_bytes] for start in range(0, max(1, len(content)), size_bytes))


def is_large(content_bytes: float, size_bytes: int) -> bool:
    """Whether a payload of so much goes in pieces of ``size_bytes``: others would be on their way at once."""
    return content_bytes > FIRST * size_bytes


def in_pieces(payload: Payload, size_bytes: int, put: Callable[[bytes], Any]) -> Payload | Pieces:
    """``payload`` in pieces of ``size_bytes`` if it is large."""
    if not is_large(sum(len(array.data) for array in payload.arrays.values()), size_bytes):
        return payload
    return Pieces(tuple(put(piece) for piece in chunks(pickle.dumps(payload, protocol=5), size_bytes)))


def brought(found: Payload | Pieces, fetch: Fetch) -> Payload:
    """The payload, with what ``in_pieces`` made of it fetched."""
    if not isinstance(found, Pieces):
        return found
    came: dict[int, bytes] = {}
    for _ in coming(found.names, came, fetch):
        pass
    payload: Payload = pickle.loads(joined(came))  # noqa: S301 - as Ray itself would: from a worker of this run
    return payload


def joined(came: Mapping[int, bytes]) -> bytes:
    return b"".join(came[index] for index in sorted(came))


def coming(
    names: Sequence[Any], came: dict[int, bytes], fetch: Fetch, clock: Callable[[], float] = time.monotonic
) -> Iterator[bytes]:
    """Each piece that is not in ``came`` yet, as it comes; it is in there then, by its index, also if another fails."""
    missing = deque(index for index in range(len(names)) if index not in came)
    under_way: dict[Any, tuple[int, float]] = {}  # by name: index, and when it was asked for
    window = Window()
    while missing or under_way:
        while missing and len(under_way) < window.width:
            index = missing.popleft()
            under_way[names[index]] = index, clock()
        for name, piece in fetch(list(under_way)).items():
            index, asked_s = under_way.pop(name)
            window.came(asked_s, clock())
            came[index] = piece
            yield piece


class Window:
    """How many pieces are to be on their way at a time.

    A quarter more than came while the fastest one was on its way, as BBR probes for bandwidth: the link hardly waits
    for the next request, however long it is, and an outage repeats little.
    """

    def __init__(self) -> None:
        self.width = FIRST
        self._fastest_s = float("inf")
        self._came_s: deque[float] = deque(maxlen=_MOST)

    def came(self, asked_s: float, now_s: float) -> None:
        """One that was asked for then is here."""
        self._came_s.append(now_s)
        self._fastest_s = min(self._fastest_s, now_s - asked_s)
        lately = sum(now_s - came_s < self._fastest_s for came_s in self._came_s)
        self.width = widened(lately)


def widened(came: int) -> int:
    """How many pieces are to be on their way when so many came while the fastest one was."""
    return min(_MOST, max(_LEAST, math.ceil(1.25 * came)))
