"""Pings from one node of a lab to another, twenty a second, and how long they had no answer."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path

from machines import wait_until

from edgelink.lab import Lab

_INTERVAL_S = 0.05
_ANSWER = re.compile(r"^\[(\d+\.\d+)\].*time=", re.MULTILINE)


class Pings:
    """Answers from ``address``, asked for every 50 ms; ``gap_s`` is the longest time without one."""

    def __init__(self, lab: Lab, node: str, log: Path, address: str) -> None:
        self._log = log
        self._process = lab.popen(node, ["ping", "-D", "-n", "-i", str(_INTERVAL_S), address], log)
        wait_until(f"{address} answers {node}", self.answered_s)

    def answered_s(self) -> list[float]:
        """When answers came, on the wall clock."""
        return [float(found) for found in _ANSWER.findall(self._log.read_text())]

    def wait_for_answer(self) -> None:
        """Until something that is sent after now is answered."""
        now_s = time.time()
        wait_until("an answer", lambda: self.answered_s()[-1], wanted=lambda at_s: at_s > now_s + 0.1)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def settled_gap_s(self) -> float:
        """The longest one, after answers have been coming again for two seconds; ends the pings."""
        before = len(self.answered_s())
        wait_until("pings are answered again", self.answered_s, wanted=lambda times: len(times) > before + 40)
        self.stop()
        return self.gap_s

    @property
    def gap_s(self) -> float:
        return self.gap_since_s(0.0)

    def gap_since_s(self, since_s: float) -> float:
        """The longest one that ended after this moment of the wall clock."""
        pairs = itertools.pairwise(self.answered_s())
        return max(after - before for before, after in pairs if after > since_s)
