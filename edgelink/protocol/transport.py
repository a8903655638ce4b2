"""The one place that speaks MQTT: a seam of two small protocols, and its real side on aiomqtt.

A :class:`Session` is one connection: when it is lost, :meth:`Session.messages` raises and a new session has to be
made by whoever owns the retry. MQTT 3.1.1, QoS 1, clean sessions: nothing is kept for an absent client but retained
messages. The fake side is :class:`edgelink.testing.MemoryTransport`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiomqtt

from edgelink.errors import RegistryAuthError, RegistryError, RegistryUnavailableError
from edgelink.protocol.dial import dial
from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES
from edgelink.protocol.tls import explain_tls_error, reason_of
from edgelink.protocol.token import split_address
from edgelink.protocol.topic_table import QOS
from edgelink.tasks import apart
from edgelink.timeouts import timeout

KEEPALIVE_S = 15
METERED_KEEPALIVE_S = 60  # the broker tells of a cut one after one and a half of them
# Ends a connection whose peer silently went away while data is under way, sooner than the kernel's 15 minutes.
_USER_TIMEOUT_MS = 20_000
MAX_QUEUED_MESSAGES = 20_000  # a relay's connect brings one retained status a node
_BAD_CREDENTIALS = frozenset({134, 135})  # paho's translation of MQTT 3.1.1's CONNACK codes 4 and 5
_REFUSED_SUBSCRIPTION = 0x80

# paho and aiomqtt report through exceptions as well; their own lines would repeat every failed try.
_silent = logging.getLogger("edgelink.mqtt")
_silent.setLevel(logging.CRITICAL)


@dataclass(frozen=True)
class Message:
    topic: str
    payload: bytes
    retain: bool = False


@dataclass(frozen=True)
class Login:
    """Who connects. A fixed ``client_id`` makes the broker end this client's half-open former connection at once,
    so that its Last Will comes before, not after, the new connection's first status."""

    username: str
    password: str = field(repr=False)
    client_id: str = ""  # empty: the broker makes one up


class Session(Protocol):
    """One live connection to the broker."""

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Return when the broker has acknowledged; RegistryUnavailableError when it does not in time.

        A publish that the broker's access rules forbid is acknowledged too, and dropped (MQTT 3.1.1).
        """

    async def subscribe(self, *topics: str) -> None:
        """Return when all are granted; RegistryAuthError names those that are not."""

    def messages(self) -> AsyncIterator[Message]:
        """Messages as they come; raises RegistryUnavailableError when the connection is lost."""


class Transport(Protocol):
    """Makes sessions."""

    def connect(
        self,
        address: str,
        login: Login,
        *,
        will: Message | None = None,
        timeout_s: float = 10.0,
        keepalive_s: int = KEEPALIVE_S,
    ) -> AbstractAsyncContextManager[Session]:
        """A session with the broker at ``address`` (``host:port``). Leaving it lets the will be published.

        Raises:
            RegistryUnavailableError: nobody answers there, or not in time.
            RegistryAuthError: the broker refuses the credentials.
            UntrustedError: what answers is not this network's broker.
        """


class MqttTransport:
    """The real transport: TLS with ``context``, which decides whom to trust."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

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
        try:
            host, port = split_address(address)
        except ValueError as error:
            raise RegistryUnavailableError(f"the broker cannot be reached: {error}") from error
        connection: ssl.SSLSocket | None = None
        client = _make_client(host, port, login, will, timeout_s, keepalive_s)
        try:
            try:
                async with timeout(timeout_s):
                    connection = await _dial(host, port, self._context)
                    client.adopt_socket(connection)
                    await apart(client.__aenter__())
            except (OSError, TimeoutError, aiomqtt.MqttError) as error:
                raise _connect_error(address, error, timeout_s) from error
            yield _MqttSession(client, address)
        finally:
            client.hang_up()
            if connection is not None and connection.fileno() != -1:
                connection.close()


