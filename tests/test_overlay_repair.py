"""A device that was damaged while EasyTier runs: mended in place where it can be, else a new EasyTier."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network

import pytest
from overlay_world import ADDRESS, UP, World, paths, world  # noqa: F401
from telling import refuses

from edgelink.conditions import Status
from edgelink.errors import (
    OverlayError,
)
from edgelink.overlay.link import LinkState, LocalNetwork


@pytest.mark.parametrize(
    "state, reason",
    [
        (LinkState(), "DeviceMissing"),
        (replace(UP, is_up=False), "DeviceDown"),
        (replace(UP, addresses=()), "AddressWrong"),
    ],
)
async def test_a_device_that_easytier_lost_restarts_it_once_that_has_settled(
    world: World, state: LinkState, reason: str
) -> None:
    """EasyTier notices no device fault: the condition falls at once, the core is restarted a moment later."""
    await world.up()
    world.links.state = state
    assert await world.look() <= 0.2
    assert (world.condition.reason, world.process.stops) == (reason, 0)

    await world.clock.advance(0.25)
    await world.look()
    assert (world.process.stops, len(world.process.started)) == (1, 2)


@pytest.mark.parametrize(
    "state, held, reason",
    [
        (replace(UP, is_up=False), "et0", "DeviceDown"),
        (replace(UP, addresses=()), "et0", "AddressWrong"),
        (replace(UP, addresses=(ADDRESS, IPv4Interface("10.9.0.1/24"))), "et0", "AddressWrong"),
        (replace(UP, mtu=1280), "et0", "MtuWrong"),
        (replace(UP, routes=()), "et0", "RouteMissing"),
        (LinkState(), "foo0", "DeviceMissing"),
        (replace(UP, index=9), "foo0", "DeviceReplaced"),
    ],
    ids=["down", "address lost", "address added", "mtu", "route", "renamed", "renamed, and the name taken"],
)
async def test_a_device_that_easytier_still_holds_is_mended_in_place(
    world: World, state: LinkState, held: str, reason: str
) -> None:
    """Its connections last: no restart for what netlink can put right."""
    await world.up()
    world.links.state, world.held = state, held
    await world.look()
    assert (world.condition.reason, world.mended) == (reason, [])
    await world.clock.advance(0.25)
    await world.look()
    assert world.condition.status is Status.TRUE
    assert (world.mended, world.process.stops) == ([held], 0)


async def test_what_mending_does_not_help_is_restarted(world: World) -> None:
    """A stranger that took the name of our device: EasyTier is ended, and the preflight names the stranger."""
    await world.up()
    world.links.state = world.after_mending = replace(UP, index=9)
    world.held = "foo0"
    await world.look()
    await world.clock.advance(0.25)
    world.obstacle = OverlayError("et0 is held by vpn", reason="DeviceBusy")
    with refuses(OverlayError, "vpn", reason="DeviceBusy"):
        await world.look()
    assert world.process.stops == 1


async def test_a_route_that_does_not_stay_is_named_and_cuts_nothing(world: World) -> None:
    """Somebody who takes the route away again and again gets no restart out of us, and no busy loop."""
    await world.up()
    world.links.state = world.after_mending = replace(UP, routes=())
    world.held = "et0"
    await world.look()
    for _ in range(20):
        await world.clock.advance(0.25)
        await world.look()
    assert (world.process.stops, world.condition.reason) == (0, "RouteMissing")
    assert 3 < len(world.mended) < 15


async def test_a_network_of_the_overlays_addresses_is_told_while_it_runs(world: World) -> None:
    """The hotel's Wi-Fi has 10.10.0.0/24, too: said, and nothing that works is cut."""
    await world.up()
    world.links.networks = [LocalNetwork("wlan0", IPv4Network("10.10.0.0/24"))]
    await world.look()
    assert world.condition.status is Status.TRUE
    assert "wlan0" in world.condition.message
    world.links.networks = []
    await world.look()
    assert "wlan0" not in world.condition.message
    assert world.process.stops == 0


async def test_a_fault_that_passes_at_once_restarts_nothing(world: World) -> None:
    """An address that is taken away and put back within a moment is no reason to cut every connection."""
    await world.up()
    world.links.state = replace(UP, addresses=())
    await world.look()
    world.links.state = UP
    await world.look()
    await world.clock.advance(1)
    await world.look()
    assert world.process.stops == 0
    assert world.condition.status is Status.TRUE
