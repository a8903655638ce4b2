"""How many statuses of one node the registry looks at."""

from __future__ import annotations

from collections.abc import Callable

from edgelink.clock import Clock
from edgelink.protocol.transport import Message
from edgelink.rate import RateLimit
from edgelink.reconcile import Wakeup


class StatusGate:
    """Lets each node's statuses pass as often as an honest node speaks; of those beyond, the newest waits its turn.

    So a node that floods costs the relay what another one does, and none is shown as it was before its last word.
    """

    PER_NODE = (2.0, 20)  # a second, and at once

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._limit = RateLimit(*self.PER_NODE)
        self._waiting: dict[str, Message] = {}
        self._wakeup = Wakeup()

    def begin_session(self) -> None:
        """The broker says anew what each node said last."""
        self._waiting.clear()

    def passes(self, node_id: str, message: Message) -> bool:
        """Say whether ``message`` counts now. One that does not waits, in place of an earlier one of that node."""
        if node_id not in self._waiting and self._limit.passes(node_id, self._clock.monotonic_s()):
            return True
        self._waiting[node_id] = message
        self._wakeup.set()
        return False

    async def run(self, take: Callable[[str, Message], None]) -> None:
        """Hand those that have waited to ``take``, each in its turn; ends by cancellation only."""
        while True:
            if not self._waiting:
                await self._wakeup.wait(None)
            await self._clock.sleep(1 / self.PER_NODE[0])
            now_s = self._clock.monotonic_s()
            for node_id in [node_id for node_id in self._waiting if self._limit.passes(node_id, now_s)]:
                take(node_id, self._waiting.pop(node_id))
