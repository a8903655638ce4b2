"""A registry without its service, and a node that follows what is said in its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from registry_world import ADDRESSES, World

from edgelink.conditions import ConditionSet
from edgelink.registry.inbox import Inbox
from edgelink.registry.keys import Kind, NodeKey
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import (
    ClusterMember,
    ClusterSpec,
    Envelope,
    NodeStatus,
    Payload,
    Role,
)
from edgelink.registry.topics import Topics
from edgelink.registry.transport import Message
from edgelink.state_files import StateFiles
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport
from edgelink.testing.registry_client import LoneClient


class Network:
    """A registry without its service: the tests publish what it, or somebody else, says."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.topics = Topics(self.world.keys.network_id)
        self.broker = MemoryBroker()
        self.transport = MemoryTransport({ADDRESSES[1]: self.broker})

    def member(self, hostname: str, role: Role = Role.EDGE) -> tuple[NodeKey, Membership]:
        key, token = NodeKey.generate(), self.world.token(role)
        result = self.world.enrol(key, token, hostname, role=role)
        return key, self.world.membership(key, token, result)

    def say(self, topic: str, payload: Payload) -> None:
        self.broker.publish(Message(topic, payload.model_dump_json().encode(), retain=True))

    def say_directory(self) -> None:
        self.say(self.topics.directory, self.world.authority.directory())

    def spec(self, key: NodeKey, membership: Membership, epoch: int = 1, incarnation: str = "one") -> Envelope:
        lease = membership.lease
        member = ClusterMember(node_id=key.node_id, hostname=lease.hostname, overlay_ip=lease.overlay_ip, node_rank=0)
        spec = ClusterSpec(
            network_id=membership.network_id,
            epoch=epoch,
            incarnation=incarnation,
            head_node_id=key.node_id,
            head_ip=lease.overlay_ip,
            ray_port=6379,
            ray_version="2.60.0",
            python_version="3.11.2",
            token_auth=True,
            members=(member,),
        )
        return key.sign(Kind.CLUSTER_SPEC, spec)

    def statuses_of(self, node_id: str) -> list[NodeStatus]:
        topic = self.topics.status(node_id)
        return [NodeStatus.model_validate_json(m.payload) for m in self.broker.published if m.topic == topic]


class Follower:
    """A client and its clock."""

    def __init__(self, network: Network, key: NodeKey, membership: Membership, cache: Path | None = None) -> None:
        self.clock = FakeClock()
        self.files = StateFiles(ConditionSet(self.clock, [], [StateFiles.condition]))
        self.on_disk = membership
        self.easytier_deaths = Inbox()
        self.client = LoneClient(
            membership,
            key,
            self.clock,
            cache=cache,
            files=self.files,
            store=self,
            transport=network.transport,
            easytier_deaths=self.easytier_deaths,
        )
        self.board = self.client.board

    def reload(self) -> None:
        self.board.given(membership=self.on_disk)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[LoneClient]:
        task = asyncio.create_task(self.client.run())
        await self.clock.advance(0)
        try:
            yield self.client
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def status(key: NodeKey, phase: str) -> NodeStatus:
    return NodeStatus(node_id=key.node_id, online=True, phase=phase, reported_at=datetime(2026, 1, 1, tzinfo=UTC))
