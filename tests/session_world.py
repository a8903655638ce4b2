"""A registry without its service, and the client of a node that follows what is said in its name.

A bench of the client alone: what it believes, sends again and gives up, whoever speaks. A story in a :class:`sim.Sim`
has a registry that tells the truth, and daemons that hide what one session does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from registry_world import ADDRESSES, World

from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Envelope, NodeStatus, Payload, Role
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.testing import FakeClock, MemoryBroker, MemoryTransport, beside
from edgelink.testing.payloads import cluster_spec
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
        self.say(self.topics.directory, self.directory)

    @property
    def directory(self) -> Envelope:
        return self.world.authority.directory()

    def restore(self) -> None:
        """The registry comes back from its backup."""
        by = next(iter(self.world.store.leases())).node_id
        self.world.store.note_restoration(by, keep_addresses=True)

    def spec(self, key: NodeKey, membership: Membership, epoch: int = 1, incarnation: str = "one") -> Envelope:
        known = {"network_id": membership.network_id, "epoch": epoch, "incarnation": incarnation}
        return key.sign(Kind.CLUSTER_SPEC, cluster_spec(membership.lease, membership.lease, **known))

    def statuses_of(self, node_id: str) -> list[NodeStatus]:
        topic = self.topics.status(node_id)
        return [NodeStatus.model_validate_json(m.payload) for m in self.broker.published if m.topic == topic]


class Follower(LoneClient):
    """A client with a clock of its own."""

    def __init__(self, network: Network, key: NodeKey, membership: Membership, **more: Any) -> None:
        self.clock = FakeClock()
        super().__init__(membership, key, self.clock, transport=network.transport, **more)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Follower]:
        async with beside(self.run()):
            await self.clock.advance(0)
            yield self


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


def status(key: NodeKey, phase: str) -> NodeStatus:
    return NodeStatus(node_id=key.node_id, online=True, phase=phase, reported_at=datetime(2026, 1, 1, tzinfo=UTC))
