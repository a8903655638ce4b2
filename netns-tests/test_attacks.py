"""Attacks on the broker and the registry behind it: nothing gets through, nothing ends, memory stays, nodes enrol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiomqtt
import paho.mqtt.properties as mqtt5
import pytest
from paho.mqtt.packettypes import PacketTypes
from registry_relay import Node, Relay, serving_relay, soon

from edgelink.errors import TokenError, UntrustedError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import NodeStatus, Role
from edgelink.protocol.tls import client_context
from edgelink.protocol.topics import ANY
from edgelink.protocol.transport import Login
from edgelink.relay.dynamic_security import ADMIN, CONTROL_TOPIC
from edgelink.relay.tokens import TokenRequest

pytestmark = pytest.mark.timeout(180)

_MAX_GROWTH_MB = 24.0


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with serving_relay() as relay:
        yield relay


def memory_mb(pid: int | None) -> float:
    status = Path(f"/proc/{pid or 'self'}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


@contextlib.asynccontextmanager
async def unharmed(relay: Relay) -> AsyncIterator[None]:
    """Around an attack: the same broker goes on, and the registry enrols as before, both hardly larger."""
    await relay.join("before")
    pid, broker_mb, registry_mb = relay.broker.pid, memory_mb(relay.broker.pid), memory_mb(None)
    yield
    async with asyncio.timeout(30):
        after = await relay.join("after")
    async with after.running():
        await soon(lambda: after.key.node_id in relay.service.statuses)
    assert relay.broker.pid == pid, "the broker was started anew"
    assert memory_mb(pid) - broker_mb < _MAX_GROWTH_MB
    assert memory_mb(None) - registry_mb < _MAX_GROWTH_MB, "of the registry, and of the attacker beside it"


async def test_a_client_id_is_not_found(relay: Relay) -> None:
    """What others know of a node (id, name, hostname) is not its client id: nobody ends its session with it.

    With the true id, which follows from the password, the broker would.
    """
    victim = await relay.join("edge-1")
    attacker = await relay.join("edge-2")
    async with victim.running():
        await soon(lambda: victim.key.node_id in relay.service.statuses)
        sessions = victim.sessions
        node_id = victim.key.node_id
        for guess in (node_id, node_id[:23], "edge-1", ADMIN, victim.membership.secrets.broker_username, "", "a"):
            login = Login(attacker.login.username, attacker.login.password, guess)
            async with relay.session(login) as session:
                await session.publish(relay.topics.status(attacker.key.node_id), b"{}")
        assert victim.client.is_connected
        assert victim.sessions == sessions
        known = Login(attacker.login.username, attacker.login.password, victim.client._login().client_id)
        async with relay.session(known):
            await soon(lambda: victim.sessions > sessions)


async def test_huge_connect(relay: Relay) -> None:
    """A CONNECT that announces 256 MB is not waited for, and takes no memory."""
    async with unharmed(relay):
        header = b"\x10\xff\xff\xff\x7f" + b"\x00\x04MQTT\x04\xc2\x00\x3c"
        sent = await asyncio.to_thread(pour, relay, header, b"\0" * 65536, 256 * 1024 * 1024)
        assert sent < 64 * 1024 * 1024


async def test_huge_publish(relay: Relay) -> None:
    """Nor is a message larger than ours from someone who is in."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    async with unharmed(relay):
        connect = connect_packet("any", token.broker_username, token.secret)
        huge = connect + b"\x32\xff\xff\xff\x7f\x00\x01t"
        sent = await asyncio.to_thread(pour, relay, huge, b"\0" * 65536, 256 * 1024 * 1024)
        assert sent < 64 * 1024 * 1024


def pour(relay: Relay, first: bytes, chunk: bytes, limit: int) -> int:
    """Send until the other side ends it; how much that was."""
    with tls(relay) as connection:
        sent = 0
        with contextlib.suppress(OSError):
            connection.sendall(first)
            while sent < limit:
                sent += connection.send(chunk)
        return sent


@contextlib.contextmanager
def tls(relay: Relay) -> Iterator[ssl.SSLSocket]:
    context = client_context(relay.keys.ca_pem, relay.keys.network_id)
    plain = socket.create_connection(("127.0.0.1", relay.port), timeout=20)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        yield connection


def connect_packet(client_id: str, username: str, password: str) -> bytes:
    def text(value: str) -> bytes:
        return len(value).to_bytes(2) + value.encode()

    body = b"\x00\x04MQTT\x04\xc2\x00\x3c" + text(client_id) + text(username) + text(password)
    assert len(body) < 128 * 128
    return bytes((0x10, len(body) & 127 | 128, len(body) >> 7)) + body


async def test_half_open_connections(relay: Relay) -> None:
    """500 who connect and say nothing, or half of a TLS greeting, keep nobody out."""
    async with unharmed(relay):
        connections = []
        try:
            for number in range(500):
                connection = socket.create_connection(("127.0.0.1", relay.port), timeout=20)
                connections.append(connection)
                if number % 2:
                    connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(32))
            async with asyncio.timeout(30):
                between = await relay.join("between")
            assert between.membership.lease.hostname == "between"
        finally:
            for connection in connections:
                connection.close()


