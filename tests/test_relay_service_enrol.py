"""The registry's side: what it says, whom it lets in and in which order, and how it recovers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from registry_world import DEFAULT_CIDR, World
from structlog.testing import capture_logs

from edgelink.daemon.leave import tell_left
from edgelink.errors import ConfigError, RegistryAuthError, RegistryError, TokenError
from edgelink.member import enrol_request
from edgelink.member.enrol_request import Machine, exchange, request_membership
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership, refusal
from edgelink.protocol.payloads import Directory, EnrolReply, EnrolRequest, Envelope, NodeStatus, Role
from edgelink.protocol.token import Token
from edgelink.protocol.topics import ANY, Topics
from edgelink.protocol.transport import Login, Message
from edgelink.relay.dynamic_security import ADMIN, CONTROL_TOPIC, fingerprint
from edgelink.relay.registry_service import RegistryService
from edgelink.relay.tokens import TokenRequest
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport, beside, eventually
from edgelink.testing.registry_service import LoneService

ADDRESS = "127.0.0.1:8883"


class FakeBroker:
    """The managed broker's process: in memory, with the users of the store at each start."""

    address = ADDRESS
    login = Login(ADMIN, "the admin's password")

    def __init__(self, memory: MemoryBroker) -> None:
        self.memory = memory
        self.restarts = 0

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def restart(self) -> None:
        self.restarts += 1
        self.memory.stop()
        self.memory.start()


class Relay:
    """A service on a registry and a broker in memory."""

    def __init__(self, directory: Path, cidr: IPv4Network = DEFAULT_CIDR) -> None:
        self.world = World(directory, cidr=cidr)
        self.topics = Topics(self.world.keys.network_id)
        self.memory = MemoryBroker({ADMIN: FakeBroker.login.password})
        self.broker = FakeBroker(self.memory)
        self.transport = MemoryTransport({ADDRESS: self.memory})
        self.service = LoneService(
            authority=self.world.authority,
            store=self.world.store,
            network_id=self.world.keys.network_id,
            broker=self.broker,
            transport=self.transport,
            clock=self.world.clock,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RegistryService]:
        async with beside(self.service.run()):
            await asyncio.wait_for(self.service.ready.wait(), 20)
            yield self.service

    async def enrol(
        self, token: Token, hostname: str = "edge-1", key: NodeKey | None = None, role: Role = Role.EDGE
    ) -> EnrolReply:
        request = self.world.request(key or NodeKey.generate(), token, hostname, role=role)
        async with self.transport.connect(ADDRESS, Login(token.broker_username, token.secret)) as session:
            return await exchange(session, token, request, self.world.clock, 5)

    @property
    def directory(self) -> Directory:
        payload = self.memory.retained[self.topics.directory]
        return Directory.model_validate_json(Envelope.model_validate_json(payload).body)


@pytest.fixture
def relay(tmp_path: Path) -> Relay:
    return Relay(tmp_path)


async def test_publishes_what_everyone_may_know(relay: Relay) -> None:
    """From the start, directory and each node's lease are retained on the broker."""
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE))
        reply = await relay.enrol(token)
        assert reply.lease is not None
        lease = relay.world.store.leases()[0]
        await relay.world.clock.advance(1)  # published at most once a second
        assert relay.directory.entry(lease.node_id) is not None
        retained = relay.memory.retained[relay.topics.lease(lease.node_id)]
        assert Envelope.model_validate_json(retained) == reply.lease