class _Client(aiomqtt.Client):
    """aiomqtt's client on a connection that we made.

    aiomqtt 2 dials in a thread that cannot be cancelled, and paho gives a TLS handshake the whole time-out: with a
    stopped broker a daemon would hang on exit. So the connection comes ready-made, by way of a private method of paho.
    """

    def adopt_socket(self, connection: ssl.SSLSocket) -> None:
        self._client._create_socket = lambda: connection  # type: ignore[method-assign]

    def _on_disconnect(self, *arguments: Any, **more: Any) -> None:
        """A connection that ends before the broker's answer is not waited for until the time-out."""
        if self._connected.done():
            super()._on_disconnect(*arguments, **more)
        else:
            self._connected.set_exception(aiomqtt.MqttError("closed by the other side"))

    def hang_up(self) -> None:
        """Close without an MQTT DISCONNECT, so that the broker publishes the will at once."""
        if isinstance(connection := self._client.socket(), ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                connection.unwrap()  # does not block: says goodbye in TLS, lest the broker's log fills with errors
        self._client._sock_close()
        for state in (self._connected, self._disconnected):
            if state.done() and not state.cancelled():
                state.exception()  # seen; or asyncio reports it as never retrieved


def _make_client(
    host: str, port: int, login: Login, will: Message | None, timeout_s: float, keepalive_s: int
) -> _Client:
    return _Client(
        host,
        port,
        username=login.username,
        password=login.password,
        identifier=login.client_id,
        clean_session=True,
        protocol=aiomqtt.ProtocolVersion.V311,
        will=None if will is None else aiomqtt.Will(will.topic, will.payload, qos=QOS, retain=will.retain),
        keepalive=keepalive_s,
        timeout=timeout_s,
        max_queued_incoming_messages=MAX_QUEUED_MESSAGES,
        logger=_silent,
    )


class _MqttSession:
    def __init__(self, client: _Client, address: str) -> None:
        self._client = client
        self._address = address

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        if len(payload) > MAX_PAYLOAD_BYTES:  # the broker would drop it and say nothing
            raise RegistryError(f"{topic}: a payload of {len(payload)} bytes exceeds {MAX_PAYLOAD_BYTES}")
        try:
            await apart(self._client.publish(topic, payload, qos=QOS, retain=retain))
        except (aiomqtt.MqttError, OSError) as error:
            raise self._lost(error) from error

    async def subscribe(self, *topics: str) -> None:
        try:
            granted = await apart(self._client.subscribe([(topic, QOS) for topic in topics]))
        except (aiomqtt.MqttError, OSError) as error:
            raise self._lost(error) from error
        codes = [code if isinstance(code, int) else code.value for code in granted]
        refused = [topic for topic, code in zip(topics, codes, strict=True) if code >= _REFUSED_SUBSCRIPTION]
        if refused:
            raise RegistryAuthError(
                f"the broker at {self._address} refuses the subscription to {', '.join(refused)}",
                hint="the relay may run another version of EdgeLink: compare `edgelink version` there",
            )

    async def messages(self) -> AsyncIterator[Message]:
        try:
            async for message in self._client.messages:
                yield Message(str(message.topic), bytes(message.payload), retain=message.retain)
        except (aiomqtt.MqttError, OSError) as error:
            raise self._lost(error) from error

    def _lost(self, error: Exception) -> RegistryUnavailableError:
        return RegistryUnavailableError(
            f"the connection to the broker at {self._address} is lost: {error}", hint="it is tried again by itself"
        )


async def _dial(host: str, port: int, context: ssl.SSLContext) -> ssl.SSLSocket:
    """TCP and TLS handshake without blocking the event loop; cancel-safe."""
    plain = await dial(host, port)
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
        connection = context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)
    except BaseException:
        plain.close()
        raise
    try:
        await _handshake(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def _handshake(connection: ssl.SSLSocket) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection.do_handshake()
        except ssl.SSLWantReadError:
            await _wait_for(connection, loop.add_reader, loop.remove_reader)
        except ssl.SSLWantWriteError:
            await _wait_for(connection, loop.add_writer, loop.remove_writer)
        else:
            return


async def _wait_for(connection: ssl.SSLSocket, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
    ready = asyncio.Event()
    add(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        with contextlib.suppress(ValueError):
            remove(connection.fileno())


def _connect_error(address: str, error: Exception, timeout_s: float) -> RegistryError:
    if isinstance(error, ssl.SSLError):
        return explain_tls_error(error, address)
    if getattr(getattr(error, "rc", None), "value", None) in _BAD_CREDENTIALS:
        return RegistryAuthError(
            f"the broker at {address} does not accept our credentials",
            hint="this node (or token) may have been revoked: `edgelink registry list` on the relay shows it",
        )
    if isinstance(error, TimeoutError):
        why = f"no answer within {timeout_s:g} s"
    else:
        why = reason_of(error) if isinstance(error, OSError) else str(error) or repr(error)
    return RegistryUnavailableError(
        f"the broker at {address} cannot be reached: {why}",
        hint="check that the relay is up and that its port is open to this node",
    )
