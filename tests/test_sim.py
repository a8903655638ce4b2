"""Stories of whole networks: relay, head and edges as they are put together in life, in memory and on virtual time."""

from __future__ import annotations

import os
import random
import re
from typing import Any

from sim import Box, Sim, all_ready, ready, story
from sim_machine import BROKER, EASYTIER, ECHO, GCS, RAYLET, Machine

from edgelink.api import schema
from edgelink.conditions import Status
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ExitCode, TokenError
from edgelink.member.admission import PATIENCE_S, ClonedNodeError
from edgelink.member.registry_client import STATUS_INTERVAL_S
from edgelink.overlay.rpc_guard import RPC_TABLE
from edgelink.protocol.payloads import Role
from edgelink.protocol.refusals import NodeRevokedError


def test_no_daemon_of_a_simulation_touches_this_machine() -> None:
    """What is added to a machine has to be played, too."""
    borders = {name for name in vars(ThisMachine) if not name.startswith("_")} - {"proc_sys"}
    assert borders <= vars(Machine).keys()


def of_overlay_and_ray(box: Box) -> list[str]:
    """What began and ended there, in order."""
    return [event for event in box.machine.history if event[1:] in (EASYTIER, RAYLET)]


@story
async def test_a_head_and_two_edges_become_ready(sim: Sim) -> None:
    _, head, edge, other = await ready(sim, "cloud", "edge-1", "edge-2")
    assert [node["node_rank"] for node in (await head.asks("GET", "/peers"))["peers"]] == [None, 1, 2]
    for box in (head, edge, other):
        assert of_overlay_and_ray(box) == ["+easytier", "+raylet"]


@story
async def test_a_copy_of_a_node_starts_nothing(sim: Sim) -> None:
    """The original is there and says so."""
    *_, edge = boxes = await ready(sim, "cloud", "edge-1")
    copy = sim.box("copy", Role.EDGE)
    copy.copied_from(edge)
    copy.start()
    failure = await copy.ends(within_s=10)
    assert isinstance(failure, ClonedNodeError)
    assert failure.exit_code == ExitCode.CONFIG
    assert copy.machine.history == []
    await all_ready(sim, boxes)


@story
async def test_a_member_that_takes_the_heads_address_is_kept_out(sim: Sim) -> None:
    """What runs goes on, and nothing starts; once the head answers again all is as before."""
    _, head, edge, thief = boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    address = str(head.machine.overlay_ip)
    sim.world.stolen[address] = thief.machine
    await sim.until(edge.has("PeersReachable", "PeerNotWhoItSays"), within_s=15)
    await sim.passes(3)
    kept_out = f"ip saddr {{ {address} }} counter drop"
    assert kept_out in edge.machine.firewall["edgelink_easytier"]
    edge.machine.end(RAYLET)
    await sim.until(edge.has("RayJoined", "WaitingForOverlay"), within_s=60)
    await sim.passes(120)
    assert of_overlay_and_ray(edge) == ["+easytier", "+raylet", "-raylet"]
    del sim.world.stolen[address]
    await all_ready(sim, boxes)
    assert kept_out not in edge.machine.firewall["edgelink_easytier"]


@story
async def test_a_member_that_takes_the_heads_address_and_proves_nothing_is_found_by_the_registrys_word(
    sim: Sim,
) -> None:
    """The head tells the registry meanwhile that its echo is up."""
    _, head, edge, thief = boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    thief.machine.proves_nothing = True
    sim.world.stolen[str(head.machine.overlay_ip)] = thief.machine
    await sim.passes(60)
    assert edge.has("PeersReachable", "Reachable")()
    await sim.until(edge.has("PeersReachable", "PeerNotWhoItSays"), within_s=30)
    sim.world.stolen.clear()
    await all_ready(sim, boxes)
    assert of_overlay_and_ray(edge) == ["+easytier", "+raylet"]


@story
async def test_the_heads_daemon_and_its_echo_are_away_and_nobody_is_kept_out(sim: Sim) -> None:
    """Killed for two minutes, its responder too: no proof comes, and that is no wrong one."""
    _, head, edge = boxes = await ready(sim, "cloud", "edge-1")
    await head.kill()
    head.machine.end(ECHO)
    await sim.passes(120)
    assert edge.has("PeersReachable", "Reachable")()
    assert not any(facts.impostors for facts in edge.history)
    head.start()
    await all_ready(sim, boxes)
    assert of_overlay_and_ray(edge) == ["+easytier", "+raylet"]


