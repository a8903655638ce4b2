"""A relay's service and its nodes on one broker in memory, as far as they have to do with the network's secret."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from itertools import pairwise
from pathlib import Path
from typing import Any

from registry_world import ADDRESSES, World

from edgelink.conditions import ConditionSet
from edgelink.config import Paths
from edgelink.facts.part import Part, run_part
from edgelink.files import AT_ONCE
from edgelink.registry.dynamic_security import ADMIN
from edgelink.registry.keys import NodeKey
from edgelink.registry.membership import Membership, put_membership
from edgelink.registry.membership_store import MembershipStore
from edgelink.registry.payloads import NodeStatus
from edgelink.registry.rotation import FOLLOWS_SECRETS, HeldSecret
from edgelink.registry.rotations import RotationRequest
from edgelink.registry.service import RegistryService
from edgelink.registry.topics import Topics
from edgelink.registry.transport import Login
from edgelink.roles.secret_epochs import RobotHold, SecretEpochs
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport
from edgelink.testing.facts import GivenBoard, board_with
from edgelink.testing.registry_client import ADMITTED, LoneClient

ADMIN_ADDRESS = "127.0.0.1:8883"


class FakeBroker:
    address = ADMIN_ADDRESS
    login = Login(ADMIN, "the admin's password")

    def __init__(self, memory: MemoryBroker) -> None:
        self.memory = memory

    async def run(self) -> None:
        await asyncio.Event().wait()

    async def restart(self) -> None:
        raise AssertionError("nothing here needs fresh files")


@dataclass
class FakeHold:
    is_set: bool = False
    asked: list[str] = field(default_factory=list)
    at_rest: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, reason: str, patience_s: float) -> str:
        self.asked.append(reason)
        await self.at_rest.wait()
        return ""


@dataclass
class Member:
    """One node's daemon, as far as it has to do with this. ``clock`` stands still: no jitter is waited for."""

    key: NodeKey
    paths: Paths
    board: GivenBoard
    client: LoneClient
    conditions: ConditionSet
    epochs: SecretEpochs
    hold: FakeHold
    robot: RobotHold
    following: asyncio.Task[None] | None = None  # its part of the secret, while its daemon runs

    @property
    def membership(self) -> Membership:
        """The one that it runs with."""
        found = self.board.facts.running
        assert found is not None
        return found

    @property
    def used(self) -> list[HeldSecret]:
        """The secrets that it came to run with, one after the other."""
        held = [facts.running.held for facts in self.board.history if facts.running is not None]
        return [after for before, after in pairwise(held) if after != before]

    @property
    def on_disk(self) -> HeldSecret:
        found = Membership.load(self.paths)
        assert found is not None
        return found.held

    def reason(self) -> str:
        return self.conditions.get("SecretCurrent").reason

    def turn_deaf(self) -> None:
        """From now on it follows nothing that it is told of the secret."""
        assert self.following is not None
        self.following.cancel()


class Network:
    """A relay's service and its nodes on one broker."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.world = World(directory / "relay")
        self.relay = NodeKey.generate()
        self.world.authority.ensure_relay_lease(self.relay, "relay")
        self.topics = Topics(self.world.keys.network_id)
        self.memory = MemoryBroker({ADMIN: FakeBroker.login.password})
        self.transport = MemoryTransport({ADMIN_ADDRESS: self.memory, ADDRESSES[0]: self.memory})
        self.passwords: dict[str, str] = {}
        self.listed: set[IPv4Address] = set()  # by the relay's EasyTier
        self.on_secret_step: Callable[[], object] = list
        self.service = self.new_service()

    def _secret_step(self) -> None:
        self.on_secret_step()

    def new_service(self) -> RegistryService:
        service = RegistryService(
            authority=self.world.authority,
            store=self.world.store,
            network_id=self.world.keys.network_id,
            broker=FakeBroker(self.memory),
            transport=self.transport,
            clock=self.world.clock,
            on_change=lambda: None,
            on_secret_step=self._secret_step,
            is_listed=lambda ip: ip in self.listed,
        )
        service._passwords |= self.passwords
        return service

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.service.run())
        await asyncio.wait_for(self.service.ready.wait(), 20)
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def join(self, name: str) -> Member:
        key, token = NodeKey.generate(), self.world.token()
        result = self.world.enrol(key, token, name)
        assert result.broker_password is not None
        username = self.world.store.broker_username(key.node_id)
        known = {username: result.broker_password, token.broker_username: token.secret}
        self.passwords |= known
        self.service._passwords |= known
        paths = Paths(self.directory / name, self.directory / "run" / name)
        put_membership(paths, self.world.membership(key, token, result))
        return self.member(key, paths)

    def member(self, key: NodeKey, paths: Paths) -> Member:
        clock, conditions, hold = FakeClock(), ConditionSet(FakeClock(), ["Leased", "SecretCurrent"]), FakeHold()

        board = board_with(admission=ADMITTED)
        store = MembershipStore(board, paths, AT_ONCE)
        membership = store.reload()
        assert membership is not None
        client = LoneClient(
            membership,
            key,
            clock,
            board=board,
            cache=paths.state,
            transport=self.transport,
        )

        epochs = SecretEpochs(
            board=board,
            store=store,
            registry=client,
            hook=hold,
            conditions=conditions,
            clock=clock,
        )
        member = Member(key, paths, board, client, conditions, epochs, hold, RobotHold(board=board, hook=hold))
        client.publish_status(NodeStatus(node_id=key.node_id, online=True, phase="Ready", features=(FOLLOWS_SECRETS,)))
        return member

    @asynccontextmanager
    async def running(self, *members: Member) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for member in members:
                await stack.enter_async_context(daemon(member))
            yield

    def request(self, *expected: Member, force: bool = True) -> RotationRequest:
        return RotationRequest(frozenset(member.key.node_id for member in expected), 20.0, force=force)

    def rotate(self, *expected: Member, force: bool = True) -> None:
        self.world.authority.rotations.rotate(self.request(*expected, force=force))
        self.service.rotation.wakeup.set()

    @property
    def secret(self) -> HeldSecret:
        network = self.world.authority.network
        return HeldSecret(network.secret_epoch, network.secret)


@asynccontextmanager
async def daemon(member: Member) -> AsyncIterator[None]:
    """Its session and its parts; time passes for its own clock, so that it never waits long.

    Its EasyTier runs with whatever the membership says, a moment later.
    """
    clock = member.client._clock
    assert isinstance(clock, FakeClock)

    async def tick() -> None:
        while True:
            await clock.advance(0.1)
            spec = member.board.facts.overlay_spec
            member.board.given(confirmed_config="" if spec is None else spec.config_hash)
            await asyncio.sleep(0.001)

    def run(part: Part[Any, Any]) -> asyncio.Task[None]:
        return asyncio.create_task(run_part(part, member.board, member.conditions, clock))

    member.following = run(member.epochs)
    session, ticking = asyncio.create_task(member.client.run()), asyncio.create_task(tick())
    tasks = [session, ticking, run(member.robot), member.following]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
