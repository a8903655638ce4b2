"""Two clients with one node's key and password on a real Mosquitto, as a copied disk makes them. Loopback only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from registry_relay import CLOCK, Node, Relay, serving_relay, soon

from edgelink.protocol.life import Admission, Life
from edgelink.protocol.payloads import NodeStatus, Role
from edgelink.protocol.requests import Claim, Verdict
from edgelink.testing.registry_client import LoneClient

HERE, THERE = ("mac:" + "1" * 32,), ("mac:" + "2" * 32,)


@pytest.fixture
async def relay() -> AsyncIterator[Relay]:
    async with serving_relay() as relay:
        yield relay


def on(machine: tuple[str, ...], original: Node) -> Node:
    """A machine with all that the original has on its disk."""
    node = Node(original.key, original.membership)
    node.client = LoneClient(node.membership, node.key, CLOCK, life=Life(machine))
    return node


def voice(relay: Relay, node: Node) -> str | None:
    """Which life the relay hears as this node at present."""
    status = relay.service.statuses.get(node.key.node_id)
    return status.instance if status is not None and status.online else None


async def claimed(node: Node) -> Verdict:
    verdict = await node.client.channel.ask(Claim(instance=node.client.life.instance, machine=node.client.life.machine))
    assert isinstance(verdict, Verdict)
    return verdict


async def outcome(node: Node) -> str:
    """The verdict in the end: a node is told to wait while the recorded one is asked whether it lives."""
    async with asyncio.timeout(60):
        verdict = await claimed(node)
        while verdict.outcome == "wait":
            await asyncio.sleep(verdict.again_s)
            verdict = await claimed(node)
    return verdict.outcome


async def test_a_copy_on_another_machine_ends_nothing(relay: Relay) -> None:
    """The registry hears both; the node's session goes on, and the copy's end is not the node's."""
    original = on(HERE, await relay.join("edge-1"))
    async with original.running():
        assert (await claimed(original)).outcome == "accepted"
        await soon(lambda: voice(relay, original) == original.client.life.instance)
        sessions = original.sessions
        copy = on(THERE, original)
        copy.client.board.given(admission=Admission())
        async with copy.running():
            assert await outcome(copy) == "refused"
        watcher = await relay.join("cloud", Role.HEAD)
        async with watcher.running():  # who comes later goes by what the broker keeps
            await soon(lambda: is_online(watcher, original))
        assert voice(relay, original) == original.client.life.instance
        assert original.sessions == sessions
        assert original.client.is_connected


def is_online(watcher: Node, node: Node) -> bool:
    status: NodeStatus | None = watcher.client.statuses.get(node.key.node_id)
    return status is not None and status.online and status.instance == node.client.life.instance


async def test_copies_that_cannot_be_told_apart_are_named(relay: Relay) -> None:
    """They end each other's session in turns, under one client id: relay and head hear two voices, within seconds."""
    watcher = await relay.join("cloud", Role.HEAD)
    one = on((), await relay.join("edge-1"))
    other = on((), one)
    async with watcher.running(), one.running():
        await soon(lambda: voice(relay, one) == one.client.life.instance)
        async with other.running():
            await soon(lambda: [name for name, _ in relay.service.claims.alternations()] == ["edge-1"])
            await soon(lambda: [name for name, _ in watcher.client.facts.alternations] == ["edge-1"])
            assert other.sessions > 0