async def test_a_node_that_leaves_has_left_for_all_until_it_is_heard_again(relay: Relay) -> None:
    """Also for a broker that has forgotten its word."""
    async with relay.running() as service:
        token, key = await service.create_token(TokenRequest(Role.EDGE)), NodeKey.generate()
        reply = await relay.enrol(token, key=key)
        await relay.world.clock.advance(1)
        joined = Membership.from_reply(reply, token=token, key=key, ca_pem=relay.world.keys.ca_pem)
        membership = joined.model_copy(update={"addresses": ("192.0.2.1:8883", ADDRESS)})
        machine = cast(Machine, SimpleNamespace(transport=lambda _context: relay.transport))
        assert await tell_left(membership, machine)
        await eventually(lambda: relay.directory.left == (key.node_id,))
        assert [entry["action"] for entry in relay.world.store.history()][-1] == "left"
        assert not await tell_left(membership.model_copy(update={"addresses": ("192.0.2.1:8883",)}), machine)
    relay.memory.retained.clear()
    async with relay.running():
        await eventually(lambda: relay.topics.directory in relay.memory.retained)
        assert relay.directory.left == (key.node_id,)
        login = Login(membership.secrets.broker_username, membership.secrets.broker_password)
        topic, is_back = relay.topics.status(key.node_id), NodeStatus(node_id=key.node_id, online=True, phase="Ready")
        async with relay.transport.connect(ADDRESS, login) as session:
            await session.publish(topic, is_back.model_dump_json().encode(), retain=True)
            await eventually(lambda: relay.directory.left == ())


async def test_user_before_reply(relay: Relay) -> None:
    """A token opens the broker when it is handed out; a node's user exists before the node hears of its lease."""
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE))
        assert relay.memory.passwords is not None
        assert relay.memory.passwords[token.broker_username] == token.secret
        key = NodeKey.generate()
        await relay.enrol(token, key=key)
        reply_topic = relay.topics.enrol_reply(token.token_id, key.node_id)
        order = [
            "user" if message.topic == CONTROL_TOPIC else "reply"
            for message in relay.memory.published
            if message.topic == reply_topic
            or (message.topic == CONTROL_TOPIC and key.node_id.encode() in message.payload)
        ]
        assert order[:1] == ["user"]
        assert "reply" in order


async def test_refusal_is_a_reply(relay: Relay) -> None:
    """Who is refused is told why; no user is made for it."""
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE))
        await relay.enrol(token)
        key = NodeKey.generate()
        reply = await relay.enrol(token, "edge-2", key)
        assert isinstance(refusal(reply), TokenError)
        assert relay.memory.passwords is not None
        assert key.node_id not in relay.memory.passwords


async def test_a_request_at_which_the_registry_fails_is_refused_alone(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By something that nobody thought of: nothing of it stays, the others that came with it are let in, and the daemon
    goes on."""
    authority, keys = relay.world.authority, [NodeKey.generate() for _ in range(3)]
    sealed_secrets = authority._sealed_secrets

    def fails_at_one(node_id: str, verify_key: str, password: str) -> str:
        if node_id == keys[1].node_id:
            raise ValueError("nobody thought of this")
        return sealed_secrets(node_id, verify_key, password)

    monkeypatch.setattr(authority, "_sealed_secrets", fails_at_one)
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE, uses=4))
        for number, key in enumerate(keys):  # at once, so that they are one batch
            request = relay.world.request(key, token, f"edge-{number}").model_dump_json().encode()
            service._enrolments.receive(Message(relay.topics.enrol_request(token.token_id, key.node_id), request))
        topics = [relay.topics.enrol_reply(token.token_id, key.node_id) for key in keys]
        await eventually(lambda: {message.topic for message in relay.memory.published} >= set(topics))
        told = {message.topic: message.payload for message in relay.memory.published}
        replies = [EnrolReply.model_validate_json(told[topic]) for topic in topics]
        assert [reply.error_reason for reply in replies] == [None, "RegistryFailed", None]
        assert isinstance(refusal(replies[1]), RegistryError)
        assert {lease.node_id for lease in relay.world.store.leases()} == {keys[0].node_id, keys[2].node_id}
        assert {user.subject for user in relay.world.store.broker_users() if user.kind == "node"} == {
            keys[0].node_id,
            keys[2].node_id,
        }
        assert (await relay.enrol(token, "edge-3")).lease is not None


async def test_junk_is_ignored(relay: Relay) -> None:
    """Malformed requests, requests on another node's topic, and statuses of others change nothing."""
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE))
        key, other = NodeKey.generate(), NodeKey.generate()
        request = relay.world.request(key, token).model_dump_json().encode()
        topic = relay.topics.enrol_request(token.token_id, other.node_id)
        lie = NodeStatus(node_id=other.node_id, online=True).model_dump_json().encode()
        for message in (
            Message(topic, b"\xff"),
            Message(topic, b"{}"),
            Message(topic, request),
            Message(relay.topics.status(key.node_id), lie),
            Message(relay.topics.status(key.node_id), b"junk"),
        ):
            relay.memory.publish(message)
        assert (await relay.enrol(token, key=key)).lease is not None  # served after all of them
        assert len(relay.world.store.leases()) == 1
        assert service.statuses == {}


