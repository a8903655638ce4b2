"""A node asks the registry: what is answered, what is refused, and what a broker in wrong hands can make of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from registry_world import ADDRESSES, World
from telling import refuses
from test_relay_service_enrol import ADDRESS
from test_relay_service_enrol import Relay as ServingRelay

from edgelink.errors import ConfigError, RegistryAuthError, RegistryError, RegistryUnavailableError
from edgelink.member.enrol_request import exchange
from edgelink.protocol.keys import Kind, NodeKey, seal
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Lease, Role
from edgelink.protocol.refusals import Refusals
from edgelink.protocol.requests import COOKIE_S, Done, NodeReply, NodeRequest, Renew
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Login, Message
from edgelink.relay.request_desk import Answered, RequestDesk
from edgelink.relay.tokens import TokenRequest
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport, beside, eventually
from edgelink.testing.registry_client import LoneClient

NEW_PASSWORD = "p" * 32


class Desk:
    """A registry that answers on a broker in memory, and one node of it; `asked` counts what reached the handler."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.topics = Topics(self.world.keys.network_id)
        self.memory = MemoryBroker()
        self.refusals = Refusals("registry.refused")
        self.asked: list[str] = []
        self.key = NodeKey.generate()
        token = self.world.token()
        self.membership = self.world.membership(self.key, token, self.world.enrol(self.key, token))
        self.clock = FakeClock()
        self.client = LoneClient(
            self.membership,
            self.key,
            self.clock,
            transport=MemoryTransport({ADDRESSES[0]: self.memory}),
        )
        self.open()

    def open(self) -> None:
        self.desk = RequestDesk(
            self.world.store,
            self.world.keys,
            self.topics,
            self.refusals,
            self.world.clock,
            handlers={"renew": self._renew},
        )

    def _renew(self, lease: Lease, request: NodeRequest) -> Answered:
        self.asked.append(lease.node_id)
        assert isinstance(request.ask, Renew)
        if not request.ask.sealed_password:
            raise ConfigError("that is no password", hint="take another", reason="PasswordUnusable")
        return Answered(Done())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LoneClient]:
        async with beside(self._serve(), self.client.run()):
            await eventually(lambda: self.client.is_connected)
            yield self.client

    async def _serve(self) -> None:
        transport = MemoryTransport({"registry": self.memory})
        async with transport.connect("registry", Login("registry", "")) as session:
            await session.subscribe(*self.desk.subscriptions)
            answering = asyncio.create_task(self.desk.run(session))
            try:
                async for message in session.messages():
                    assert self.desk.receive(message)
            finally:
                answering.cancel()

    def renewal(self, text: str = "c2VhbGVk") -> Renew:
        return Renew(sealed_password=text)

    def sent(self, topic: str) -> list[Message]:
        return [message for message in self.memory.published if message.topic == topic]

    @property
    def requests(self) -> list[Message]:
        return self.sent(self.topics.node_request(self.key.node_id))

    @property
    def replies(self) -> list[Message]:
        return self.sent(self.topics.node_reply(self.key.node_id))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_a_request_is_answered_once(desk: Desk) -> None:
    """The first costs a round for the cookie, those of the next minute do not; nothing is retained."""
    async with desk.running() as client:
        assert await client.channel.ask(desk.renewal()) == Done()
        assert len(desk.asked) == 1
        assert len(desk.requests) == 2
        assert await client.channel.ask(desk.renewal()) == Done()
        assert (len(desk.asked), len(desk.requests)) == (2, 3)
        assert desk.memory.retained.keys() == {desk.topics.status(desk.key.node_id)}
        assert client.ignored_messages == desk.refusals.total == 0


async def test_a_refusal_is_an_error(desk: Desk) -> None:
    """With the words, the reason and the hint that it had on the relay; it is counted there."""
    async with desk.running() as client:
        with pytest.raises(RegistryError, match="that is no password") as caught:
            await client.channel.ask(desk.renewal(""))
        assert (caught.value.condition_reason, caught.value.hint) == ("PasswordUnusable", "take another")
        assert desk.refusals.counts == {"PasswordUnusable": 1}


async def test_a_broker_that_plays_a_request_again_gains_nothing(desk: Desk) -> None:
    """Soon after, the same reply comes again; later the cookie does not count, nor does it for the next daemon."""
    async with desk.running() as client:
        await client.channel.ask(desk.renewal())
        request, reply = desk.requests[-1], desk.replies[-1]
        desk.memory.publish(request)
        await eventually(lambda: len(desk.replies) == 3)
        assert desk.replies[-1] == reply
        assert client.ignored_messages == 0, "a reply that comes twice is no forgery"
        await desk.world.clock.advance(2 * COOKIE_S)
        desk.memory.publish(request)
        await eventually(lambda: desk.refusals.counts == {"Outdated": 1})
    desk.open()
    desk.refusals.counts.clear()
    async with desk.running():
        desk.memory.publish(request)
        await eventually(lambda: desk.refusals.counts == {"Outdated": 1})
    assert len(desk.asked) == 1


