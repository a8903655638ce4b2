"""Stories of ``access: per-run``: edges answer each other during a run only, on whole daemons in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from typing import Any

import aiohttp
from sim import Box, Sim, all_ready, story
from test_sim_ports import answered
from test_sim_secrets import topics

from edgelink.protocol.payloads import Role
from edgelink.protocol.transport import Message

SOON_S = 2.0


async def closed_network(sim: Sim, *edges: str) -> list[Box]:
    """Relay, head and edges of a network where the head says ``access: per-run``."""
    relay = await sim.relay()
    head = await sim.join("cloud", Role.HEAD, relay, access="per-run")
    boxes = [relay, head, *[await sim.join(name, Role.EDGE, relay) for name in edges]]
    for box in boxes[1:]:
        box.start()
    await all_ready(sim, boxes)
    await sim.until(lambda: all(reached_by(edge) == {address(relay), address(head)} for edge in boxes[2:]), 40)
    return boxes


def address(box: Box) -> IPv4Address:
    return box.membership.lease.overlay_ip


def reached_by(edge: Box) -> set[IPv4Address] | None:
    """Who reaches Ray and a training there, as its table has it. None: everybody."""
    rules = [rule for rule in answered(edge) if "20001-" in rule or "32768-" in rule]
    assert len(rules) == 2, "tcp and udp"
    callers = {rule.partition(" dport")[0].rpartition(" ")[0] for rule in rules}
    assert len(callers) == 1, "the same"
    text = callers.pop()
    if not text:
        return None
    found: set[IPv4Address] = set()
    for part in text.partition("{ ")[2].partition(" }")[0].split(", "):
        first, _, last = part.partition("-")
        found |= {IPv4Address(ip) for ip in range(int(IPv4Address(first)), int(IPv4Address(last or first)) + 1)}
    return found


@asynccontextmanager
async def a_run(head: Box, **body: Any) -> AsyncIterator[asyncio.Queue[dict[str, Any]]]:
    """A request of a run that is held open; what it is told."""
    told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def follow() -> None:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(head.paths.node_socket))) as client,
            client.post("http://edgelink/run", json={"cluster": None, "timeout_s": 60.0, **body}) as answer,
        ):
            async for line in answer.content:
                told.put_nowait(json.loads(line))

    task = asyncio.create_task(follow(), name="run")
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def granted(told: asyncio.Queue[dict[str, Any]]) -> None:
    while (item := await told.get())["event"] != "granted":
        assert "error" not in item, item


@story
async def test_edges_answer_each_other_while_a_run_is_granted(sim: Sim) -> None:
    """Before the check in front of it begins, and no longer than to its end; head and relay are never shut out."""
    relay, head, edge, other = boxes = await closed_network(sim, "edge-1", "edge-2")
    everybody = {address(box) for box in boxes}
    async with a_run(head) as told:
        await granted(told)
        assert reached_by(edge) == everybody - {address(edge)}
        assert reached_by(other) == everybody - {address(other)}
        assert reached_by(head) is None
    await sim.until(lambda: reached_by(edge) == reached_by(other) == {address(relay), address(head)}, SOON_S)
    await all_ready(sim, boxes)


@story
async def test_an_edge_that_takes_no_part_stays_closed(sim: Sim) -> None:
    relay, head, edge, other, third = await closed_network(sim, "edge-1", "edge-2", "edge-3")
    async with a_run(head, nodes=["edge-1", "edge-3"]) as told:
        await granted(told)
        assert reached_by(edge) == {address(box) for box in (relay, head, third)}
        assert reached_by(third) == {address(box) for box in (relay, head, edge)}
        assert reached_by(other) == {address(relay), address(head)}


@story
async def test_an_edge_keeps_to_the_last_word(sim: Sim) -> None:
    """Through a restart without relay and head, from its first moment on: what closed it is on its disk."""
    relay, head, edge, _ = await closed_network(sim, "edge-1", "edge-2")
    await head.kill()
    await relay.stop()
    await edge.kill()
    edge.machine.firewall.clear()
    edge.start()
    await sim.until(lambda: bool(edge.machine.firewall), 60)
    assert reached_by(edge) == {address(relay), address(head)}


@story
async def test_a_seized_broker_opens_no_edge_again(sim: Sim) -> None:
    """It plays what the head has said before, to an edge that has restarted."""
    relay, head, edge, _ = await closed_network(sim, "edge-1", "edge-2")
    async with a_run(head) as told:
        await granted(told)
    closed = {address(relay), address(head)}
    await sim.until(lambda: reached_by(edge) == closed, SOON_S)
    await edge.stop()
    edge.start()
    await sim.until(edge.has("RegistryConnected"), 10)
    memory, topic, client = relay.machine.memory, topics(relay).cluster, edge.registry
    words = [message.payload for message in memory.published if message.topic == topic and message.payload]
    assert any(b'\\"members\\"' in payload for payload in words)
    assert client is not None
    ignored = client.refusals.total
    for payload in (*words, *reversed(words), b"", b"{}"):
        memory.publish(Message(topic, payload, retain=True))
    await sim.until(lambda: client.refusals.total > ignored, SOON_S)
    await sim.until(lambda: bool(edge.machine.firewall), 60)
    await sim.passes(5)
    assert reached_by(edge) == closed


@story
async def test_a_head_that_restarts_under_a_run_shuts_nobody_out(sim: Sim) -> None:
    """It knows nothing of the run any more, as where its caller is in a container: that one has the time to tell it."""
    _, head, edge, _ = boxes = await closed_network(sim, "edge-1", "edge-2")
    async with a_run(head) as told:
        await granted(told)
        await head.kill()
    seen = len(edge.history)
    head.start()
    await sim.until(lambda: head.has("RayJoined")() and edge.facts.cluster_spec is not None, 30)
    async with a_run(head, running=True) as told:
        await granted(told)
        await sim.passes(60)
        assert {facts.cluster_spec.edges_open_to for facts in edge.history[seen:] if facts.cluster_spec} == {"members"}
        assert reached_by(edge) == {address(box) for box in boxes} - {address(edge)}
    await sim.until(lambda: reached_by(edge) == {address(box) for box in boxes[:2]}, SOON_S)


@story
async def test_a_head_that_nobody_comes_back_to_closes_the_edges(sim: Sim) -> None:
    _, head, edge, _ = boxes = await closed_network(sim, "edge-1", "edge-2")
    async with a_run(head) as told:
        await granted(told)
        await head.kill()
    head.start()
    await sim.until(lambda: reached_by(edge) == {address(box) for box in boxes[:2]}, 60)
