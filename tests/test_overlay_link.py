"""The device's state, collisions of networks, ownership and the checks before a start."""

from __future__ import annotations

import asyncio
import socket
from contextlib import nullcontext
from dataclasses import replace
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from edgelink.errors import MissingDependencyError, OverlayAddressError, OverlayError
from edgelink.overlay import before_easytier
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.link import LinkMonitor, LinkState, LocalNetwork, check_collision
from edgelink.overlay.ownership import Ownership
from edgelink.process import procfs
from edgelink.reconcile import Wakeup
from edgelink.testing import FakeClock
from edgelink.testing.overlay import FakeLinks

SPEC = OverlaySpec(
    hostname="edge-1",
    network_name="net",
    network_secret="s3cr3t-0123456789",
    overlay_ip=IPv4Interface("10.10.0.7/24"),
    peers=(),
    listeners=(),
    device="et0",
    mtu=1380,
    rpc_port=15888,
    instance_id="0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
)
CIDR = IPv4Network("10.10.0.0/24")


async def test_the_kernel_is_asked_for_a_device() -> None:
    """observe() tells what exists; a missing device is a state, not an error."""
    links = LinkMonitor()
    loopback = await links.observe("lo")
    assert loopback.exists
    assert loopback.mtu > 0
    assert await links.observe("no-such-dev0") == LinkState()


class _Kernel(LinkMonitor):
    """Tells only what a test has it tell."""

    async def _listen(self) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    def tell(self, device: str, index: int) -> None:
        message: Any = ifinfmsg()
        message["index"], message["attrs"] = index, [("IFLA_IFNAME", device)]
        self._dispatch(message)


class _Noted(Wakeup):
    """Notes when it was set."""

    def __init__(self, who: str, told: list[tuple[str, float]], clock: FakeClock) -> None:
        super().__init__()
        self._who, self._told, self._clock = who, told, clock

    def set(self) -> None:
        self._told.append((self._who, self._clock.monotonic_s()))


async def test_the_machines_other_devices_wake_nobody_many_times_a_second() -> None:
    """Docker starts a container: told at once, then twice a second at most, the last word included; ours always."""
    clock, told = FakeClock(), list[tuple[str, float]]()
    links = _Kernel(clock)
    links.watch("et0", _Noted("et0", told, clock))
    links.watch_uplinks("et0", _Noted("others", told, clock))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(links.run())
        await clock.advance(10)
        for number in range(36):  # over 0.9 s
            links.tell(f"veth{number}", 100 + number)
            await clock.advance(0.025)
        assert [when for who, when in told if who == "others"] == pytest.approx([10, 10.5])
        await clock.advance(0.5)
        assert [when for who, when in told if who == "others"] == pytest.approx([10, 10.5, 11])
        told.clear()
        for _ in range(3):
            links.tell("et0", 4)
        assert [who for who, _ in told] == ["et0"] * 3
        await clock.advance(5)
        assert len(told) == 3, "its own device is none of the others"
        links.tell("wlan0", 2)
        await clock.advance(0)
        assert told[-1] == ("others", clock.monotonic_s()), "after a pause at once again"
        task.cancel()


async def test_local_networks_leave_out_loopback_and_the_overlay_itself() -> None:
    """The overlay does not collide with itself, nor with 127.0.0.0/8."""
    networks = await LinkMonitor().local_networks("et0")
    assert not {"lo", "et0"} & {item.device for item in networks}


@pytest.mark.parametrize("network", ["10.10.0.0/24", "10.10.0.0/16", "10.10.0.128/25"])
def test_an_overlay_network_that_is_in_use_is_refused(network: str) -> None:
    """Same, wider or narrower: a network with an address of ours in it is named together with its device."""
    with pytest.raises(OverlayAddressError, match="wlan0") as caught:
        check_collision(
            CIDR, [LocalNetwork("eth0", IPv4Network("192.0.2.0/24")), LocalNetwork("wlan0", IPv4Network(network))]
        )
    assert network in caught.value.message
    assert caught.value.condition_reason == "CidrCollision"
    assert "relay.cidr" in caught.value.hint


def test_a_wide_route_is_no_collision_but_a_narrow_one_is() -> None:
    """10.0.0.0/8 through a VPN leaves the overlay working; a route into the overlay's network does not."""
    check_collision(CIDR, [LocalNetwork("tun1", IPv4Network("10.0.0.0/8"), is_connected=False)])
    with pytest.raises(OverlayAddressError, match="tun1"):
        check_collision(CIDR, [LocalNetwork("tun1", IPv4Network("10.10.0.5/32"), is_connected=False)])


@pytest.mark.parametrize(("is_connected", "is_refused"), [(True, True), (False, False)], ids=["a LAN", "a route"])
async def test_who_pushes_a_route_does_not_keep_the_overlay_down(
    monkeypatch: pytest.MonkeyPatch, is_connected: bool, is_refused: bool
) -> None:
    """Our own rule comes before it. A device with an address in the overlay's network is refused."""
    monkeypatch.setattr(before_easytier, "check_machine", lambda: None)
    links = FakeLinks()
    links.networks = [LocalNetwork("eth0", IPv4Network("10.10.0.0/25"), is_connected=is_connected)]
    with pytest.raises(OverlayAddressError) if is_refused else nullcontext():
        await before_easytier.check(replace(SPEC, rpc_port=0), links)


def test_one_owner_at_a_time_and_a_free_lock_is_taken_over(tmp_path: Path) -> None:
    """The second daemon gets the right only when the first has given it up."""
    first, second = Ownership(tmp_path / "run" / "lock"), Ownership(tmp_path / "run" / "lock")
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    assert first.is_needed_by_others()
    first.release()
    assert second.acquire()
    assert not second.is_needed_by_others()
    second.release()


def test_a_machine_without_tun_is_refused_with_what_to_do(tmp_path: Path) -> None:
    """No /dev/net/tun: named before anything is started."""
    with pytest.raises(MissingDependencyError, match="no TUN devices") as caught:
        before_easytier.check_machine(tun=tmp_path / "tun")
    assert "modprobe tun" in caught.value.hint


@pytest.mark.parametrize(
    ("number", "name", "reason"),
    [(12, "CAP_NET_ADMIN", "NetAdminMissing"), (13, "CAP_NET_RAW", "NetRawMissing")],
)
def test_a_daemon_without_a_right_is_refused(
    number: int, name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No right to make devices, or to bind sockets to them: named, with the container flags."""
    (tmp_path / "tun").touch()
    monkeypatch.setattr(procfs, "has_capability", lambda asked: asked != number)
    monkeypatch.setattr(before_easytier, "may_bind_to_devices", lambda: False)
    with pytest.raises(MissingDependencyError, match=name) as caught:
        before_easytier.check_machine(tun=tmp_path / "tun")
    assert caught.value.condition_reason == reason


def test_a_busy_port_names_its_holder() -> None:
    """RPC and listener ports are checked before the start."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(OverlayError, match=rf"{port}.*held by \S+ \(pid \d+\)") as caught:
            before_easytier.check_ports(replace(SPEC, rpc_port=port))
        assert "overlay.rpc_port" in caught.value.hint
        with pytest.raises(OverlayError, match=str(port)) as caught:
            before_easytier.check_ports(replace(SPEC, rpc_port=1, listeners=(f"tcp://127.0.0.1:{port}",)))
        assert "overlay.listeners" in caught.value.hint
    before_easytier.check_ports(replace(SPEC, rpc_port=port, listeners=("tcp://0.0.0.0:0",)))