async def test_a_request_whose_node_is_released_meanwhile_is_dropped(desk: Desk) -> None:
    """It is no one's any more by the time it is its turn; nor is one that waits from an earlier session."""
    request = NodeRequest(
        network_id=desk.topics.network_id,
        node_id=desk.key.node_id,
        nonce="0" * 32,
        made_at=desk.clock.now(),
        ask=desk.renewal(),
    )
    payload = desk.key.sign(Kind.NODE_REQUEST, request).model_dump_json().encode()
    message = Message(desk.topics.node_request(desk.key.node_id), payload)
    assert desk.desk.receive(message)
    desk.desk.begin_session()
    assert not desk.desk._waiting
    assert desk.desk.receive(message)
    desk.world.authority.release("edge-1")
    transport = MemoryTransport({"registry": desk.memory})
    async with transport.connect("registry", Login("registry", "")) as session:
        answering = asyncio.create_task(desk.desk.run(session))
        await eventually(lambda: not desk.desk._waiting)
        await asyncio.sleep(0)
        assert not answering.done()
        answering.cancel()
    assert desk.asked == desk.replies == []


async def test_an_encoding_of_its_own_makes_no_other_request(desk: Desk) -> None:
    """Base64 can say one signature in two ways: it is one request all the same."""
    async with desk.running() as client:
        await client.channel.ask(desk.renewal())
        envelope = json.loads(desk.requests[-1].payload)
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        last = alphabet.index(envelope["signature"][-3])  # 64 bytes: its lowest four bits say nothing
        twin = {**envelope, "signature": envelope["signature"][:-3] + alphabet[last ^ 1] + "=="}
        desk.memory.publish(Message(desk.requests[-1].topic, json.dumps(twin).encode()))
        await eventually(lambda: len(desk.replies) == 3)
        assert len(desk.asked) == 1


async def test_a_node_speaks_for_itself_only(desk: Desk, tmp_path: Path) -> None:
    """What is malformed, forged, another's, of another network or of nobody is counted and not answered."""
    other, stranger = NodeKey.generate(), World(tmp_path / "stranger")
    desk.world.enrol(other, desk.world.token(), "edge-2")
    topic = desk.topics.node_request(desk.key.node_id)

    def signed(by: NodeKey, of: NodeKey, network_id: str, kind: Kind = Kind.NODE_REQUEST) -> bytes:
        request = NodeRequest(
            network_id=network_id, node_id=of.node_id, nonce="0" * 32, made_at=desk.clock.now(), ask=desk.renewal()
        )
        return by.sign(kind, request).model_dump_json().encode()

    here = desk.topics.network_id
    bad = [
        (topic, b"\xff not JSON", "Malformed"),
        (topic, b"{}", "Malformed"),
        (topic, signed(other, desk.key, here), "Untrusted"),
        (topic, signed(other, other, here), "Untrusted"),
        (topic, signed(desk.key, other, here), "Untrusted"),
        (desk.topics.node_request(other.node_id), signed(desk.key, desk.key, here), "Untrusted"),
        (topic, signed(desk.key, desk.key, stranger.keys.network_id), "Untrusted"),
        (topic, signed(desk.key, desk.key, here, Kind.ENROL_REQUEST), "Untrusted"),
        (desk.topics.node_request("a" * 26), signed(desk.key, desk.key, here), "NodeUnknown"),
    ]
    async with desk.running():
        for number, (where, payload, reason) in enumerate(bad, start=1):
            before = desk.refusals.counts[reason]
            await desk.world.clock.advance(1)  # one a second of each node is looked at
            desk.memory.publish(Message(where, payload))
            await eventually(lambda number=number: desk.refusals.total == number)  # type: ignore[misc]
            assert desk.refusals.counts[reason] == before + 1, where
        assert desk.asked == desk.replies == []


async def test_who_asks_too_often_is_not_looked_at(desk: Desk) -> None:
    """Five at once, one a second."""
    async with desk.running():
        for _ in range(8):
            desk.memory.publish(Message(desk.topics.node_request(desk.key.node_id), b"{}"))
        await eventually(lambda: desk.refusals.counts == {"Malformed": 5, "RateLimited": 3})


