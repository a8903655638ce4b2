"""How much links carry now, from what EasyTier says that each has carried so far.

It says that in rounded words: 1.20 GB is right to 10 MB. So the time over which two of them are compared is as long as
it takes to tell, up to a minute; where that does not do, what is known is that it is less than so much.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from edgelink.api.web.model import Rate

_LEAST_S, _MOST_S = 6.0, 60.0
_ENOUGH_STEPS = 20  # of the rounding: an error of 5 %
_WORDS = re.compile(r"(\d+(?:\.\d+)?) ?([kMGTPE]?)B")


class Total(NamedTuple):
    """What a link has carried at a moment, and to how many bytes that is right."""

    at_s: float
    carried: float
    step: float


class Rates:
    """Of every link, each way."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], deque[Total]] = {}  # by overlay address, and way
        self._rates: dict[tuple[str, str], Rate | None] = {}

    def note(self, at_s: float, ways: Iterable[Mapping[str, Any]]) -> None:
        """What EasyTier says at ``at_s``, on the monotonic clock; a link that it no longer names is forgotten."""
        noted = {}
        for way in ways:
            for name in ("received", "sent"):
                total = total_of(way.get(name) or "", at_s)
                if total is not None:
                    key = way["overlay_ip"], name
                    noted[key] = _with(self._totals.get(key, deque()), total)
        self._totals = noted
        self._rates = {key: rate(totals) for key, totals in noted.items()}

    def of(self, overlay_ip: str, name: str) -> Rate | None:
        """None: there is no such link, or it was looked at once only."""
        return self._rates.get((overlay_ip, name))


def total_of(words: str, at_s: float) -> Total | None:
    """What ``1.99 kB`` says; pure. None for other words."""
    found = _WORDS.fullmatch(words)
    if found is None:
        return None
    unit = 1000.0 ** " kMGTPE".index(found[2] or " ")
    return Total(at_s, float(found[1]) * unit, max(1.0, unit / 100))


def rate(totals: Sequence[Total]) -> Rate | None:
    """From totals of one link, oldest first, at least one; pure."""
    *former, newest = totals
    before = newest
    for earlier in reversed(former):
        if before is not newest and newest.at_s - earlier.at_s > _MOST_S:
            break
        before = earlier
        if newest.at_s - before.at_s >= _LEAST_S and newest.carried - before.carried >= _ENOUGH_STEPS * newest.step:
            break
    carried, seconds = newest.carried - before.carried, newest.at_s - before.at_s
    if seconds <= 0:
        return None
    return Rate(bytes_per_s=float(f"{(carried or newest.step) / seconds:.3g}"), is_less=not carried)


def _with(totals: deque[Total], newest: Total) -> deque[Total]:
    """A link that was made anew has carried less than before."""
    if totals and newest.carried < totals[-1].carried:
        totals.clear()
    totals.append(newest)
    while len(totals) > 2 and newest.at_s - totals[0].at_s > _MOST_S:
        totals.popleft()
    return totals
