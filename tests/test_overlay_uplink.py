"""When EasyTier is started anew because the machine's uplink changed, and when it is left alone."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface

import pytest

from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.uplink import Finding, Uplink
from edgelink.process.ports import Connection, connections_of
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with
from edgelink.testing.overlay import FakeLinks

RELAY = IPv4Address("203.0.113.10")
WIFI, LTE = IPv4Address("192.168.1.2"), IPv4Address("10.60.0.2")
SPEC = OverlaySpec(
    hostname="edge-1",
    network_name="net",
    network_secret="top-secret-0123456789",
    overlay_ip=IPv4Interface("10.10.0.7/24"),
    peers=(f"tcp://{RELAY}:11010",),
    listeners=("tcp://0.0.0.0:11010",),
    device="et0",
    mtu=1380,
    rpc_port=15888,
    instance_id="0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
)


class Machine:
    """An EasyTier that is connected to the relay through Wi-Fi, and heard from somebody a moment ago."""

    def __init__(self) -> None:
        self.clock, self.links = FakeClock(), FakeLinks()
        self.links.uplinks = {"wlan0": WIFI}
        self.connections = [Connection(WIFI, 40381, RELAY)]
        self.asked_s: list[float] = []
        self.board = board_with()
        self.heard_at(0.0)
        self.uplink = Uplink(self.board, self.links, self.clock, lambda _pid: self.connections)

    def heard_at(self, asked_s: float | None) -> None:
        """Somebody has answered a question of that moment."""
        self.board.given(last_answer_s=asked_s)

    async def look(self) -> Finding:
        wishes = self.board.facts.echo_wishes
        finding = await self.uplink.look(77, SPEC)
        self.asked_s += [self.clock.monotonic_s()] * (self.board.facts.echo_wishes - wishes)
        return finding

    async def looks(self, seconds: float) -> list[Finding]:
        """As the reconciler does: again when the last look asked for it."""
        found = []
        for _ in range(round(seconds / 0.25)):
            found.append(await self.look())
            await self.clock.advance(0.25)
        return found


@pytest.fixture
async def machine() -> Machine:
    machine = Machine()
    assert await machine.look() == Finding()
    return machine


async def test_another_address_means_another_easytier(machine: Machine) -> None:
    """Wi-Fi to LTE: its connection comes from an address that is gone; certain as soon as that has settled."""
    machine.links.uplinks = {"wwan0": LTE}
    first = await machine.look()
    assert (first.redial, first.look_again_s) == ("", 0.5)
    await machine.clock.advance(0.5)
    why = (await machine.look()).redial
    assert all(word in why for word in (str(WIFI), "wwan0", str(LTE), str(RELAY)))


@pytest.mark.parametrize("answers", [True, False])
async def test_a_second_card_that_goes_takes_no_working_easytier_along(machine: Machine, answers: bool) -> None:
    """A direct connection of a LAN's card is gone with it; the relay's over Wi-Fi works, unless nobody answers."""
    lan = IPv4Address("172.20.0.2")
    machine.links.uplinks = {"eth0": lan, "wlan0": WIFI}
    machine.connections.append(Connection(lan, 50312, IPv4Address("172.20.0.9")))
    assert await machine.look() == Finding()
    await machine.clock.advance(10)
    machine.heard_at(machine.clock.monotonic_s())
    machine.links.uplinks = {"wlan0": WIFI}
    assert (await machine.look()).look_again_s == 2.5
    await machine.clock.advance(0.25)
    if answers:
        machine.heard_at(machine.clock.monotonic_s())
    findings = await machine.looks(30)
    if answers:
        assert findings == [Finding()] * len(findings)
    else:
        assert next(index for index, finding in enumerate(findings) if finding.redial) == 9, "after 2.5 s"
        assert str(lan) in findings[-1].redial


async def test_a_way_that_comes_late_has_to_settle_too(machine: Machine) -> None:
    """After a time without any uplink, the first way may be one for a moment only."""
    machine.links.uplinks = {}
    await machine.looks(20)
    machine.links.uplinks = {"docker0": IPv4Address("172.17.0.1")}
    assert (await machine.look()).look_again_s == 0.5
    machine.links.uplinks = {"wlan0": WIFI}
    assert await machine.look() == Finding()


async def test_without_any_uplink_it_is_waited_and_said(machine: Machine) -> None:
    """Starting EasyTier anew would gain nothing; when the same address is back, nothing was to be done."""
    machine.links.uplinks = {}
    findings = await machine.looks(60)
    assert not any(finding.redial for finding in findings)
    assert "no other way" in findings[-1].caveat
    machine.links.uplinks = {"wlan0": WIFI}
    assert await machine.looks(60) == [Finding()] * 240


async def test_a_renewed_lease_and_a_flapping_link_change_nothing(machine: Machine) -> None:
    """The address goes and comes within a moment, again and again; another card appears and goes."""
    for _ in range(20):
        machine.links.uplinks = {"wwan0": LTE}
        assert (await machine.look()).redial == ""
        await machine.clock.advance(0.3)
        machine.links.uplinks = {"wlan0": WIFI}
        assert (await machine.look()).redial == ""
        await machine.clock.advance(0.3)
    machine.links.uplinks = {"eth7": LTE, "wlan0": WIFI}
    assert not any(finding.redial for finding in await machine.looks(30))


async def test_another_route_is_a_reason_only_when_nobody_answers(machine: Machine) -> None:
    """The default route moved and the old address is still there: the connection may work, or may not."""
    machine.links.uplinks = {"wlan0": WIFI, "wwan0": LTE}
    assert (await machine.look()).redial == ""
    await machine.clock.advance(1)
    machine.heard_at(machine.clock.monotonic_s())  # somebody answered after the change
    assert not any(finding.redial for finding in await machine.looks(30))

    machine.links.uplinks = {"wwan0": LTE, "wlan0": WIFI}  # and now nobody does
    machine.connections = [Connection(LTE, 40382, RELAY)]
    findings = await machine.looks(5)
    assert next(index for index, finding in enumerate(findings) if finding.redial) == 10, "after 2.5 s"
    assert "nobody has answered" in findings[-1].redial


async def test_a_route_that_moves_before_the_first_look_is_seen(machine: Machine) -> None:
    """What counts is the way at EasyTier's start, not the one at the first look after it."""
    await machine.uplink.starting(SPEC)
    await machine.clock.advance(1)
    machine.links.uplinks = {"wlan0": WIFI, "wwan0": LTE}
    assert any(finding.redial for finding in await machine.looks(4))