@story
async def test_every_daemon_tells_how_it_is_on_its_socket(sim: Sim) -> None:
    """What `edgelink status` and `edgelink nodes` show, through an edge's life."""
    relay, head, edge = boxes = await sim.network("cloud", "edge-1")
    await sim.passes(0.1)  # its socket is there by then
    assert (await told(edge))["phase"] == "Starting"
    await all_ready(sim, boxes)
    await sim.passes(2 * STATUS_INTERVAL_S)  # a burst of changes becomes one message
    for box in boxes:
        found = await told(box)
        assert (found["hostname"], found["phase"], found["impact"]) == (box.name, "Ready", None)
    assert {path["hostname"] for path in (await told(relay))["paths"]} == {"cloud", "edge-1"}
    assert await shown(head, "edge-1") == ("Ready", True, [])
    assert (await told(head))["node_rank"] == 0
    edge.machine.is_cut = True
    await sim.until(lambda: not relay.relay.registry.statuses[edge.node_id].online, within_s=60)
    found = await told(edge)
    assert found["phase"] == "Degraded"
    assert "traffic with nodes that do not answer" in found["impact"]["waits"]
    phase, _, _ = await shown(head, "edge-1")
    assert phase is None, "it is away"
    edge.machine.is_cut = False
    await all_ready(sim, boxes)
    await sim.passes(2 * STATUS_INTERVAL_S)  # a burst of changes becomes one message
    assert await shown(head, "edge-1") == ("Ready", True, [])


async def told(box: Box) -> dict[str, Any]:
    """What its daemon says of itself, as the reference describes it."""
    found = await box.asks("GET", "/status") | await box.asks("GET", "/paths")
    schema.Daemon.model_validate(found)
    return found


async def shown(head: Box, hostname: str) -> tuple[str | None, bool, list[str]]:
    """Phase, readiness and what is wrong of a node, as the head has them."""
    (row,) = (row for row in (await head.asks("GET", "/nodes"))["nodes"] if row["hostname"] == hostname)
    schema.Node.model_validate(row)
    return row["phase"], row["ready"], row["wrong"]


@story
async def test_a_machine_joins_by_a_token_once_the_relay_answers(sim: Sim) -> None:
    """By one of its own: the next machine is refused."""
    relay = await sim.relay()
    edge, other = sim.box("edge-1", Role.EDGE), sim.box("edge-2", Role.EDGE)
    edge.enrolment = other.enrolment = await sim.invited("edge-1", Role.EDGE, relay)
    await relay.stop()
    edge.start()
    await sim.until(edge.has("Leased", "RegistryUnavailable"), within_s=5)
    await sim.passes(60)
    assert edge.machine.history == []
    relay.start()
    await sim.until(lambda: edge.has("OverlayUp")() and edge.has("RegistryConnected")(), within_s=30)
    assert edge.condition("Leased").message.startswith(f"edge-1 holds {edge.machine.overlay_ip}")
    other.start()
    assert isinstance(await other.ends(within_s=5), TokenError)
    assert other.machine.history == []


@story
async def test_the_overlay_goes_on_by_another_relay(sim: Sim) -> None:
    """The one with the registry is away, with its EasyTier: nobody is lost, and nothing is started anew."""
    relay, *nodes = boxes = await ready(sim, "cloud", "edge-1")
    second = await sim.second_relay(relay)
    second.start()
    await all_ready(sim, [*boxes, second])
    assert second.facts.easytier_as_wanted
    await sim.until(lambda: all("relay-2" in node.condition("RelaysReachable").message for node in nodes), within_s=60)
    await relay.stop()
    await sim.until(lambda: not any(node.has("RegistryConnected")() for node in [*nodes, second]), within_s=30)
    await sim.passes(60)
    for node in nodes:
        assert node.condition("PeersReachable").status is Status.TRUE
        assert of_overlay_and_ray(node) == ["+easytier", "+raylet"]
    relay.start()
    await all_ready(sim, [*boxes, second])


@story
async def test_without_the_registry_a_member_starts_its_overlay_after_a_moment(sim: Sim) -> None:
    relay = await sim.relay()
    edge = await sim.join("edge-1", Role.EDGE, relay)
    await relay.stop()
    edge.start()
    took_s = await sim.until(lambda: edge.machine.running(EASYTIER), within_s=10)
    assert PATIENCE_S <= took_s < PATIENCE_S + 0.2
    assert edge.condition("RegistryConnected").reason == "RegistryUnavailable"


