"""The registry's side of a change of the secret on MQTT: tells the nodes, hears how far they are, changes at the hour.

State, not commands: what is published is always what the database says, so that a message that is lost, doubled or
late does no harm, and a daemon that was killed goes on where the database stands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from edgelink.clock import Clock
from edgelink.errors import RegistryError, UntrustedError
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.protocol.refusals import Refusals
from edgelink.protocol.statuses import StatusBoard
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Session
from edgelink.reconcile import Wakeup
from edgelink.relay.rotations import Rotations

_LOOK_S = 30.0
_CHANGING_S = 1.0  # robots may stop to hold a change up
_MEMBERS_S = 0.5  # a thousand may enrol at once
_STATUSES_S = 0.05  # and speak
_AGAIN_S = 5.0  # after the database could not be written
_SOON_S = 0.01  # an hour that has just come

log = get_logger("registry")


class RotationDriver:
    """Runs for the length of each session in :meth:`run`."""

    def __init__(
        self,
        rotations: Rotations,
        topics: Topics,
        refusals: Refusals,
        clock: Clock,
        statuses: StatusBoard,
        hold_s: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        """Arguments that need a word.

        hold_s: how long a change may have to wait for robots in motion at most, as far as is known.
        on_change: called at each look, before the nodes are told.
        """
        self.wakeup = Wakeup()
        self._rotations = rotations
        self._topics = topics
        self._refusals = refusals
        self._statuses = statuses
        self._hold_s = hold_s
        self._on_change = on_change
        self._session: Session | None = None
        self._published: dict[str, bytes] = {}
        self._look: asyncio.TimerHandle | None = None
        self._outage = Outage(clock)  # of the database

    async def run(self, session: Session) -> NoReturn:
        """Keep the session's nodes told, and the change going; ends with the session, or by cancellation."""
        self._session = session
        self._published.clear()
        try:
            while True:
                is_done = self._go_on()
                await self.tell_state()
                await self._tell_secrets(session)
                left_s = self._rotations.left_s()
                if not is_done:
                    await self.wakeup.wait(_AGAIN_S)
                else:
                    await self.wakeup.wait(_LOOK_S if left_s is None else min(_CHANGING_S, max(0.0, left_s) + _SOON_S))
        finally:
            self._session = None

    def look(self) -> None:
        """Look now; from anywhere: this neither reads nor writes."""
        self.wakeup.set()

    def _go_on(self) -> bool:
        """Put down what nodes say, and change when it is time. Return False while the database fails."""
        try:
            self._rotations.note(self._take_words())
            if self._rotations.record is not None:
                self._rotations.advance(is_held=self._hold_s() > 0)
            self._on_change()
        except RegistryError as error:
            if self._outage.is_news(error.condition_reason):
                log.warning("registry.rotation_waits", reason=error.condition_reason, error=str(error))
            return False
        if (lasted_s := self._outage.over()) is not None:
            log.info("registry.rotation_goes_on", lasted_s=lasted_s)
        return True

    def _take_words(self) -> dict[str, int]:
        """Return on which secret each node says that it runs. Learn what this registry has forgotten of itself."""
        for node_id, status in self._statuses.statuses.items():
            if status.known_network is not None:
                try:
                    self._rotations.recall(status.known_network)
                except UntrustedError as error:
                    self._refusals.note(error.condition_reason, node_id, what="known_network", error=str(error))
        return {node_id: status.secret_epoch for node_id, status in self._statuses.statuses.items()}

    def statuses_changed(self) -> None:
        """A node says something else of the secret: have it noted, once for many."""
        self._look_within(_STATUSES_S)

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
        self.look()

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
