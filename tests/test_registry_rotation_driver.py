"""A registry whose disk is full keeps its session: what it could not put down it does at a later look."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rotation_world import ADMIN_ADDRESS, Network

from edgelink.errors import NotCommittedError
from edgelink.registry.keys import Kind
from edgelink.registry.payloads import NetworkAnswer
from edgelink.registry.rotation_driver import RotationDriver
from edgelink.registry.transport import Message
from edgelink.testing import eventually


@pytest.fixture
def network(tmp_path: Path) -> Network:
    return Network(tmp_path)


class Disk:
    """Full, or not: then what writes through :meth:`guard` is done."""

    def __init__(self) -> None:
        self.is_full = False
        self.refused = 0

    def guard(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Any:
            if self.is_full:
                self.refused += 1
                raise NotCommittedError("registry.sqlite3: cannot be written: database or disk is full")
            return write(*args)

        return guarded


@pytest.mark.parametrize("what", ["receive", "advance"])
async def test_a_full_disk_ends_no_session(network: Network, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Neither an answer nor a step that is due is lost with it."""
    member, disk, rotations = network.join("edge-1"), Disk(), network.world.authority.rotations
    monkeypatch.setattr(rotations, what, disk.guard(getattr(rotations, what)))
    async with network.serving(), network.running(member):
        await eventually(lambda: member.reason() == "Current")
        disk.is_full = True
        network.rotate(member)
        await eventually(lambda: disk.refused > 0)
        await eventually(lambda: member.on_disk.next_epoch == 2)
        assert network.service.is_connected
        disk.is_full = False
        network.service.rotation.wakeup.set()
        await eventually(lambda: rotations.record is None and member.on_disk.epoch == 2)
        assert network.transport.dialled.count(ADMIN_ADDRESS) == 1


@pytest.mark.parametrize("told", [{"prepared_epoch": 10**30}, {"number": 2**62}])
async def test_no_number_that_a_node_says_ends_the_registry(network: Network, told: dict[str, int]) -> None:
    """Signed by the node itself, and kept by the broker: it would end each daemon that comes after this one, too."""
    node, near = network.join("edge-1"), network.join("edge-2")
    said = {"network_id": network.world.keys.network_id, "node_id": node.key.node_id, "generation": 0, "number": 1}
    answer = NetworkAnswer.model_construct(None, **{**said, **told})
    payload = node.key.sign(Kind.NETWORK_ANSWER, answer).model_dump_json().encode()
    network.memory.publish(Message(network.topics.answer(node.key.node_id), payload, retain=True))
    async with network.serving(), network.running(near):
        await eventually(lambda: near.reason() == "Current")
        assert network.service.is_connected
        assert network.transport.dialled.count(ADMIN_ADDRESS) == 1


async def test_a_message_that_breaks_what_takes_it_is_passed_over(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that nobody has thought of."""
    real, broken = RotationDriver.receive, list[bytes]()

    def receive(self: RotationDriver, message: Message) -> bool:
        if message.payload == b"poison":
            broken.append(message.payload)
            raise ZeroDivisionError
        return real(self, message)

    monkeypatch.setattr(RotationDriver, "receive", receive)
    node = network.join("edge-1")
    async with network.serving():
        network.memory.publish(Message(network.topics.answer(node.key.node_id), b"poison"))
        await eventually(lambda: bool(broken))
        async with network.running(node):
            await eventually(lambda: node.reason() == "Current")
        assert network.transport.dialled.count(ADMIN_ADDRESS) == 1


async def test_what_cannot_be_noted_is_noted_later(network: Network) -> None:
    """The daemon's own part, which writes as well, is asked again, and is not asked in the middle of anything."""
    disk, noted = Disk(), []
    network.on_secret_step = disk.guard(lambda: noted.append(None))
    async with network.serving():
        disk.is_full = True
        network.service.rotation.look()
        await eventually(lambda: disk.refused > 0)
        assert network.service.is_connected
        assert not noted
        disk.is_full = False
        network.service.rotation.wakeup.set()
        await eventually(lambda: bool(noted))
        assert network.transport.dialled.count(ADMIN_ADDRESS) == 1


async def test_a_node_that_claims_ever_more_costs_the_registry_no_write_each(network: Network) -> None:
    """Each would be a transaction with an fsync, in the loop that serves all nodes; no secret has such a number yet."""
    node = network.join("edge-1")
    rotations, said = network.world.authority.rotations, network.world.keys.network_id
    writes = network.world.store._database._connection.total_changes
    for number in range(2, 50):
        answer = NetworkAnswer(
            network_id=said, node_id=node.key.node_id, generation=0, number=number, prepared_epoch=number
        )
        payload = node.key.sign(Kind.NETWORK_ANSWER, answer).model_dump_json().encode()
        assert not rotations.receive(node.key.node_id, payload)
    assert network.world.store._database._connection.total_changes == writes
    assert node.key.node_id not in rotations.progress() or rotations.progress()[node.key.node_id].prepared_epoch <= 1