def let_in(box: Box) -> set[str]:
    """The overlay addresses whose packets come in there."""
    found = re.search(r"ip saddr \{ (.*?) \} accept", box.machine.firewall[RPC_TABLE])
    assert found, box.machine.firewall
    return set(found[1].split(", "))


@story
async def test_all_let_in_a_new_node_by_the_time_its_overlay_starts(sim: Sim) -> None:
    """Nobody else's address, and not the address of a node that was released."""
    relay, *_ = boxes = await ready(sim, "cloud", "edge-1")
    for box in boxes:
        assert let_in(box) == {"10.10.0.1", "10.10.0.2", "10.10.0.3"}
    other = await sim.join("edge-2", Role.EDGE, relay)
    other.start()
    await sim.until(lambda: other.machine.running(EASYTIER), within_s=10)
    for box in boxes:
        assert let_in(box) == {"10.10.0.1", "10.10.0.2", "10.10.0.3", "10.10.0.4"}
    await all_ready(sim, [*boxes, other])
    await other.stop()
    await relay.asks("DELETE", "/leases/edge-2")
    await sim.until(lambda: all("10.10.0.4" not in let_in(box) for box in boxes), within_s=5)


@story
async def test_another_address_waits_for_who_works_here(sim: Sim) -> None:
    """Meanwhile the others let both in."""
    relay, head, edge = boxes = await ready(sim, "cloud", "edge-1")
    edge.machine.workers = ["ray::RolloutWorker"]
    await relay.asks("PATCH", "/leases/edge-1", ip="10.10.0.60", force=True)
    await sim.until(edge.has("Leased", "LeaseChangeWaits"), within_s=5)
    await sim.passes(60)
    for box in (relay, head):
        assert let_in(box) == {"10.10.0.1", "10.10.0.2", "10.10.0.3", "10.10.0.60"}
    assert of_overlay_and_ray(edge) == ["+easytier", "+raylet"]
    edge.machine.workers = []
    await sim.until(lambda: str(edge.machine.overlay_ip) == "10.10.0.60", within_s=15)
    await all_ready(sim, boxes)
    assert of_overlay_and_ray(edge) == ["+easytier", "+raylet", "-raylet", "-easytier", "+easytier", "+raylet"]
    assert of_overlay_and_ray(head) == ["+easytier", "+raylet"]


@story
async def test_another_secret_costs_one_restart_of_the_overlay(sim: Sim) -> None:
    relay, *nodes = boxes = await ready(sim, "cloud", "edge-1")
    former = relay.machine.network
    await relay.asks("POST", "/rotate-secret")
    await all_ready(sim, boxes)
    assert len({box.machine.network for box in boxes} - {former}) == 1
    assert of_overlay_and_ray(relay) == ["+easytier", "-easytier", "+easytier"]
    for node in nodes:
        assert of_overlay_and_ray(node) == ["+easytier", "+raylet", "-easytier", "+easytier"]


@story
async def test_the_next_daemon_adopts_what_a_killed_one_has_left(sim: Sim) -> None:
    boxes = await ready(sim, "cloud", "edge-1")
    for box in boxes:
        before = box.machine.history.copy()
        await box.kill()
        await sim.passes(5)
        box.start()
        await all_ready(sim, boxes)
        assert box.machine.history == before
        assert box.machine.running(ECHO)


@story
async def test_a_node_that_is_revoked_puts_itself_out(sim: Sim) -> None:
    relay, head, edge, other = await ready(sim, "cloud", "edge-1", "edge-2")
    former = relay.machine.network
    await relay.asks("POST", "/revoke", node="edge-1")
    assert isinstance(await edge.ends(within_s=5), NodeRevokedError)
    assert not edge.machine.running(EASYTIER)
    assert not edge.machine.running(RAYLET)
    await all_ready(sim, [relay, head, other])
    assert relay.machine.network == head.machine.network == other.machine.network != former
    before = edge.machine.history.copy()
    edge.start()
    assert isinstance(await edge.ends(within_s=5), NodeRevokedError)
    assert edge.machine.history == before


