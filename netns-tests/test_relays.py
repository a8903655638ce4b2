"""More than one relay: nodes know all of them, and losing one, also the one with the registry, costs a blip."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLab
from machines import (
    Machine,
    assert_error,
    make_token,
    membership,
    mode,
    overlay_ip,
    registered,
    road,
    start_with_relay,
    status_of,
    wait_for_condition,
    wait_until,
)
from pings import Pings

from edgelink.api.client import call
from edgelink.config import Paths
from edgelink.lab import Lab

GAP_S = 30.0  # a few seconds are usual; what `ride_through` bridges are minutes

# Each test goes on from where the one before has left relays and registry.
pytestmark = [pytest.mark.story, pytest.mark.timeout(420), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def lab(make_shared_lab: MakeLab) -> Lab:
    """Two edges that know the first relay only; no Ray: nobody is the head."""
    lab = make_shared_lab()
    lab.up(edges=2, relays=3)
    start_with_relay(lab, ("edge-1", "edge-2"))
    for name in ("edge-1", "edge-2"):
        wait_for_condition(lab, name, "PeersReachable", "Reachable")
    return lab


def ways(lab: Lab, node: str) -> set[tuple[str, str]]:
    """How EasyTier reaches each other node: hostname, and `direct` or `relayed`."""
    socket = lab.host_path(node, Paths().bootstrap_socket if node.startswith("relay") else Paths().node_socket)
    return {(row["hostname"], row["path"]) for row in call(socket, "GET", "/paths")["paths"]}


def test_a_second_relay_joins_and_everyone_learns_of_it(lab: Lab) -> None:
    """Nothing is restarted: the running EasyTiers connect to the new relay, and its address is on every disk."""
    names = ("relay", "edge-1", "edge-2")
    before = {name: status_of(lab, name)["easytier_pid"] for name in names}
    road(lab).add_relay("relay-2")
    second = f"tcp://{lab.topology.address('relay-2')}:11010"
    relay = Machine(lab, "relay-2").lease
    assert relay is not None
    assert (relay.is_relay, relay.preferred_rank) == (True, None)
    for name in ("edge-1", "edge-2"):
        wait_until(
            f"{name} knows relay-2",
            lambda name=name: membership(lab, name).secrets.overlay_peers,
            wanted=lambda peers: second in peers,
        )
        wait_for_condition(lab, name, "RelaysDialled", "AllDialled")
        wait_until(
            f"{name} is connected to relay-2",
            lambda name=name: ways(lab, name),
            wanted=lambda found: ("relay-2", "direct") in found,
        )
    assert {name: status_of(lab, name)["easytier_pid"] for name in names} == before
    assert registered(lab)["relay-2"]["role"] == "relay"
    refused = lab.exec("relay-2", ["edgelink", "token", "create"], capture=True)
    assert_error(refused, 2, "has no registry", str(lab.topology.address("relay")))


def vanish(lab: Lab, relay: str) -> None:
    """Every process of the machine is killed."""
    lab.kill(relay)
    for pid in lab.pids(relay):
        with contextlib.suppress(ProcessLookupError):  # what the daemon had begun to ask ends by itself
            os.kill(pid, signal.SIGKILL)


def test_the_relay_with_the_registry_is_gone_for_good(lab: Lab, tmp_path: Path) -> None:
    """A gap of seconds; nothing is restarted; a daemon that is restarted, or a node that reboots, comes back."""
    (lab.host_path("relay", Paths().runtime) / "early-token").write_text(make_token(lab))
    backup = lab.exec("relay", ["edgelink", "registry", "backup", "/run/edgelink/backup.tar"], capture=True, check=True)
    assert "safe" in backup.stderr
    copy = lab.host_path("relay", Paths().runtime) / "backup.tar"
    assert mode(copy) == 0o600
    before = {name: status_of(lab, name)["easytier_pid"] for name in ("edge-1", "edge-2", "relay-2")}
    pings = Pings(lab, "edge-1", tmp_path / "ping.log", overlay_ip(lab, "edge-2"))
    vanish(lab, "relay")
    gap_s = pings.settled_gap_s()
    print(f"gap {gap_s:.2f} s")
    assert gap_s < GAP_S
    for name in before:
        wait_for_condition(lab, name, "RegistryConnected", "RegistryUnavailable")
    for name in ("edge-1", "edge-2"):
        wait_for_condition(lab, name, "RelaysReachable", "RelaySilent", 120)
        wait_for_condition(lab, name, "PeersReachable", "Reachable")
    assert {name: status_of(lab, name)["easytier_pid"] for name in before} == before

    lab.kill("edge-1")
    lab.start("edge-1")
    wait_for_condition(lab, "edge-1", "OverlayUp", "DeviceConfirmed")
    wait_for_condition(lab, "edge-1", "PeersReachable", "Reachable")
    assert status_of(lab, "edge-1")["easytier_pid"] == before["edge-1"]
    lab.stop("edge-2")  # and its EasyTier: as after a reboot, it starts from what is on disk
    lab.start("edge-2")
    wait_for_condition(lab, "edge-2", "PeersReachable", "Reachable")


def restored(lab: Lab, source: str, target: str) -> Any:
    """``edgelink registry restore`` on ``target`` of the backup that lies on ``source``'s disk."""
    file = lab.host_path(target, Paths().runtime) / "backup.tar"
    file.write_bytes((lab.host_path(source, Paths().runtime) / "backup.tar").read_bytes())
    return lab.exec(target, ["edgelink", "registry", "restore", "/run/edgelink/backup.tar"], capture=True)


