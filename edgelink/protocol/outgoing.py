"""What is to be published: what a node says of itself for others to keep, and messages that are sent once."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import NoReturn

from edgelink.clock import Clock
from edgelink.protocol.transport import Message, Session
from edgelink.reconcile import Wakeup

_MOST_WAITING = 8


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


class Outbox:
    """Messages that are sent once each, in this session or the next; dropped where too many wait already."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[Message] = asyncio.Queue(_MOST_WAITING)
        self._unsent: Message | None = None  # its session ended before the broker had acknowledged it

    def put(self, topic: str, payload: bytes) -> None:
        """Publish once; dropped where too much waits already."""
        with suppress(asyncio.QueueFull):
            self._waiting.put_nowait(Message(topic, payload))

    async def send_for_ever(self, session: Session) -> NoReturn:
        while True:
            unsent, self._unsent = self._unsent, None
            message = unsent or await self._waiting.get()
            if unsent is None:  # a session that ends meanwhile costs one more try, in the next
                self._unsent = message
            await session.publish(message.topic, message.payload)
            self._unsent = None