@story
async def test_a_relay_that_was_stopped_costs_a_pause(sim: Sim) -> None:
    relay, *nodes = boxes = await ready(sim, "cloud", "edge-1")
    await relay.stop()
    await sim.until(lambda: not any(node.has("PeersReachable")() for node in nodes), within_s=20)
    relay.start()
    await all_ready(sim, boxes)
    for node in nodes:
        assert of_overlay_and_ray(node) == ["+easytier", "+raylet"]


@story
async def test_an_uplink_that_is_away_costs_a_pause(sim: Sim) -> None:
    relay, _, edge = boxes = await ready(sim, "cloud", "edge-1")
    edge.machine.is_cut = True
    await sim.until(lambda: not edge.has("PeersReachable")(), within_s=20)
    await sim.until(lambda: not edge.has("RegistryConnected")(), within_s=25)
    assert not relay.relay.registry.statuses[edge.node_id].online
    await sim.passes(60)
    edge.machine.is_cut = False
    await all_ready(sim, boxes)
    for node in boxes[1:]:
        assert of_overlay_and_ray(node) == ["+easytier", "+raylet"]


@story
async def test_an_easytier_that_ends_is_started_again(sim: Sim) -> None:
    *_, edge = boxes = await ready(sim, "cloud", "edge-1")
    edge.machine.end(EASYTIER)
    await sim.until(lambda: edge.machine.running(EASYTIER), within_s=5)
    await all_ready(sim, boxes)
    assert of_overlay_and_ray(edge) == ["+easytier", "+raylet", "-easytier", "+easytier"]


@story
async def test_a_raylet_that_ends_is_started_again(sim: Sim) -> None:
    *_, head, edge = boxes = await ready(sim, "cloud", "edge-1")
    edge.machine.end(RAYLET)
    await sim.until(head.has("NodesReady", "NodesMissing"), within_s=5)
    await all_ready(sim, boxes)
    assert of_overlay_and_ray(edge) == ["+easytier", "+raylet", "-raylet", "+raylet"]
    assert of_overlay_and_ray(head) == ["+easytier", "+raylet"]


@story
async def test_a_head_that_has_another_ray_is_followed(sim: Sim) -> None:
    *_, head, edge = boxes = await ready(sim, "cloud", "edge-1")
    head.machine.end(GCS)
    await sim.until(head.has("NodesReady", "NodesMissing"), within_s=5)
    await all_ready(sim, boxes)
    for node in (head, edge):
        assert of_overlay_and_ray(node) == ["+easytier", "+raylet", "-raylet", "+raylet"]


@story
async def test_a_broker_that_ends_is_started_again(sim: Sim) -> None:
    relay, *nodes = boxes = await ready(sim, "cloud", "edge-1")
    relay.machine.end(BROKER)
    await sim.until(lambda: not any(node.has("RegistryConnected")() for node in nodes), within_s=1)
    await all_ready(sim, boxes)
    for node in nodes:
        assert of_overlay_and_ray(node) == ["+easytier", "+raylet"]


async def storm(sim: Sim, boxes: list[Box], faults: list[str]) -> None:
    """Faults that are drawn, some before the last one was mended."""
    dice = random.Random(sim.seed)
    for _ in range(200 if os.environ.get("EDGELINK_SOAK") else 5):
        box, fault = dice.choice(boxes), dice.choice(faults)
        sim.note(f"{fault} of {box.name} ends")
        if fault == "daemon":
            await box.kill()
            await sim.passes(dice.uniform(0, 5))
            box.start()
        elif fault == "daemon and all":
            await box.stop()
            box.start()
        elif fault == "uplink":
            box.machine.is_cut = True
            await sim.passes(dice.uniform(0, 40))
            box.machine.is_cut = False
        else:
            box.machine.end(fault)
        if dice.random() < 0.5:
            await all_ready(sim, boxes)
    await all_ready(sim, boxes)


BESIDE_RAY = [EASYTIER, ECHO, BROKER, "daemon", "uplink"]


@story
async def test_whatever_ends_whenever_everybody_comes_back(sim: Sim) -> None:
    await storm(sim, await ready(sim, "cloud", "edge-1", "edge-2"), [*BESIDE_RAY, RAYLET, GCS, "daemon and all"])


@story
async def test_whatever_ends_beside_ray_does_not_touch_it(sim: Sim) -> None:
    """Nor do daemons that were killed while it worked."""
    boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    await storm(sim, boxes, BESIDE_RAY)
    for node in boxes[1:]:
        assert not {f"-{RAYLET}", f"-{GCS}"} & set(node.machine.history)
