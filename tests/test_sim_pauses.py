"""A node that does not answer is told as paused, by whole daemons; nothing else follows from it."""

from __future__ import annotations

from sim import Box, Sim, ready, story

from edgelink.daemon.leave import tell_left
from edgelink.wording import presence_in_words


async def state_of(head: Box, name: str) -> str:
    rows = (await head.asks("GET", "/nodes"))["nodes"]
    return str(next(row["state"] for row in rows if row["hostname"] == name))


async def by_the_relay(relay: Box) -> dict[str, str]:
    rows = (await relay.asks("GET", "/leases"))["leases"]
    return {row["hostname"]: presence_in_words(row) for row in rows if row["hostname"] != "relay"}


@story
async def test_a_cut_off_edge_is_paused_within_ten_seconds_and_back_within_five(sim: Sim) -> None:
    """Its Ray goes on, and so do the spec and the ranks of all. The relay hears of it before the broker misses it."""
    relay, head, edge, other = await ready(sim, "cloud", "edge-1", "edge-2")
    spec = head.facts.cluster_spec
    edge.machine.is_cut = True
    await sim.until(head.has("NodesReady", "NodesPaused"), within_s=10)
    assert (await state_of(head, "edge-1"), await state_of(head, "edge-2")) == ("paused", "ready")
    await sim.passes(2)
    assert await by_the_relay(relay) == {"cloud": "Degraded", "edge-1": "paused", "edge-2": "Ready"}
    await sim.passes(120)
    assert await state_of(head, "edge-1") == "paused", "also once the broker says that it is gone"
    edge.machine.is_cut = False
    await sim.until(head.has("NodesReady", "AllAlive"), within_s=5)
    assert await state_of(head, "edge-1") == "ready"
    await sim.passes(2)
    assert await by_the_relay(relay) == dict.fromkeys(("cloud", "edge-1", "edge-2"), "Ready")
    assert head.facts.cluster_spec == spec
    assert other.is_ready()


@story
async def test_an_edge_that_is_switched_off_is_off(sim: Sim) -> None:
    """Also to a head's daemon that was not there when it was, and no more once it is back."""
    _, head, edge = await ready(sim, "cloud", "edge-1")
    await edge.stop()
    await sim.passes(1)
    assert await state_of(head, "edge-1") == "off"
    await head.kill()
    head.start()
    await sim.until(head.has("RayJoined", "AliveInRay"), within_s=60)
    assert await state_of(head, "edge-1") == "off"
    assert not head.facts.paused
    edge.start()
    await sim.until(head.has("NodesReady", "AllAlive"), within_s=60)
    assert await state_of(head, "edge-1") == "ready"


@story
async def test_an_edge_that_was_off_is_back_also_while_the_relay_is_away(sim: Sim) -> None:
    """Nobody tells the head that its last word is old, but for Ray. Once it is cut off, it is paused."""
    relay, head, edge = await ready(sim, "cloud", "edge-1")
    await edge.stop()
    await sim.until(head.has("NodesReady", "NodesMissing"), within_s=10)
    relay.machine.memory.stop()
    await sim.passes(5)
    assert await state_of(head, "edge-1") == "off"
    edge.start()
    await sim.until(head.has("NodesReady", "AllAlive"), within_s=60)
    assert await state_of(head, "edge-1") == "ready"
    edge.machine.is_cut = True
    await sim.until(head.has("NodesReady", "NodesPaused"), within_s=120)
    assert await state_of(head, "edge-1") == "paused"


@story
async def test_an_edge_that_leaves_has_left(sim: Sim) -> None:
    """Not switched off, which `up` would mend. The registry remembers it, whatever becomes of the broker."""
    _, head, edge = await ready(sim, "cloud", "edge-1")
    membership = edge.membership
    await edge.stop()
    assert await tell_left(membership, edge.machine)
    await sim.passes(5)
    (row,) = [row for row in (await head.asks("GET", "/nodes"))["nodes"] if row["hostname"] == "edge-1"]
    assert (row["state"], row["ray"]) == ("off", "left")
    assert head.facts.directory is not None
    assert head.facts.directory.left == (edge.node_id,)


@story
async def test_an_edge_whose_daemon_alone_has_died_is_not_paused(sim: Sim) -> None:
    """Its machine answers, and its Ray goes on; that its daemon is away is told all the same."""
    _, head, edge = await ready(sim, "cloud", "edge-1")
    await edge.kill()
    await sim.passes(30)
    (row,) = [row for row in (await head.asks("GET", "/nodes"))["nodes"] if row["hostname"] == "edge-1"]
    assert (row["state"], row["online"]) == ("ready", False)
    assert row["wrong"]
    assert head.has("NodesReady", "AllAlive")()


@story
async def test_an_edge_whose_daemon_has_died_is_paused_as_soon_as_any_other(sim: Sim) -> None:
    """It is not in touch with the relay any more, and Ray lists it all the same."""
    _, head, edge = await ready(sim, "cloud", "edge-1")
    await edge.kill()
    await sim.passes(90)
    edge.machine.is_cut = True
    await sim.until(head.has("NodesReady", "NodesPaused"), within_s=10)