async def test_random_bytes(relay: Relay) -> None:
    """Noise inside of TLS, in every packet type, before and after a good CONNECT."""
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    connect = connect_packet("noise", token.broker_username, token.secret)

    def shout() -> None:
        for number in range(256):
            with contextlib.suppress(OSError), tls(relay) as connection:
                prefix = connect if number % 2 else b""
                connection.sendall(prefix + bytes((number, 16)) + os.urandom(16) + os.urandom(number))

    async with unharmed(relay):
        await asyncio.to_thread(shout)


@pytest.mark.parametrize("of", ["token", "edge"])
async def test_mqtt_5_opens_no_door(relay: Relay, of: str) -> None:
    """Shared subscriptions, aliases, delayed wills, long sessions: MQTT 5 gives no right that 3.1.1 does not."""
    victim = await relay.join("edge-1")
    login = await login_of(relay, of)
    topics, node_id = relay.topics, victim.key.node_id
    lie = NodeStatus(node_id=node_id, online=True, phase="Lie").model_dump_json().encode()
    async with victim.running(), unharmed(relay):
        await soon(lambda: node_id in relay.service.statuses)
        will_properties = mqtt5.Properties(PacketTypes.WILLMESSAGE)
        will_properties.WillDelayInterval = 0
        will = aiomqtt.Will(topics.status(node_id), lie, qos=1, retain=True, properties=will_properties)
        tried = False
        with contextlib.suppress(
            aiomqtt.MqttError
        ):  # it does not say goodbye, so that its will is published, or is not
            async with mqtt5_client(relay, login, will=will) as client:
                await without_rights(client, relay, victim, lie)
                tried = True
                client._client._sock_close()
        assert tried
        await relay.join("later")  # behind all that was sent before
        assert relay.service.statuses[node_id].phase != "Lie"
        assert victim.client.is_connected
        assert victim.client.ignored_messages == 0


async def without_rights(client: aiomqtt.Client, relay: Relay, victim: Node, lie: bytes) -> None:
    """Subscribe to what is others', shared and not; publish on their topics, by an alias and not."""
    topics, node_id = relay.topics, victim.key.node_id
    for filter_ in ("#", "+/#", topics.status(ANY), topics.enrol_request(ANY, ANY), "$SYS/#", "$CONTROL/#"):
        for shared in (filter_, f"$share/group/{filter_}"):
            (granted,) = await client.subscribe(shared, qos=1)
            assert granted.value >= 128, f"{shared} is granted"
    alias = mqtt5.Properties(PacketTypes.PUBLISH)
    alias.TopicAlias = 1
    for topic in (topics.status(node_id), topics.directory, topics.lease(node_id), CONTROL_TOPIC):
        for properties in (None, alias):
            with contextlib.suppress(aiomqtt.MqttCodeError):
                await client.publish(topic, lie, qos=1, retain=True, properties=properties)


async def login_of(relay: Relay, of: str) -> Login:
    if of == "edge":
        return (await relay.join("edge-2")).login
    token = await relay.service.create_token(TokenRequest(Role.EDGE))
    return Login(token.broker_username, token.secret)


def mqtt5_client(relay: Relay, login: Login, **options: Any) -> aiomqtt.Client:
    session = mqtt5.Properties(PacketTypes.CONNECT)
    session.SessionExpiryInterval = 0xFFFFFFFF
    return aiomqtt.Client(
        "127.0.0.1",
        relay.port,
        username=login.username,
        password=login.password,
        protocol=aiomqtt.ProtocolVersion.V5,
        clean_start=False,
        properties=session,
        tls_context=client_context(relay.keys.ca_pem, relay.keys.network_id),
        **options,
    )


async def test_a_flood_of_enrolments(relay: Relay) -> None:
    """One token in wrong hands: junk and true requests by the thousand are held back; others enrol meanwhile."""
    stolen = await relay.service.create_token(TokenRequest(Role.EDGE, uses=1))
    async with unharmed(relay), relay.session(Login(stolen.broker_username, stolen.secret)) as session:
        for number in range(100):
            node_id = NodeKey.generate().node_id
            topic = relay.topics.enrol_request(stolen.token_id, node_id)
            await asyncio.gather(*(session.publish(topic, os.urandom(200 + number)) for _ in range(30)))
        async with asyncio.timeout(30):
            await relay.join("meanwhile")
        assert relay.service.refusals.counts["RateLimited"] > 2000
        assert relay.service.refusals.counts["Malformed"] > 0


async def test_another_networks_token(relay: Relay) -> None:
    """It opens nothing here, neither as it is nor with this network's names and certificates in it; and it hears so
    before its secret is sent."""
    async with serving_relay() as other:
        foreign = await other.service.create_token(TokenRequest(Role.EDGE))
    own = await relay.service.create_token(TokenRequest(Role.EDGE))
    here = replace(foreign, addresses=own.addresses)
    for token in (here, replace(here, network_id=own.network_id), replace(here, ca_sha256=own.ca_sha256)):
        with pytest.raises(UntrustedError):
            await Node.enrol(token, "edge-1")
    with pytest.raises(TokenError, match=foreign.token_id):
        await Node.enrol(replace(own, token_id=foreign.token_id, secret=foreign.secret), "edge-1")
    with pytest.raises(UntrustedError):  # the same certificates, under the key of another registry
        await Node.enrol(replace(own, registry_verify_key=foreign.registry_verify_key), "edge-1")
    assert [lease.hostname for lease in relay.store.leases()] == ["edge-1"], "by a good token, and of no use to it"
