"""The firewall table around EasyTier's RPC: there before EasyTier, looked at now and then, never a reason to cut."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network

import pytest
from overlay_world import ADDRESS, SPEC, UP, World, paths, running, world  # noqa: F401

from edgelink.conditions import Status
from edgelink.config import OverlayConfig, Paths
from edgelink.overlay.link import LinkState
from edgelink.overlay.nft import FirewallError
from edgelink.overlay.ways import Ways


async def test_what_others_devices_do_costs_no_look_at_the_firewall(world: World) -> None:
    """The table around EasyTier's RPC is looked at every 30 s, and at each change of our own device."""
    await world.up()
    before = world.guard.applied
    for _ in range(10):
        await world.clock.advance(1)
        await world.look()
    assert world.guard.applied == before
    world.links.state = UP  # tells of our device
    await world.look()
    assert world.guard.applied == before + 1

    waited_s = 0.0
    while world.guard.applied == before + 1:
        look_s = await world.look()
        assert look_s > 0
        await world.clock.advance(look_s)
        waited_s += look_s
    assert waited_s >= 30
    assert waited_s <= 60


async def test_a_firewall_that_fails_later_neither_ends_nor_neglects_the_overlay(world: World) -> None:
    """nft was uninstalled: said in the condition, faults are mended as before, and it is tried again."""
    await world.up()
    world.guard.refusal = FirewallError("nft: refused")
    await world.clock.advance(31)
    await world.look()
    assert await world.look() > 0
    assert world.condition.status is Status.TRUE
    assert "EasyTier's RPC is open: nft: refused" in world.condition.message

    world.links.state, world.held = replace(UP, is_up=False), "et0"
    await world.look()
    await world.clock.advance(0.25)
    await world.look()
    assert world.mended == ["et0"]
    assert world.condition.status is Status.TRUE

    world.guard.refusal = None
    await world.clock.advance(31)
    await world.look()
    await world.look()
    assert "RPC" not in world.condition.message
    world.guard.refusal = FirewallError("nft: refused")
    await world.overlay.stop()
    assert world.condition.reason == "Stopped"


async def test_no_easytier_is_started_with_an_open_rpc(world: World) -> None:
    """Before the start, what the firewall refuses is refused."""
    world.guard.refusal = FirewallError("nft: refused")
    with pytest.raises(FirewallError):
        await world.look()
    assert world.process.started == []


async def test_switched_off_a_predecessors_table_goes_and_none_comes(paths: Paths) -> None:
    """`firewall: off` around an EasyTier that was adopted."""
    world = World(paths, adoptable=running(), is_guarded=False)
    world.links.state = UP
    await world.look()
    await world.look()
    assert (world.guard.applied, world.guard.removed) == (0, 1)
    assert world.condition.status is Status.TRUE


async def test_the_overlays_network_leads_nowhere_else_for_as_long_as_easytier_is_wanted(world: World) -> None:
    """Before EasyTier starts, through its end and under another lease; until the overlay is stopped."""
    assert world.routes.around is None
    await world.look()
    assert len(world.process.started) == 1
    assert world.routes.around == ADDRESS.network
    world.links.state = UP
    await world.look()
    world.process.end(1)
    world.links.state = LinkState()
    await world.look()
    assert world.routes.around == ADDRESS.network

    world.given(overlay_spec=replace(SPEC, overlay_ip=IPv4Interface("10.20.0.7/16")))
    await world.clock.advance(31)
    await world.look()
    assert world.routes.around == IPv4Network("10.20.0.0/16")
    await world.overlay.stop()
    assert world.routes.around is None


async def test_the_congestion_control_is_set_for_as_long_as_easytier_is_wanted(world: World) -> None:
    """Before EasyTier starts, because a connection keeps what it began with; and anew where it dials another relay."""
    await world.look()
    assert (world.congestion.starts_before[0], len(world.process.started)) == (0, 1)
    assert world.congestion.around == SPEC
    world.links.state = UP
    other = replace(SPEC, peers=("tcp://198.51.100.9:11010",))
    world.given(overlay_spec=other)
    await world.look()
    assert world.congestion.around == other
    await world.overlay.stop()
    assert world.congestion.around is None


async def test_an_easytier_without_bbr_is_said_and_works(world: World) -> None:
    world.congestion.caveat = "without BBR"
    await world.up()
    assert world.condition.message.endswith("without BBR")


async def test_a_way_by_another_device_is_a_fault_that_easytier_is_not_restarted_for(world: World) -> None:
    """Named with what to do, for as long as it is so. A fault of the device is the nearer cause."""
    await world.up()
    world.given(ways=Ways("cloud's leaves by eth0", "ip rule del"))
    await world.look()
    assert (world.condition.status, world.condition.reason) == (Status.FALSE, "RouteElsewhere")
    assert world.condition.message == "cloud's leaves by eth0; ip rule del"
    assert world.runs_as_wanted
    await world.clock.advance(60)
    await world.look()
    assert (len(world.process.started), world.process.stops) == (1, 0)

    world.links.state = replace(UP, is_up=False)
    await world.look()
    assert world.condition.reason == "DeviceDown"
    world.links.state = UP
    world.given(ways=Ways(caveat="a rule for marked packets"))
    await world.look()
    assert world.condition.status is Status.TRUE
    assert "a rule for marked packets" in world.condition.message


async def test_another_way_is_named_whoever_runs_the_overlay(paths: Paths) -> None:
    """An overlay that was there already gets no rule, and is looked at all the same."""
    world = World(paths, config=OverlayConfig(kind="existing"))
    world.links.state = UP
    world.given(ways=Ways("cloud's leaves by eth0", "ip rule del"))
    await world.look()
    assert world.condition.reason == "RouteElsewhere"
    assert world.routes.around is None


async def test_our_route_is_there_before_anybody_is_told_that_the_overlay_is_up(world: World) -> None:
    """The device has just come: without the route the first connection would be refused."""
    await world.look()
    world.routes.around = None
    world.links.state = UP
    await world.look()
    assert world.told[-1] == (Status.TRUE, ADDRESS.network)


async def test_a_route_that_cannot_be_made_is_said_and_stops_nothing(world: World) -> None:
    """The condition tells what may happen meanwhile."""
    world.routes.caveat = "another way"
    await world.up()
    assert world.condition.message.endswith("another way")
