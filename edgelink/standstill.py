"""Notice that the machine slept, or that this process did not run for a while, and that the wall clock was stepped.

While a machine sleeps its monotonic clock stands still, and with it every timer; the others went on meanwhile. So
what was known of them is worth nothing, and everything has to be looked at at once instead of when its timer is due.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

from edgelink.clock import Clock
from edgelink.facts.board import Board, Fact
from edgelink.log import get_logger

_LOOK_S = 1.0
_TOLERANCE_S = 3.0  # a busy machine may keep us waiting
_STEP_S = 2.0
_log = get_logger("clock")

STANDSTILLS: Final[Fact[int]] = Fact("standstills")


class Standstill:
    """Counts standstills on the board, each at most ``_LOOK_S`` after its end."""

    def __init__(self, board: Board[Any], clock: Clock) -> None:
        self._board = board
        self._put = board.claim(STANDSTILLS, "standstill")
        self._clock = clock

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        boot_s, wall_s = self._clock.boottime_s(), self._clock.now().timestamp()
        while True:
            await self._clock.sleep(_LOOK_S)
            passed_s, stepped_s = self._clock.boottime_s() - boot_s, self._clock.now().timestamp() - wall_s
            boot_s, wall_s = boot_s + passed_s, wall_s + stepped_s
            if abs(stepped_s - passed_s) > _STEP_S:  # nothing here depends on it, but people compare times
                _log.warning("clock.stepped", by_s=round(stepped_s - passed_s, 1))
            if passed_s - _LOOK_S > _TOLERANCE_S:
                _log.warning("daemon.stood_still", for_s=round(passed_s - _LOOK_S, 1))
                self._put(self._board.facts.standstills + 1)
