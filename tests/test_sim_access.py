"""Stories of access rules: the operator opens and closes ports of nodes, on whole daemons in memory."""

from __future__ import annotations

from ipaddress import IPv4Address

from sim import Box, Sim, all_ready, ready, story
from test_sim_secrets import Disk, topics

from edgelink.errors import NotRecordedError
from edgelink.overlay.openings import Opening
from edgelink.protocol.transport import Message

SOON_S = 2.0


def open_on(box: Box) -> set[Opening]:
    return set(box.facts.openings)


def ssh(*sources: Box) -> set[Opening]:
    """The port of sshd, open for these machines."""
    return {Opening("tcp", 22, 22, frozenset(map(address, sources)) or None)}


def address(box: Box) -> IPv4Address:
    return box.membership.lease.overlay_ip


def shown(head: Box, node: Box) -> tuple[str, ...]:
    """What the head has heard of the node."""
    return head.facts.statuses.rows[node.node_id].open_ports


async def allow(relay: Box, target: str, *sources: str) -> None:
    await relay.asks("POST", "/access", target=target, ports="tcp/22", sources=list(sources))


async def deny(relay: Box, target: str, *sources: str) -> None:
    await relay.asks("DELETE", "/access", target=target, ports="tcp/22", sources=list(sources))


@story
async def test_the_operator_opens_a_port_and_closes_it_again(sim: Sim) -> None:
    """On the nodes that are meant, the relay itself among them, within two seconds; nothing else happens there."""
    relay, head, edge, other = boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    await allow(relay, "edge-1", "head")
    await sim.until(lambda: open_on(edge) == ssh(head), SOON_S)
    assert not open_on(head) | open_on(other) | open_on(relay)
    await allow(relay, "relay", "edge")
    await sim.until(lambda: open_on(relay) == ssh(edge, other), SOON_S)
    listed = await relay.asks("GET", "/access")
    assert listed["behind"] == []
    assert [rule["lets_in"] for rule in listed["rules"]] == [["cloud"], ["edge-1", "edge-2"]]
    await sim.until(lambda: shown(head, edge) == (f"tcp/22 from {address(head)}",), SOON_S)
    await deny(relay, "edge-1", "head")
    await sim.until(lambda: not open_on(edge), SOON_S)
    await sim.until(lambda: shown(head, edge) == (), SOON_S)
    assert open_on(relay) == ssh(edge, other)
    await all_ready(sim, boxes)


@story
async def test_who_joins_later_is_meant_as_well(sim: Sim) -> None:
    """By a rule for its role: in its own document, and in those of the others."""
    relay, head, edge = await ready(sim, "cloud", "edge-1")
    await allow(relay, "head", "edge")
    await allow(relay, "edge", "head")
    await sim.until(lambda: open_on(head) == ssh(edge), SOON_S)
    other = await sim.join("edge-2", edge.role, relay)
    other.start()
    await sim.until(lambda: open_on(head) == ssh(edge, other), SOON_S)
    await sim.until(lambda: other.daemon is not None and open_on(other) == ssh(head), 10)


@story
async def test_a_node_keeps_its_rules_without_the_relay(sim: Sim) -> None:
    """Through a restart, from its first moment on. What was said meanwhile it hears when the relay is back."""
    relay, head, edge = boxes = await ready(sim, "cloud", "edge-1")
    await allow(relay, "edge", "head")
    await sim.until(lambda: open_on(edge) == ssh(head), SOON_S)
    await relay.stop()
    await edge.kill()
    edge.start()
    await sim.until(edge.has("RegistryConnected", "RegistryUnavailable"), 30)
    assert open_on(edge) == ssh(head)
    assert edge.machine.history.count("+easytier") == 1, "it was adopted"
    relay.start()
    await sim.until(relay.has("RegistryConnected"), 10)
    assert not open_on(relay)
    await deny(relay, "edge", "head")
    await sim.until(lambda: not open_on(edge), 60)
    await all_ready(sim, boxes)


@story
async def test_a_relay_that_restarts_goes_by_its_own_rules(sim: Sim) -> None:
    """From its first moment on."""
    relay, head, _ = await ready(sim, "cloud", "edge-1")
    await allow(relay, "relay", "head")
    await relay.stop()
    relay.start()
    assert relay.daemon is not None
    await sim.until(lambda: open_on(relay) == ssh(head), SOON_S)


@story
async def test_every_relay_is_meant(sim: Sim) -> None:
    """One without a registry is told like any node."""
    relay, _, edge = await ready(sim, "cloud", "edge-1")
    second = await sim.second_relay(relay)
    second.start()
    await sim.until(second.has("RegistryConnected"), 10)
    await allow(relay, "relay", "edge")
    await sim.until(lambda: open_on(relay) == open_on(second) == ssh(edge), SOON_S)


@story
async def test_a_seized_broker_closes_and_opens_nothing(sim: Sim) -> None:
    """It plays all it ever heard again, in any order, to a node that has restarted."""
    relay, head, edge = await ready(sim, "cloud", "edge-1")
    await allow(relay, "edge", "all")
    await sim.until(lambda: open_on(edge) == ssh(), SOON_S)
    await deny(relay, "edge", "all")
    await sim.until(lambda: not open_on(edge), SOON_S)
    await allow(relay, "edge", "head")
    await sim.until(lambda: open_on(edge) == ssh(head), SOON_S)
    await edge.stop()
    edge.start()
    await sim.until(edge.has("RegistryConnected"), 10)
    memory, topic, client = relay.machine.memory, topics(relay).access(edge.node_id), edge.registry
    recorded = [message.payload for message in memory.published if message.topic == topic and message.payload]
    assert len(recorded) >= 3
    assert client is not None
    ignored = client.refusals.total
    others = [message.payload for message in memory.published if message.topic == topics(relay).access(head.node_id)]
    for payload in (*recorded, *reversed(recorded), *others, b"", b"{}"):
        memory.publish(Message(topic, payload, retain=True))
    await sim.until(lambda: client.refusals.total > ignored, SOON_S)
    await sim.passes(5)
    assert open_on(edge) == ssh(head)


@story
async def test_a_full_disk_delays_an_opening_and_no_closing(sim: Sim) -> None:
    """The node writes it down by itself once there is room."""
    relay, head, edge = await ready(sim, "cloud", "edge-1")
    await allow(relay, "edge", "head")
    await sim.until(lambda: open_on(edge) == ssh(head), SOON_S)
    disk, files = Disk(), edge.node.base.files
    files.require = disk.guard(files.require, NotRecordedError("no room"))  # type: ignore[method-assign]
    disk.is_full = True
    await allow(relay, "edge", "relay")
    await sim.passes(20)
    assert open_on(edge) == ssh(head)
    await deny(relay, "edge", "head")
    await sim.until(lambda: not open_on(edge), SOON_S)
    disk.is_full = False
    await sim.until(lambda: open_on(edge) == ssh(relay), 10)
