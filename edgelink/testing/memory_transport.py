"""An MQTT broker in memory: retained messages, wills, credentials and outages, and no socket.

Enough of Mosquitto's dynamic security is played to create and delete users; access rules are not enforced here: the
tests that show them run against the real broker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from edgelink.errors import RegistryAuthError, RegistryUnavailableError
from edgelink.protocol.topics import topic_of
from edgelink.protocol.transport import KEEPALIVE_S, Login, Message, Session

_CONTROL = "$CONTROL/dynamic-security/v1"


class MemoryBroker:
    """The broker that any number of :class:`MemoryTransport` connect to."""

    def __init__(self, passwords: dict[str, str] | None = None) -> None:
        self.passwords = passwords  # None: everybody is let in
        self.descriptions: dict[str, str] = {}
        self.retained: dict[str, bytes] = {}
        self.published: list[Message] = []
        self.connects: list[str] = []  # usernames, in order, whether accepted or not
        self.is_up = True
        self._sessions: set[MemorySession] = set()

    def stop(self) -> None:
        """Die: every session is lost, retained messages are gone, new sessions are refused."""
        self.is_up = False
        self.retained.clear()
        for session in list(self._sessions):
            session.lose()

    def start(self) -> None:
        self.is_up = True

    def add_user(self, username: str, password: str = "", *, fingerprint: str = "") -> None:
        """A user whom the broker knows from its start."""
        if self.passwords is None:
            self.passwords = {}
        self.passwords[username] = password
        self.descriptions[username] = fingerprint

    def kick(self, username: str) -> None:
        for session in [s for s in self._sessions if s.login.username == username]:
            session.lose()

    def publish(self, message: Message) -> None:
        """Deliver to all subscribers; also what a test uses to speak as somebody else."""
        self.published.append(message)
        if message.topic == _CONTROL:
            self._control(json.loads(message.payload)["commands"])
            return
        if message.retain:
            self.retained[message.topic] = message.payload
            if not message.payload:
                del self.retained[message.topic]
        for session in list(self._sessions):
            session.offer(Message(message.topic, message.payload))

    def add(self, session: MemorySession) -> None:
        if not self.is_up:
            raise RegistryUnavailableError("the broker in memory is stopped")
        if self.passwords is not None and self.passwords.get(session.login.username) != session.login.password:
            raise RegistryAuthError("the broker in memory does not accept these credentials")
        self._sessions.add(session)

    def remove(self, session: MemorySession) -> None:
        if session in self._sessions:
            self._sessions.discard(session)
            if session.will is not None and self.is_up:
                self.publish(session.will)

    def _control(self, commands: Iterable[dict[str, Any]]) -> None:
        responses = [self._execute(command) for command in commands]
        payload = json.dumps({"responses": responses}).encode()
        for session in list(self._sessions):
            session.offer(Message(f"{_CONTROL}/response", payload))

    def _execute(self, command: dict[str, Any]) -> dict[str, Any]:
        response = {"command": command["command"], "correlationData": command.get("correlationData", "")}
        passwords = self.passwords if self.passwords is not None else {}
        username = command.get("username", "")
        match command["command"]:
            case "listClients":
                clients = [{"username": u, "textdescription": self.descriptions.get(u, "")} for u in passwords]
                response["data"] = {"totalCount": len(clients), "clients": clients}
            case "createClient":
                passwords[username] = command["password"]
                self.descriptions[username] = command.get("textdescription", "")
            case "deleteClient" if username not in passwords:
                response["error"] = "Client not found"
            case "deleteClient":
                del passwords[username]
                self.kick(username)
        return response


class MemorySession:
    """One side of a connection to a :class:`MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, login: Login, will: Message | None) -> None:
        if will is not None:
            _check(will.topic, retain=will.retain)
        self.login = login
        self.will = will
        self._broker = broker
        self._filters: list[str] = []
        self._inbox: asyncio.Queue[Message | None] = asyncio.Queue()
        self._is_lost = False

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        await asyncio.sleep(0)
        if self._is_lost:
            raise RegistryUnavailableError("the session in memory is lost")
        _check(topic, retain=retain)
        self._broker.publish(Message(topic, payload, retain))

    async def subscribe(self, *topics: str) -> None:
        await asyncio.sleep(0)
        self._filters += topics
        for topic, payload in self._broker.retained.items():
            if any(matches(pattern, topic) for pattern in topics):
                self._inbox.put_nowait(Message(topic, payload, retain=True))

    async def messages(self) -> AsyncIterator[Message]:
        while (message := await self._inbox.get()) is not None:
            yield message
        raise RegistryUnavailableError("the session in memory is lost")

    def offer(self, message: Message) -> None:
        if any(matches(pattern, message.topic) for pattern in self._filters):
            self._inbox.put_nowait(message)

    def lose(self) -> None:
        self._is_lost = True
        self._inbox.put_nowait(None)
        self._broker.remove(self)


class MemoryTransport:
    """A :class:`edgelink.protocol.transport.Transport` by address: each address is a broker, or nobody."""

    def __init__(self, brokers: dict[str, MemoryBroker]) -> None:
        self._brokers = brokers
        self.dialled: list[str] = []
        self.keepalives_s: list[int] = []

    @asynccontextmanager
    async def connect(
        self,
        address: str,
        login: Login,
        *,
        will: Message | None = None,
        timeout_s: float = 10.0,
        keepalive_s: int = KEEPALIVE_S,
    ) -> AsyncIterator[Session]:
        self.dialled.append(address)
        self.keepalives_s.append(keepalive_s)
        await asyncio.sleep(0)
        broker = self._brokers.get(address)
        if broker is None:
            raise RegistryUnavailableError(f"nobody listens at {address}")
        session = MemorySession(broker, login, will)
        broker.connects.append(login.username)
        broker.add(session)
        try:
            yield session
        finally:
            broker.remove(session)


def matches(pattern: str, topic: str) -> bool:
    """MQTT's rule for ``+``; no topic of ours is subscribed to with ``#``."""
    wanted, levels = pattern.split("/"), topic.split("/")
    return len(wanted) == len(levels) and all(w in ("+", level) for w, level in zip(wanted, levels, strict=True))


def _check(topic: str, *, retain: bool) -> None:
    """Whoever publishes otherwise than the table of topics says is found by the tests of whoever does so."""
    known = topic_of(topic)
    assert known is None or known.is_retained is retain, f"{topic}: not as the table of topics says"