async def test_an_answer_to_a_question_from_before_the_change_proves_nothing(machine: Machine) -> None:
    """It may have come in over the old way; the others are asked anew at once, and only that is waited for."""
    await machine.clock.advance(10)
    machine.heard_at(machine.clock.monotonic_s() - 0.1)
    machine.links.uplinks = {"wlan0": WIFI, "wwan0": LTE}
    assert any(finding.redial for finding in await machine.looks(4))
    assert machine.asked_s == [machine.clock.monotonic_s() - 4], "once a change"


@pytest.mark.parametrize("answers", [True, False])
async def test_an_easytier_that_went_along_is_left_alone_while_it_works(machine: Machine, answers: bool) -> None:
    """It has connected from the new address by itself. One that lost the relay all the same is started anew, once."""
    machine.links.uplinks = {"wlan0": WIFI, "wwan0": LTE}
    machine.connections.append(Connection(LTE, 40382, RELAY))
    before = await machine.looks(9)
    if answers:
        machine.heard_at(machine.clock.monotonic_s())
    after = await machine.looks(30)
    assert not any(finding.redial for finding in before)
    assert any(finding.redial for finding in after) is not answers
    if not answers:
        assert "10 s" in after[-1].redial


async def test_a_network_that_comes_after_easytier_is_used() -> None:
    """EasyTier mostly finds it by itself; one that does not within 2.5 s is started anew, once."""
    machine = Machine()
    machine.links.uplinks, machine.connections = {}, []
    machine.heard_at(None)
    await machine.looks(20)
    machine.links.uplinks = {"wlan0": WIFI}
    assert any(finding.redial for finding in await machine.looks(4))
    await machine.uplink.starting(SPEC)
    assert not any(finding.redial for finding in await machine.looks(60)), "once a change"


@pytest.mark.parametrize("answers", [True, False])
async def test_after_a_sleep_somebody_has_to_answer(machine: Machine, answers: bool) -> None:
    """A connection may have been cut without a trace meanwhile; if it was not, it is kept."""
    await machine.clock.advance(3600)
    machine.uplink.stood_still()
    await machine.clock.advance(0.1)
    if answers:
        machine.heard_at(machine.clock.monotonic_s())
    findings = await machine.looks(5)
    assert any("stood still" in finding.redial for finding in findings) is not answers


async def test_a_silent_relay_alone_is_no_reason(machine: Machine) -> None:
    """The relay is gone, our uplink is what it was: EasyTier dials again by itself."""
    machine.heard_at(None)
    machine.connections = []
    assert not any(finding.redial for finding in await machine.looks(120))


async def test_only_connections_that_easytier_dialled_count(machine: Machine) -> None:
    """Not those of its RPC, of its listeners, or through the overlay; a relay dials nobody."""
    machine.connections = [
        Connection(IPv4Address("127.0.0.1"), 15888, IPv4Address("127.0.0.1")),
        Connection(IPv4Address("192.0.2.200"), 11010, IPv4Address("198.51.100.9")),
        Connection(IPv4Address("10.10.0.7"), 5000, IPv4Address("10.10.0.1")),
    ]
    assert not any(finding.redial for finding in await machine.looks(5))
    machine.connections = [Connection(IPv4Address("192.0.2.200"), 5000, RELAY)]
    assert (await machine.uplink.look(77, replace(SPEC, peers=()))).redial == ""
    assert any(finding.redial for finding in await machine.looks(1))


def test_a_process_tells_its_connections() -> None:
    """Established ones with our side's address and port; a listener is none."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        found = connections_of(os.getpid())
        loopback = IPv4Address("127.0.0.1")
        assert Connection(loopback, client.getsockname()[1], loopback) in found
    assert connections_of(2**22 + 1) == []