async def test_a_reply_counts_for_its_request_only(desk: Desk, tmp_path: Path) -> None:
    """What another registry signed, what is for another node, and what nobody asked for, changes nothing."""
    async with desk.running() as client:
        asking = asyncio.create_task(client.channel.ask(desk.renewal("")))
        reply = NodeReply(
            network_id=desk.topics.network_id,
            node_id=desk.key.node_id,
            nonce="0" * 32,
            cookie="0" * 32,
            answer=Done(),
        )
        other = reply.model_copy(update={"node_id": NodeKey.generate().node_id})
        for keys, said in (
            (World(tmp_path / "stranger").keys, reply),
            (desk.world.keys, other),
            (desk.world.keys, reply),
        ):
            payload = keys.sign(Kind.NODE_REPLY, said).model_dump_json().encode()
            desk.memory.publish(Message(desk.topics.node_reply(desk.key.node_id), payload))
        with pytest.raises(RegistryError, match="that is no password"):
            await asking
        await eventually(lambda: client.refusals.counts == {"Untrusted": 2, "NotAsked": 1})


async def test_a_registry_that_is_silent_is_named(desk: Desk) -> None:
    """The wait for an answer has an end."""
    with refuses(RegistryUnavailableError, "0.05 s"):
        await desk.client.channel.ask(desk.renewal(), within_s=0.05)


class Member:
    """A relay's whole service, and one node that has joined it and follows it."""

    def __init__(self, directory: Path) -> None:
        self.relay = ServingRelay(directory)
        self.key = NodeKey.generate()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LoneClient]:
        relay, world = self.relay, self.relay.world
        async with relay.running() as service:
            self.token = await service.create_token(TokenRequest(Role.EDGE))
            self.enrolment = world.request(self.key, self.token, asked_at=world.clock.now())
            login = Login(self.token.broker_username, self.token.secret)
            async with relay.transport.connect(ADDRESS, login) as session:
                reply = await exchange(session, self.token, self.enrolment, world.clock, 5)
            self.membership = Membership.from_reply(reply, token=self.token, key=self.key, ca_pem=world.keys.ca_pem)
            transport = MemoryTransport({ADDRESSES[0]: relay.memory})
            client = LoneClient(self.membership, self.key, world.clock, transport=transport)
            async with beside(client.run()):
                await eventually(lambda: client.is_connected)
                yield client

    def renewal(self, password: str) -> Renew:
        return Renew(sealed_password=seal(self.membership.registry_verify_key, password.encode()))

    def is_recorded(self, password: str) -> bool:
        recorded = self.relay.world.store.node_password(self.key.node_id)
        return recorded is not None and recorded.matches(password)

    def opens(self, password: str) -> bool:
        return (self.relay.memory.passwords or {}).get(self.membership.secrets.broker_username) == password


async def test_a_new_password_opens_the_broker_and_the_old_one_does_not(tmp_path: Path) -> None:
    """It is on the relay's disk before the reply; then the broker's user changes, which ends the node's session."""
    member = Member(tmp_path)
    async with member.running() as client:
        assert await client.channel.ask(member.renewal(NEW_PASSWORD)) == Done()
        assert member.is_recorded(NEW_PASSWORD)
        await eventually(lambda: member.opens(NEW_PASSWORD))
        await member.relay.world.clock.advance(5)
        await eventually(lambda: isinstance(client.facts.session.error, RegistryAuthError))
        assert member.relay.broker.restarts == 0


async def test_the_password_that_counts_already_changes_nothing(tmp_path: Path) -> None:
    """A node that does not know whether it was heard asks again: it is not put off the broker for that."""
    member = Member(tmp_path)
    async with member.running() as client:
        password = member.membership.secrets.broker_password
        assert await client.channel.ask(member.renewal(password)) == Done()
        assert member.opens(password)
        assert client.is_connected


async def test_an_old_request_to_enrol_brings_no_old_password_back(tmp_path: Path) -> None:
    """A broker in wrong hands has kept it, and its token is still good."""
    member = Member(tmp_path)
    async with member.running() as client:
        await client.channel.ask(member.renewal(NEW_PASSWORD))
        await member.relay.world.clock.advance(5)
        topic = member.relay.topics.enrol_request(member.token.token_id, member.key.node_id)
        member.relay.memory.publish(Message(topic, member.enrolment.model_dump_json().encode()))
        await eventually(lambda: member.relay.service.refusals.counts["RequestOutdated"] == 1)
        assert member.is_recorded(NEW_PASSWORD)


@pytest.mark.parametrize("password", ["short", "p" * 65, "p" * 32 + "\n", "p" * 31 + "é"])
async def test_no_other_password_than_one_of_ours_is_taken(tmp_path: Path, password: str) -> None:
    """What the broker is given is nothing that could be misread there."""
    member = Member(tmp_path)
    async with member.running() as client:
        with pytest.raises(RegistryError, match="32 to 64"):
            await client.channel.ask(member.renewal(password))
        assert member.is_recorded(member.membership.secrets.broker_password)
