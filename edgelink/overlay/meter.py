"""Whether this machine's uplink costs by the byte: as the configuration says, else as NetworkManager says.

NetworkManager is asked over D-Bus by systemd's ``busctl``. Without either, and in a container, no uplink is metered.
"""

from __future__ import annotations

from typing import Any, Final

from edgelink.facts.board import Board, Fact
from edgelink.log import get_logger
from edgelink.process.answer import short_answer
from edgelink.reconcile import Wakeup

_QUESTION = (
    *("busctl", "--system", "--auto-start=no", "--timeout=2", "get-property", "org.freedesktop.NetworkManager"),
    *("/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered"),
)
_METERED = frozenset({b"u 1", b"u 3"})  # NM_METERED_YES, NM_METERED_GUESS_YES
_TIMEOUT_S = 5.0
_MAX_BYTES = 4096
_LOOK_S = 300.0  # a change of the uplink is told of; one of NetworkManager's settings is not
_log = get_logger("overlay")


IS_METERED: Final[Fact[bool]] = Fact("is_metered")


class Meter:
    """Says on the board whether the uplink costs by the byte."""

    def __init__(self, *, board: Board[Any], configured: bool | None) -> None:
        """``configured``: ``overlay.metered``. None: NetworkManager decides."""
        self.wakeup = Wakeup()
        self._board = board
        self._put = board.claim(IS_METERED, "meter")
        self._configured = configured
        self._put(configured is True)

    async def run(self) -> None:
        """Follow NetworkManager until cancelled."""
        while self._configured is None:
            await self.wakeup.wait(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask NetworkManager, unless the configuration has decided."""
        if self._configured is not None:
            return
        is_metered = await _network_manager_says_metered()
        if is_metered != self._board.facts.is_metered:
            _log.info("overlay.metered", metered=is_metered)
            self._put(is_metered)


async def _network_manager_says_metered() -> bool:
    try:
        answer = await short_answer(*_QUESTION, timeout_s=_TIMEOUT_S, max_bytes=_MAX_BYTES)
    except OSError:  # no busctl
        return False
    return answer is not None and answer[0] == 0 and answer[1].strip() in _METERED
