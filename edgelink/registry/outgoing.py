"""What a node says of itself on one topic for others to keep."""

from __future__ import annotations

from typing import NoReturn

from edgelink.clock import Clock
from edgelink.reconcile import Wakeup
from edgelink.registry.transport import Session


class Outgoing:
    """The newest payload of one retained topic; older ones that were not sent yet are dropped."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._payload: bytes | None = None
        self._changed = Wakeup()
        self._is_asked = False

    @property
    def is_empty(self) -> bool:
        return self._payload is None

    def put(self, payload: bytes) -> None:
        self._payload = payload
        self._changed.set()

    def repeat(self) -> None:
        """Send what is there once more."""
        self._is_asked = True
        self._changed.set()

    async def send_for_ever(self, session: Session, clock: Clock, interval_s: float) -> NoReturn:
        """Send what is there (a new session's broker may have lost it), then every change."""
        sent: bytes | None = None
        while True:
            if self._payload is not None and (self._payload != sent or self._is_asked):
                self._is_asked = False
                sent = self._payload
                await session.publish(self.topic, sent, retain=True)
                await clock.sleep(interval_s)
            await self._changed.wait(None)
