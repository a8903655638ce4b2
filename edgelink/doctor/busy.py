"""Whether this machine has so much to do that who does not answer need not hang."""

from __future__ import annotations

from pathlib import Path

BUSY_PATIENCE_S = 20.0  # an answer on a busy machine, where two seconds of work take ten
_BUSY = 0.9  # of the time of all processors
_IDLE = slice(3, 5)  # "idle" and "iowait": a dead disk is no work
_ALL = slice(8)  # what follows is counted in the first two as well


class Processors:
    """Compares two counts of the kernel (proc_stat(5)): the one at its construction, and the one of now."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._before = self._now()

    def _now(self) -> tuple[int, int]:
        """Clock ticks in all, and idle ones. (0, 0): the kernel does not say."""
        try:
            ticks = [int(word) for word in self._stat.read_text().partition("\n")[0].split()[1:]]
        except (OSError, ValueError):
            return 0, 0
        return sum(ticks[_ALL]), sum(ticks[_IDLE])

    @property
    def were_busy(self) -> bool:
        """Whether all processors have worked since then. False where the kernel does not say."""
        (all_before, idle_before), (all_now, idle_now) = self._before, self._now()
        return idle_now - idle_before < (1 - _BUSY) * (all_now - all_before)
