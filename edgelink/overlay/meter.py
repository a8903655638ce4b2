"""Whether this machine's uplink costs by the byte: as the configuration says, else as NetworkManager says.

NetworkManager is asked over D-Bus by systemd's ``busctl``. Without either, and in a container, no uplink is metered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from edgelink.log import get_logger
from edgelink.process.answer import AnswerTooLongError, answer_of, end
from edgelink.reconcile import Wakeup
from edgelink.timeouts import timeout

_QUESTION = (
    *("busctl", "--system", "--auto-start=no", "--timeout=2", "get-property", "org.freedesktop.NetworkManager"),
    *("/org/freedesktop/NetworkManager", "org.freedesktop.NetworkManager", "Metered"),
)
_METERED = frozenset({b"u 1", b"u 3"})  # NM_METERED_YES, NM_METERED_GUESS_YES
_TIMEOUT_S = 5.0
_MAX_BYTES = 4096
_LOOK_S = 300.0  # a change of the uplink is told of; one of NetworkManager's settings is not
_log = get_logger("overlay")


class Meter:
    """Knows whether the uplink costs by the byte.

    Args:
        configured: ``overlay.metered``; None: NetworkManager decides.
        on_change: called when the answer is another one.
    """

    def __init__(self, *, configured: bool | None, on_change: Callable[[], None]) -> None:
        self.wakeup = Wakeup()
        self.is_metered = configured is True
        self._configured = configured
        self._on_change = on_change

    async def run(self) -> None:
        """Follow NetworkManager until cancelled."""
        while self._configured is None:
            await self.wakeup.wait(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask NetworkManager, unless the configuration has decided."""
        if self._configured is not None:
            return
        was, self.is_metered = self.is_metered, await _network_manager_says_metered()
        if self.is_metered != was:
            _log.info("overlay.metered", metered=self.is_metered)
            self._on_change()


async def _network_manager_says_metered() -> bool:
    try:
        process = await asyncio.create_subprocess_exec(
            *_QUESTION,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:  # no busctl
        return False
    try:
        async with timeout(_TIMEOUT_S):
            answer, _ = await answer_of(process, _MAX_BYTES)
    except (TimeoutError, AnswerTooLongError):
        return False
    finally:
        await end(process)
    return process.returncode == 0 and answer.strip() in _METERED
