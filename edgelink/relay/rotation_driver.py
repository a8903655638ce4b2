"""The registry's side of a change of the secret on MQTT: tells the nodes, takes their answers, takes the steps.

State, not commands: what is published is always what the database says, so that a message that is lost, doubled or
late does no harm, and a daemon that was killed goes on where the database stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from edgelink.clock import Clock
from edgelink.errors import NotCommittedError, RegistryError, UntrustedError
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.protocol.refusals import Refusals
from edgelink.protocol.topics import ANY, Topics
from edgelink.protocol.transport import Message, Session
from edgelink.reconcile import Wakeup
from edgelink.relay.rotation import Step
from edgelink.relay.rotations import Rotations

_LOOK_S = 30.0
_MEMBERS_S = 0.5  # a thousand may enrol at once
_ANSWERS_S = 0.05  # and answer
_AGAIN_S = 5.0  # after the database could not be written
_SOON_S = 0.05  # a deadline that has just passed

log = get_logger("registry")


class RotationDriver:
    """For the length of each session in :meth:`run`; ``on_change`` after each step and when nodes have
    answered, before the nodes are told."""

    def __init__(
        self, rotations: Rotations, topics: Topics, refusals: Refusals, clock: Clock, on_change: Callable[[], None]
    ) -> None:
        self.wakeup = Wakeup()
        self._on_change = on_change
        self._rotations = rotations
        self._topics = topics
        self._session: Session | None = None
        self._published: dict[str, bytes] = {}
        self._look: asyncio.TimerHandle | None = None
        self._has_news = False
        self._answering: set[str] = set()  # whose retained answer the broker has
        self._refusals = refusals
        self._outage = Outage(clock)  # of the database
        self._unnoted: dict[str, bytes] = {}  # the newest answer of each node that could not be put down yet

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What the registry has to hear."""
        return (self._topics.answer(ANY),)

    async def run(self, session: Session) -> NoReturn:
        """Keep the session's nodes told, and the change going; ends with the session, or by cancellation."""
        self._session = session
        self._published.clear()
        try:
            while True:
                is_done = self._go_on()
                await self.tell_state()
                await self._tell_secrets(session)
                look_s = self._rotations.look_again_s()
                if not is_done:
                    await self.wakeup.wait(_AGAIN_S)
                else:
                    await self.wakeup.wait(_LOOK_S if look_s is None else min(_LOOK_S, look_s + _SOON_S))
        finally:
            self._session = None

    def look(self) -> None:
        """Have ``on_change`` called at the next look, which is now; from anywhere, it neither reads nor writes."""
        self._has_news = True
        self.wakeup.set()

    def _go_on(self) -> bool:
        """Put down what was answered, and take the step that is due; False: the database fails, so later."""
        try:
            for node_id, payload in list(self._unnoted.items()):
                self._note(node_id, payload)
                del self._unnoted[node_id]
            if self._rotations.advance() is not Step.WAIT:
                self._has_news = True
            if self._has_news:
                self._has_news = False
                self._on_change()
        except RegistryError as error:
            self._has_news = True
            self._failed(error)
            return False
        if (lasted_s := self._outage.over()) is not None:
            log.info("registry.rotation_goes_on", lasted_s=lasted_s)
        return True

    def _note(self, node_id: str, payload: bytes) -> None:
        try:
            is_news = self._rotations.receive(node_id, payload)
        except UntrustedError as error:
            self._refusals.note(error.condition_reason, node_id, what="answer", error=str(error))
            return
        if is_news:
            self._has_news = True
            self._look_within(_ANSWERS_S)

    def _failed(self, error: RegistryError) -> None:
        if self._outage.is_news(error.condition_reason):
            log.warning("registry.rotation_waits", reason=error.condition_reason, error=str(error))

    def receive(self, message: Message) -> bool:
        """Take an answer; False when the message is none."""
        node_id = self._topics.parse_answer(message.topic)
        if node_id is None:
            return False
        if not message.payload:
            self._answering.discard(node_id)
            return True
        self._answering.add(node_id)
        self._unnoted.pop(node_id, None)  # what it says now counts
        try:
            self._note(node_id, message.payload)
        except NotCommittedError as error:
            self._unnoted[node_id] = message.payload
            self._failed(error)
        return True

    def members_changed(self) -> None:
        """Somebody enrolled or left: have the secrets of all looked at, once for many."""
        self._look_within(_MEMBERS_S)

    def _look_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._look is not None:
            if self._look.when() <= loop.time() + seconds:
                return
            self._look.cancel()
        self._look = loop.call_later(seconds, self._look_now)

    def _look_now(self) -> None:
        self._look = None
        self.wakeup.set()

    async def tell_state(self) -> None:
        """Say at once what all may know; without a session the next one begins with that.

        Raises:
            RegistryUnavailableError: the broker does not answer.
        """
        if self._session is not None:
            payload = self._rotations.state().model_dump_json().encode()
            await self._publish(self._session, self._topics.network, payload)

    async def _tell_secrets(self, session: Session) -> None:
        sealed = self._rotations.sealed_secrets()
        wanted = {self._topics.secrets(node_id): payload for node_id, payload in sealed.items()}
        gone = self._answering - sealed.keys()
        for node_id in gone:  # without a lease: nothing of it is kept
            await session.publish(self._topics.answer(node_id), b"", retain=True)
            await session.publish(self._topics.secrets(node_id), b"", retain=True)
        self._answering -= gone
        for topic in self._published.keys() - wanted.keys() - {self._topics.network}:
            wanted[topic] = b""
        for topic, payload in wanted.items():
            await self._publish(session, topic, payload)

    async def _publish(self, session: Session, topic: str, payload: bytes) -> None:
        if self._published.get(topic) == payload:
            return
        await session.publish(topic, payload, retain=True)
        if payload:
            self._published[topic] = payload
        else:
            self._published.pop(topic, None)
