"""How each node was in the last day: a bar in steps of ten minutes, and the outages with their exact times. Bounded."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from edgelink.api.web.model import Bar, Health, Outage

STEP_S = 600
MOST_STEPS = 144  # a day
MOST_OUTAGES = 200
_SILENT: Collection[Health] = ("paused", "away")
# A step shows the worst that was seen in it. A blank one: no daemon looked.
_MARKS: dict[Health, str] = {
    "ok": "o",
    "off": "f",
    "coming": "c",
    "warning": "w",
    "paused": "p",
    "trouble": "t",
    "away": "a",
}
_WORST_LAST = " " + "".join(_MARKS.values())


class Timeline:
    """The bars by hostname, and the outages by number."""

    def __init__(self) -> None:
        self.bars: dict[str, Bar] = {}
        self.outages: dict[str, Outage] = {}
        self._open: dict[str, str] = {}  # number of the outage that lasts, by hostname
        self._last: dict[str, Health] = {}
        self._n = 0

    def note(self, name: str, health: Health, at: datetime, silent_since: str | None = None) -> None:
        """The node is like that at this moment; to be told at least once a step."""
        self._mark(name, _MARKS[health], int(at.timestamp()) // STEP_S)
        before = self._last.get(name)
        if before == health:
            return
        self._last[name] = health
        number = self._open.get(name)
        if health not in _SILENT:
            if number is not None:
                del self._open[name]
                self.outages[number] = {**self.outages[number], "until": _text(at)}
        elif number is not None:
            self.outages[number] = {**self.outages[number], "kind": health}
        elif before is not None or health == "paused":  # else nobody knows since when
            self._begin(name, health, silent_since or _text(at))

    def forget(self, name: str) -> None:
        """The node has left the network."""
        self._last.pop(name, None)
        self.bars.pop(name, None)
        if (number := self._open.pop(name, None)) is not None:
            del self.outages[number]

    def _mark(self, name: str, mark: str, step: int) -> None:
        bar = self.bars.get(name)
        marks = bar["marks"] if bar is not None else ""
        behind = step - bar["step"] if bar is not None else 0
        if not marks or -behind >= len(marks):  # a clock that was set far back begins anew
            self.bars[name] = Bar(step=step, marks=mark)
        elif behind > 0:
            marks += " " * min(behind - 1, MOST_STEPS) + mark
            self.bars[name] = Bar(step=step, marks=marks[-MOST_STEPS:])
        else:
            at = len(marks) - 1 + behind
            if _WORST_LAST.index(mark) > _WORST_LAST.index(marks[at]):
                self.bars[name] = Bar(step=step - behind, marks=marks[:at] + mark + marks[at + 1 :])

    def _begin(self, name: str, kind: Health, since: str) -> None:
        self._n += 1
        self._open[name] = number = str(self._n)
        self.outages[number] = Outage(hostname=name, kind=kind, since=since, until=None)
        if len(self.outages) > MOST_OUTAGES:
            oldest = next((each for each in self.outages if each not in self._open.values()), number)
            self._open = {name: each for name, each in self._open.items() if each != oldest}
            del self.outages[oldest]


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
