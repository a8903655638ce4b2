"""A robot's attempts, counted from its steps: what each brought, and whether it was seen whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

COMPLETE = "complete"
BROKEN_OFF = "broken_off"  # by a hold or a stop
INCOMPLETE = "incomplete"  # steps of it were not taken in time, or left out because they were too old


@dataclass(frozen=True)
class Attempt:
    """One that is over; a return is one only if it is complete."""

    rig: int
    how: str
    value: float  # sum of the rewards
    steps: int
    version: int  # of the oldest weights in it


class AttemptCounter:
    """Follows each rig through the rows, in the order in which they come."""

    def __init__(self, rigs: int) -> None:
        self.counts = dict.fromkeys((COMPLETE, BROKEN_OFF, INCOMPLETE), 0)
        self._values = np.zeros(rigs)
        self._steps = np.zeros(rigs, np.int64)  # of the attempt under way; 0: none that is whole so far
        self._versions = np.zeros(rigs, np.int64)
        self._is_told = np.zeros(rigs, np.bool_)  # that the one under way is not whole
        self._number = 0  # of the row before

    def add(self, rows: Any) -> list[Attempt]:
        """Those that these rows ended, or show to be ended."""
        found: list[Attempt] = []
        for row in rows:
            is_lost = row["number"] != self._number + 1
            self._number = int(row["number"])
            for rig in np.flatnonzero(row["step"] != self._steps + 1):
                found += self._begin(int(rig), int(row["step"][rig]), is_lost=is_lost)
            goes_on = row["step"] == self._steps + 1
            is_first = goes_on & (self._steps == 0)
            self._versions[is_first], self._is_told[is_first] = row["version"], False
            self._versions[goes_on] = np.minimum(self._versions, row["version"])[goes_on]
            self._values[goes_on] += row["rewards"][goes_on]
            self._steps[goes_on] += 1
            for rig in np.flatnonzero(row["terminated"] | row["truncated"]):
                if self._steps[rig]:
                    found.append(self._over(int(rig), COMPLETE))
                self._is_told[rig] = False
        return found

    def _begin(self, rig: int, step: int, *, is_lost: bool) -> list[Attempt]:
        """The row does not go on with what was under way: that is over, and this is another one or its rest."""
        found: list[Attempt] = []
        if self._steps[rig]:
            found.append(self._over(rig, INCOMPLETE if is_lost and step else BROKEN_OFF))
        elif step > 1 and not self._is_told[rig]:
            found.append(self._over(rig, INCOMPLETE))
        self._is_told[rig] = step != 1
        return found

    def _over(self, rig: int, how: str) -> Attempt:
        self.counts[how] += 1
        over = Attempt(rig, how, float(self._values[rig]), int(self._steps[rig]), int(self._versions[rig]))
        self._values[rig], self._steps[rig] = 0.0, 0
        return over