async def test_statuses(relay: Relay) -> None:
    """The newest status of each node is known; a released node's is forgotten and cleared on the broker."""
    async with relay.running() as service:
        reply = await relay.enrol(await service.create_token(TokenRequest(Role.EDGE)))
        assert reply.lease is not None
        (lease,) = relay.world.store.leases()
        topic = relay.topics.status(lease.node_id)
        status = NodeStatus(node_id=lease.node_id, online=True, phase="Ready")
        relay.memory.publish(Message(topic, status.model_dump_json().encode(), retain=True))
        await eventually(lambda: service.statuses == {lease.node_id: status})
        await service.release("edge-1")
        await eventually(lambda: service.statuses == {})
        assert topic not in relay.memory.retained
        assert relay.topics.lease(lease.node_id) not in relay.memory.retained
        assert relay.directory.entries == ()
        assert relay.memory.passwords is not None
        assert lease.node_id not in relay.memory.passwords


async def test_expired_and_revoked_tokens(relay: Relay) -> None:
    """A token that expired or was revoked is taken off the broker."""
    async with relay.running() as service:
        expiring = await service.create_token(TokenRequest(Role.EDGE, ttl_s=60))
        revoked = await service.create_token(TokenRequest(Role.EDGE))
        await service.revoke_token(revoked.token_id)
        with pytest.raises(RegistryAuthError):
            await relay.enrol(revoked)
        await relay.world.clock.advance(timedelta(seconds=61).total_seconds())
        await service.refresh()
        with pytest.raises(RegistryAuthError):
            await relay.enrol(expiring)


async def test_outage(relay: Relay) -> None:
    """After the broker was away everything is published again, and a token made meanwhile works."""
    async with relay.running() as service:
        await relay.enrol(await service.create_token(TokenRequest(Role.EDGE)))
        relay.memory.stop()
        await eventually(lambda: not service.is_connected)
        token = await service.create_token(TokenRequest(Role.EDGE))
        assert relay.topics.directory not in relay.memory.retained
        relay.memory.start()
        await relay.world.clock.advance(5)
        await eventually(lambda: service.is_connected)
        assert len(relay.directory.entries) == 1
        assert (await relay.enrol(token, "edge-2")).lease is not None
        assert relay.broker.restarts == 0
        assert service.last_error is None


async def test_broker_out_of_step(relay: Relay) -> None:
    """Users that the broker does not know and whose passwords nobody knows any more make it start with fresh files."""
    relay.world.token()  # made by a daemon that was killed before it told the broker

    async def with_fresh_files() -> None:
        await FakeBroker.restart(relay.broker)
        relay.memory.passwords = {ADMIN: FakeBroker.login.password}
        for user in relay.world.store.broker_users():
            relay.memory.add_user(user.username, fingerprint=user_fingerprint(relay, user.username))

    relay.broker.restart = with_fresh_files  # type: ignore[method-assign]
    async with beside(relay.service.run()):
        await eventually(lambda: relay.broker.restarts == 1)
        await relay.world.clock.advance(5)
        await eventually(relay.service.ready.is_set)
        assert relay.broker.restarts == 1


def user_fingerprint(relay: Relay, username: str) -> str:
    user = next(user for user in relay.world.store.broker_users() if user.username == username)
    return fingerprint(user, relay.topics)


async def test_strangers_on_the_broker_are_removed(relay: Relay) -> None:
    """A user whom the store does not know is deleted as soon as the registry is back."""
    assert relay.memory.passwords is not None
    relay.memory.passwords["stranger"] = "let me in, please"
    async with relay.running():
        assert "stranger" not in relay.memory.passwords
        assert ADMIN in relay.memory.passwords