def test_the_registry_moves_to_the_other_relay(lab: Lab) -> None:
    """Restored there, with its overlay going on: nodes find it by themselves, and new machines can join, also with a
    token that the first relay made before it was gone."""
    pids = {name: status_of(lab, name)["easytier_pid"] for name in ("edge-1", "edge-2", "relay-2")}
    result = restored(lab, "relay", "relay-2")
    assert result.returncode == 0, result.stderr
    assert "its relay relay-2" in result.stdout
    assert_error(restored(lab, "relay", "relay-2"), 78, "RegistryExists")
    lab.kill("relay-2")  # as `systemctl restart` leaves its children
    lab.start("relay-2")
    road(lab).wait_ready("relay-2")
    for name in ("edge-1", "edge-2"):
        wait_for_condition(lab, name, "RegistryConnected", "Connected", 120)
    assert {name: status_of(lab, name)["easytier_pid"] for name in pids} == pids
    address = str(lab.topology.address("relay-2"))
    wait_until(
        "edge-1 looks there first",
        lambda: membership(lab, "edge-1").addresses,
        wanted=lambda addresses: addresses[0] == f"{address}:8883",
    )
    token = lab.exec("relay-2", ["edgelink", "token", "create"], capture=True, check=True).stdout
    cloud = Machine(lab, "cloud", "newcomer")
    assert cloud.join(token).returncode == 0
    assert cloud.lease is not None
    early = (lab.host_path("relay", Paths().runtime) / "early-token").read_text()
    joined = Machine(lab, "cloud", "late").join(early)
    assert joined.returncode == 0, joined.stderr

    released = lab.exec("relay-2", ["edgelink", "registry", "release", "relay"], capture=True)
    assert released.returncode == 0, released.stderr
    gone = str(lab.topology.address("relay"))
    wait_until(
        "edge-2 forgets the old relay",
        lambda: membership(lab, "edge-2").secrets.overlay_peers,
        wanted=lambda peers: gone not in str(peers),
    )
    assert {name: status_of(lab, name)["easytier_pid"] for name in pids} == pids


def test_an_old_registry_that_comes_back_does_not_count(lab: Lab) -> None:
    """The old relay is started again by mistake: nodes stay with the one that was restored."""
    lab.start("relay")
    road(lab).wait_ready("relay")
    joined = {name: membership(lab, name) for name in ("edge-1", "edge-2")}
    for name in joined:
        lab.kill(name)
        lab.start(name)
        wait_for_condition(lab, name, "RegistryConnected", "Connected")
    assert {name: membership(lab, name) for name in joined} == joined
    wait_until("nobody is at the old one", lambda: registered(lab)["edge-1"]["online"] is False)
    vanish(lab, "relay")


def test_the_registry_is_restored_at_an_address_that_nobody_knows(lab: Lab) -> None:
    """The last relay is gone, its backup is restored on a new machine: a token that members use tells the address."""
    result = lab.exec("relay-2", ["edgelink", "registry", "backup", "/run/edgelink/backup.tar"], capture=True)
    assert result.returncode == 0, result.stderr
    leases = {name: Machine(lab, name).lease for name in ("edge-1", "edge-2")}
    vanish(lab, "relay-2")
    result = restored(lab, "relay-2", "relay-3")
    assert result.returncode == 0, result.stderr
    assert "--advertise" in result.stderr
    lab.start("relay-3")
    road(lab).wait_ready("relay-3")
    assert Machine(lab, "relay-3").lease == Machine(lab, "relay-2").lease
    for name in leases:
        token = lab.exec("relay-3", ["edgelink", "token", "create"], capture=True, check=True).stdout
        joined = Machine(lab, name).join(token)
        assert joined.returncode == 0, joined.stderr
    for name in leases:
        wait_for_condition(lab, name, "RegistryConnected", "Connected", 120)
        wait_for_condition(lab, name, "PeersReachable", "Reachable", 120)
        wait_for_condition(lab, name, "RelaysDialled", "AllDialled")
    assert {name: Machine(lab, name).lease for name in leases} == leases
