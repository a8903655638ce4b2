"""A node renews its password at the broker: the registry's service, the node's client and its part, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from registry_world import ADDRESSES
from test_registry_service_enrol import Relay

from edgelink import log
from edgelink.api.server import Caller
from edgelink.conditions import ConditionSet
from edgelink.config import Paths
from edgelink.errors import NotRecordedError, RegistryAuthError, RegistryError, RegistryUnavailableError, UsageError
from edgelink.facts.part import Action, run_part
from edgelink.files import Files
from edgelink.registry.client import Session
from edgelink.registry.keys import NodeKey, seal
from edgelink.registry.membership import Membership, put_membership
from edgelink.registry.membership_store import MembershipStore
from edgelink.registry.payloads import Role
from edgelink.registry.renewals import EVERY_S, Renewals
from edgelink.registry.requests import NodeRequest, Renew
from edgelink.registry.tokens import TokenRequest
from edgelink.registry.transport import Message
from edgelink.roles.renewal import AskRegistry, Forget, Inputs, Renewal
from edgelink.testing import FakeClock, MemoryTransport, eventually
from edgelink.testing.facts import board_with
from edgelink.testing.memory_transport import MemorySession
from edgelink.testing.registry_client import ADMITTED, LoneClient


class Node:
    """One life of a node's daemon, as far as it has to do with this; its state is on disk."""

    def __init__(self, relay: Relay, paths: Paths, key: NodeKey) -> None:
        found = Membership.load(paths)
        assert found is not None
        self.board = board_with(admission=ADMITTED)
        self.paths, self.files, self.clock, self._relay_clock = paths, Files(), FakeClock(), relay.world.clock
        store = MembershipStore(self.board, paths, self.files)
        store.reload()
        self.client = LoneClient(
            self.membership,
            key,
            self.clock,
            board=self.board,
            transport=MemoryTransport({ADDRESSES[0]: relay.memory}),
        )
        self.renewal = Renewal(board=self.board, store=store, channel=self.client.channel, clock=self.clock)
        self.conditions = ConditionSet(self.clock, [self.renewal.condition])

    @property
    def membership(self) -> Membership:
        found = self.board.facts.membership
        assert found is not None
        return found

    @property
    def on_disk(self) -> tuple[str, ...]:
        found = Membership.load(self.paths)
        assert found is not None
        return found.broker_passwords

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def tick() -> None:
            while True:
                await self.clock.advance(0.1)
                await self._relay_clock.advance(0.1)
                await asyncio.sleep(0.001)

        renewing = run_part(self.renewal, self.board, self.conditions, self.clock)
        tasks = [asyncio.create_task(work) for work in (self.client.run(), renewing, tick())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class World:
    """A relay and one node that has joined it."""

    def __init__(self, directory: Path) -> None:
        self.relay = Relay(directory / "relay")
        self.paths, self.key = Paths(directory / "node", directory / "run"), NodeKey.generate()

    async def join(self) -> Node:
        token = await self.relay.service.create_token(TokenRequest(Role.EDGE))
        reply = await self.relay.enrol(token, key=self.key)
        self.joined = Membership.from_reply(reply, token=token, key=self.key, ca_pem=self.relay.world.keys.ca_pem)
        put_membership(self.paths, self.joined)
        return self.start()

    def start(self) -> Node:
        return Node(self.relay, self.paths, self.key)

    @property
    def at_broker(self) -> str:
        return (self.relay.memory.passwords or {})[self.joined.secrets.broker_username]

    def counts(self, password: str) -> bool:
        recorded = self.relay.world.store.node_password(self.key.node_id)
        return recorded is not None and recorded.matches(password)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize(
    "upcoming, session, does",
    [
        (None, Session(1, is_connected=True, password="present"), None),
        ("next", Session(1, is_connected=False, password="present"), None),
        ("next", Session(1, is_connected=True, password="present"), "ask"),
        ("next", Session(2, is_connected=True, password="next"), "forget"),
    ],
)
async def test_the_step_that_is_due(world: World, upcoming: str | None, session: Session, does: str | None) -> None:
    """The registry is asked until a session shows that the next password counts; only then the former one goes."""
    async with world.relay.running():
        node = await world.join()
    membership = node.membership.model_copy(update={"next_broker_password": upcoming})
    actions: dict[str | None, Action | None] = {
        None: None,
        "ask": AskRegistry("next", membership.registry_verify_key),
        "forget": Forget("next"),
    }
    for asked in (0, 1):
        assert node.renewal.plan(Inputs(membership, session, asked), 0.0).does == actions[does]


async def test_who_has_not_joined_renews_nothing(world: World) -> None:
    async with world.relay.running():
        node = await world.join()
    assert node.renewal.plan(Inputs(None, Session(1, is_connected=True), 1), 0.0).does is None


async def test_a_new_password_each_time(world: World) -> None:
    """Known to node, registry and broker; the former one is forgotten everywhere; the broker is not started anew."""
    async with world.relay.running():
        node = await world.join()
        seen = set(node.on_disk)
        async with node.running():
            for _ in range(3):
                renewed = await node.renewal.renew(10)
                assert renewed.broker_passwords == node.on_disk == (world.at_broker,)
                assert world.counts(world.at_broker)
                assert world.at_broker not in seen
                seen.add(world.at_broker)
                assert node.client.is_connected
                await world.relay.world.clock.advance(EVERY_S)
    assert world.relay.broker.restarts == 0


async def test_a_node_that_renews_again_and_again_costs_little(world: World) -> None:
    """One new password a minute: the next one waits on the node's disk, the command says why; nothing is hidden."""
    async with world.relay.running():
        node = await world.join()
        async with node.running():
            renewed = await node.renewal.renew(10)
            hidden = len(log._hidden)
            with pytest.raises(RegistryUnavailableError, match="renewed a moment ago"):
                await node.renewal.renew(1)
            upcoming, present = node.on_disk
            assert (present,) == renewed.broker_passwords == (world.at_broker,)
            assert world.relay.service.refusals.counts["RenewedJustNow"]
            assert len(log._hidden) <= hidden + 4, "the one that the node has begun, in its own process"
            await world.relay.world.clock.advance(EVERY_S)
            assert (await node.renewal.renew(10)).broker_passwords == (upcoming,) == (world.at_broker,)
    assert world.relay.service._renewals._renewed_s.keys() == {world.key.node_id}


def test_whose_lease_is_gone_renews_nothing(world: World) -> None:
    """It was released while its request waited: refused, and the registry goes on."""
    registry = world.relay.world
    registry.enrol(world.key, registry.token())
    registry.authority.release("edge-1")
    ask = Renew(sealed_password=seal(registry.keys.verify_key_b64, b"p" * 32))
    request = NodeRequest(
        network_id=registry.keys.network_id,
        node_id=world.key.node_id,
        nonce="0" * 32,
        made_at=registry.clock.now(),
        ask=ask,
    )
    with pytest.raises(RegistryError, match="holds no lease") as refused:
        Renewals(registry.store, registry.keys, registry.clock).renew(request, ask)
    assert refused.value.condition_reason == "NodeUnknown"


async def test_a_relay_that_is_away_is_waited_for_also_by_the_next_daemon(world: World) -> None:
    """The command ends with 75; the password that was begun is the one that counts in the end."""
    async with world.relay.running():
        node = await world.join()
        async with node.running():
            await eventually(lambda: node.client.is_connected)
    async with node.running():
        for _ in range(2):
            with pytest.raises(RegistryUnavailableError, match=r"within 0\.05 s"):
                await node.renewal.renew(0.05)
        upcoming, present = node.on_disk
        assert present == world.joined.secrets.broker_password
    later = world.start()
    async with later.running(), world.relay.running():
        await eventually(lambda: later.on_disk == (upcoming,))
        assert world.at_broker == upcoming
        await eventually(lambda: later.client.is_connected)


async def test_a_reply_that_is_lost_costs_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker knows the new password, the node was put off it unheard: it comes back with the new one."""
    async with world.relay.running():
        node = await world.join()
        offers = MemorySession.offer

        def offer(session: MemorySession, message: Message) -> None:
            if not (world.counts(node.on_disk[0]) and _is_reply(message.topic)):
                offers(session, message)

        monkeypatch.setattr(MemorySession, "offer", offer)
        async with node.running():
            renewed = await node.renewal.renew(10)
            assert renewed.broker_passwords == (world.at_broker,)


def _is_reply(topic: str) -> bool:
    return "/node/" in topic and topic.endswith("/reply")


async def test_who_asks_twice_renews_once(world: World) -> None:
    """What was begun is gone on with: two passwords on their way would leave one that nobody knows."""
    async with world.relay.running():
        node = await world.join()
        async with node.running():
            one, two = await asyncio.gather(node.renewal.renew(10), node.renewal.renew(10))
            assert one.broker_passwords == two.broker_passwords == (world.at_broker,)


async def test_joining_again_meanwhile_loses_no_password(world: World) -> None:
    """The registry may hear of the renewal before or after: the node keeps what was asked for until it is settled."""
    async with world.relay.running():
        node = await world.join()
        async with node.running():
            await eventually(lambda: node.client.is_connected)
    async with node.running():
        with pytest.raises(RegistryUnavailableError):
            await node.renewal.renew(0.05)
    upcoming = node.on_disk[0]
    async with world.relay.running():
        again = await world.join()
        assert again.on_disk == (upcoming, world.joined.secrets.broker_password)
        async with again.running():
            await eventually(lambda: again.on_disk == (upcoming,))
            assert world.at_broker == upcoming


async def test_a_full_disk_is_told_before_anything_is_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the registry is to take has to be on our disk first."""
    async with world.relay.running():
        node = await world.join()
        before = node.on_disk

        def full(_path: Path, _content: bytes | str) -> None:
            raise NotRecordedError("no room")

        monkeypatch.setattr(node.files, "require", full)
        async with node.running():
            await eventually(lambda: node.client.is_connected)
            with pytest.raises(NotRecordedError):
                await node.renewal.renew(10)
            assert node.on_disk == before == (world.at_broker,)


async def test_a_relay_that_is_too_old_is_not_asked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is begun that could not be finished."""
    grants = MemorySession.subscribe

    async def subscribe(session: MemorySession, *topics: str) -> None:
        if any(map(_is_reply, topics)):
            raise RegistryAuthError("the broker does not grant it")
        await grants(session, *topics)

    async with world.relay.running():
        node = await world.join()
        monkeypatch.setattr(MemorySession, "subscribe", subscribe)
        async with node.running():
            await eventually(lambda: node.client.is_connected)
            with pytest.raises(RegistryError, match="older"):
                await node.renewal.renew(10)
            assert node.on_disk == (world.at_broker,)


async def test_only_root_may_ask(world: World) -> None:
    """Any local user can reach the daemon's socket."""
    async with world.relay.running():
        node = await world.join()
        with pytest.raises(UsageError, match="may not"):
            await node.renewal.serve(Caller(pid=1, uid=65534, gid=65534), {})
        assert len(node.on_disk) == 1


async def test_a_relay_that_is_the_head_too_keeps_the_password_that_counts(world: World) -> None:
    """Its registry starts between the steps: what is on disk and counts is not replaced by another."""
    authority = world.relay.world.authority
    first = authority.relay_membership(world.key, "relay")
    begun = first.model_copy(update={"next_broker_password": "n" * 32})
    assert authority.relay_membership(world.key, "relay", previous=begun).secrets == first.secrets
    assert world.counts(first.secrets.broker_password)