async def test_request_is_repeated(relay: Relay) -> None:
    """A request that got lost while the daemon restarted is sent again, and answered once."""
    token = relay.world.token()
    known = user_fingerprint(relay, token.broker_username)
    relay.memory.add_user(token.broker_username, token.secret, fingerprint=known)
    key = NodeKey.generate()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(relay.enrol(token, key=key))
        await eventually(lambda: any("/request" in message.topic for message in relay.memory.published))
        async with relay.running():
            assert (await waiting).lease is not None
    assert len(relay.world.store.leases()) == 1


async def test_enrol_topics_hold_no_secret(relay: Relay) -> None:
    """What passes the broker on its way to a node is sealed: no secret of the network or the node is in it."""
    async with relay.running() as service:
        token = await service.create_token(TokenRequest(Role.EDGE))
        key = NodeKey.generate()
        reply = await relay.enrol(token, key=key)
        membership = relay.world.membership(key, token, relay.world.enrol(key, token))
        assert reply.sealed_secrets
    secrets = (token.secret, membership.secrets.network_secret, membership.secrets.broker_password)
    for message in relay.memory.published:
        if message.topic != CONTROL_TOPIC:
            assert not any(secret.encode() in message.payload for secret in secrets), message.topic


async def test_unusable_hostname(relay: Relay) -> None:
    """A hostname that the network cannot use is refused before anything is sent."""
    with pytest.raises(ConfigError, match="Not_A_Host"):
        await request_membership(
            relay.world.token(), NodeKey.generate(), hostname="Not_A_Host", role=None, clock=relay.world.clock
        )


async def test_a_request_says_when_it_was_made(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the node's clock, and signed: the registry tells an old request from a new one by that."""
    token, key = relay.world.token(), NodeKey.generate()
    asked: list[EnrolRequest] = []

    async def fetch(*_: object) -> str:
        return relay.world.keys.ca_pem

    async def answer(_session: object, _token: object, request: Envelope, *_: object) -> EnrolReply:
        asked.append(open_envelope(request, Kind.ENROL_REQUEST, EnrolRequest, key.verify_key_b64))
        return relay.world.authority.enrol(request, token.token_id).reply

    broker = MemoryBroker()
    monkeypatch.setattr(enrol_request, "exchange", answer)
    machine = SimpleNamespace(pinned_ca=fetch, transport=lambda _: MemoryTransport({token.addresses[0]: broker}))
    await request_membership(token, key, machine=machine, hostname="edge-1", role=None, clock=relay.world.clock)
    assert [request.asked_at for request in asked] == [relay.world.clock.now()]


@pytest.mark.parametrize(
    ("ahead_s", "is_told"), [(0.0, False), (-50.0, False), (61.0, True), (-172800.0, True), (-1.7e9, True)]
)
async def test_a_clock_that_is_off_is_told_by_whom_joins(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, ahead_s: float, *, is_told: bool
) -> None:
    """It joins all the same: boards without a battery boot in 1970."""
    token, key = relay.world.token(), NodeKey.generate()
    own_clock = FakeClock(relay.world.clock.now() + timedelta(seconds=ahead_s))

    async def fetch(*_: object) -> str:
        return relay.world.keys.ca_pem

    async def answer(_session: object, _token: object, request: Envelope, *_: object) -> EnrolReply:
        return relay.world.authority.enrol(request, token.token_id).reply

    monkeypatch.setattr(enrol_request, "exchange", answer)
    transport = MemoryTransport({token.addresses[0]: MemoryBroker()})
    machine = SimpleNamespace(pinned_ca=fetch, transport=lambda _: transport)
    with capture_logs() as logs:
        await request_membership(token, key, machine=machine, hostname="edge-1", role=None, clock=own_clock)
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["node.clock_off"] * is_told


async def test_control_commands_are_batched(relay: Relay) -> None:
    """A whole fleet's users fit through the broker's size limit: no message holds too many commands."""
    async with relay.running() as service:
        for number in range(50):
            token = relay.world.token(hostname=f"edge-{number}")
            service._passwords[token.broker_username] = token.secret
        await service.refresh()
    commands = [json.loads(m.payload)["commands"] for m in relay.memory.published if m.topic == CONTROL_TOPIC]
    assert sum(len(batch) for batch in commands) >= 100  # a role and a user each
    assert max(len(batch) for batch in commands) <= 60
    assert relay.topics.status(ANY) not in relay.memory.retained
