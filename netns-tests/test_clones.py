"""A copy of a node's disk in another machine, with real EasyTier, broker and daemons: relay and four machines behind
NATs of their own, no Ray. The tests build on each other. Of two machines the first one is the node, and the second one
a copy; of two others the second one becomes the node. The minute that passes before that passes for both at once.
"""

from __future__ import annotations

import shutil
import time

import pytest
from conftest import MakeLab
from faults import kill, processes
from machines import (
    Machine,
    assert_error,
    can_ping,
    copy_disk,
    make_token,
    registered,
    start_relay,
    start_with_relay,
    status_of,
    wait_for_condition,
    wait_until,
)

from edgelink.config import Paths
from edgelink.lab import RELAY, Lab

pytestmark = [pytest.mark.usefixtures("easytier"), pytest.mark.timeout(300), pytest.mark.story]

NODE, OTHER, RELAY_IP = "edge-1", "edge-2", "10.10.0.1"
FORMER, BOARD = "edge-3", "edge-4"  # the robot's board is swapped: its disk moves to another one
TOLD_S = 30.0  # a copy is told so in two seconds; the rest is for a busy machine


@pytest.fixture(scope="module")
def lab(make_shared_lab: MakeLab) -> Lab:
    made = make_shared_lab()
    made.up(4)
    start_with_relay(made, [NODE, FORMER])
    return made


def put_disk(lab: Lab, source: str, target: str) -> None:
    """What an image of the disk carries, in place of what is there.

    But for the records of processes, which name a boot: two machines have two, two nodes of a lab one between them.
    """
    state = lab.host_path(target, Paths().state)
    for path in state.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    copy_disk(lab.host_path(source, Paths().state), state)
    shutil.rmtree(Machine(lab, target).paths.processes)


def session(lab: Lab, node: str) -> str:
    """Since when it has been connected to the registry without a break."""
    (found,) = [item for item in status_of(lab, node)["conditions"] if item["type"] == "RegistryConnected"]
    assert found["status"] == "True"
    return str(found["since"])


def reaches_relay(lab: Lab, machine: str) -> None:
    """It does, or will in a moment: an echo may be late on a busy machine."""
    wait_until(f"{machine} reaches the relay", lambda: can_ping(lab, machine, RELAY_IP))


def is_up(lab: Lab, machine: str, node: str) -> None:
    """The node, by its hostname, is up on this machine."""
    wait_for_condition(lab, machine, "OverlayUp", "DeviceConfirmed")
    reaches_relay(lab, machine)
    wait_until("the relay hears it", lambda: registered(lab)[node]["online"])


@pytest.fixture(scope="module")
def swapped(lab: Lab) -> tuple[str, dict[str, int]]:
    """The disk is in the new board, which has begun to wait: its words, and what runs there then."""
    is_up(lab, FORMER, FORMER)
    lab.stop(FORMER)
    put_disk(lab, FORMER, BOARD)
    lab.start(BOARD)
    _, waits = wait_for_condition(lab, BOARD, "Leased", "OtherMachine")
    return waits["message"], processes(lab, BOARD)


def test_a_copy_is_refused_by_name_while_the_node_is_up(lab: Lab) -> None:
    """Its EasyTier is never started; the node keeps its EasyTier and its session. So again at each further start, and
    whether the node spoke a moment ago or not for a minute."""
    is_up(lab, NODE, NODE)
    put_disk(lab, NODE, OTHER)
    lease = Machine(lab, NODE).lease
    assert lease is not None
    before, connected_since = status_of(lab, NODE)["easytier_pid"], session(lab, NODE)
    for _ in range(2):
        started_s = time.monotonic()
        result = lab.exec(OTHER, ["edgelink", "edge"], capture=True, timeout_s=60)
        took_s = time.monotonic() - started_s
        print(f"\nrefused after {took_s:.1f} s: {result.stderr.splitlines()[-2:]}")
        assert_error(result, 78, "ClonedNode", f"edge-1 ({lease.node_id})", "edgelink leave")
        assert took_s < TOLD_S
        assert "overlay.up" not in result.stderr
        assert "easytier-core" not in processes(lab, OTHER)
    assert status_of(lab, NODE)["easytier_pid"] == before
    assert session(lab, NODE) == connected_since
    reaches_relay(lab, NODE)
    assert registered(lab)["edge-1"]["online"], "the copy's end is not the node's"
    assert status_of(lab, RELAY)["refused"]["ClonedNode"] == 2
    history = lab.exec(RELAY, ["edgelink", "registry", "show", "edge-1"], capture=True, check=True).stdout
    assert "clone refused" in history


def test_a_copy_becomes_a_node_of_its_own(lab: Lab) -> None:
    """What it is told to do helps, and neither frees the lease that the original holds nor says that this one has left.
    A node that leaves for itself has left, as the relay tells."""
    left = lab.exec(OTHER, ["edgelink", "leave", "--yes"], capture=True, check=True).stdout
    assert "edge-1 (" in left
    assert "registry release" not in left
    joined = Machine(lab, OTHER).join(make_token(lab))
    assert joined.returncode == 0, joined.stderr
    lease, original = Machine(lab, OTHER).lease, Machine(lab, NODE).lease
    assert lease is not None
    assert original is not None
    assert (lease.hostname, lease.overlay_ip) != (original.hostname, original.overlay_ip)
    lab.start(OTHER)
    wait_for_condition(lab, OTHER, "OverlayUp", "DeviceConfirmed")
    reaches_relay(lab, NODE)
    assert registered(lab)[NODE]["phase"] != "Left"
    lab.exec(OTHER, ["edgelink", "leave", "--yes"], capture=True, check=True, timeout_s=60)
    wait_until(
        "the relay says that it has left",
        lambda: registered(lab)[lease.hostname]["phase"],
        wanted=lambda phase: phase == "Left",
    )


def test_the_node_comes_back_after_a_crash_of_its_own(lab: Lab) -> None:
    """A daemon that is killed is followed by the next one of the same machine, at once; EasyTier goes on meanwhile."""
    before = status_of(lab, NODE)["easytier_pid"]
    lab.kill(NODE)
    lab.start(NODE)
    wait_for_condition(lab, NODE, "Leased", "Leased")
    wait_for_condition(lab, NODE, "RegistryConnected", "Connected")
    is_up(lab, NODE, NODE)
    assert status_of(lab, NODE)["easytier_pid"] == before


@pytest.mark.usefixtures("swapped")  # begins its minute
def test_a_node_whose_daemon_is_dead_is_not_gone(lab: Lab) -> None:
    """Its EasyTier goes on, and Ray and its robot with it: the copy waits for longer than the minute, and is refused
    when the daemon is back."""
    pid = status_of(lab, NODE)["easytier_pid"]
    lab.kill(NODE)
    put_disk(lab, NODE, OTHER)
    lab.start(OTHER)
    wait_for_condition(lab, OTHER, "Leased", "OtherMachine")

    def waits_for() -> str:
        return str(next(c for c in status_of(lab, OTHER)["conditions"] if c["type"] == "Leased")["message"])

    wait_until("it is told who has the address", waits_for, 120, wanted=lambda text: "somebody has 10.10.0." in text)
    assert "easytier-core" not in processes(lab, OTHER)
    reaches_relay(lab, NODE)
    lab.start(NODE)
    wait_until("the copy's daemon has ended", lambda: lab.daemon(OTHER) is None, 150)  # it asks once a minute
    assert "ClonedNode" in lab.daemon_log(OTHER).read_text()
    is_up(lab, NODE, NODE)
    assert status_of(lab, NODE)["easytier_pid"] == pid


def test_a_disk_that_moved_is_accepted_and_the_former_machine_refused(
    lab: Lab, swapped: tuple[str, dict[str, int]]
) -> None:
    """The robot's board was swapped: it waits until the former one is surely gone, and says what it waits for. Whoever
    comes with the disk after that is the copy."""
    waits, ran = swapped
    assert f"{FORMER} (" in waits
    assert "easytier-core" not in ran
    wait_for_condition(lab, BOARD, "Leased", "MachineChanged", 120)
    is_up(lab, BOARD, FORMER)
    before, connected_since = status_of(lab, BOARD)["easytier_pid"], session(lab, BOARD)
    result = lab.exec(FORMER, ["edgelink", "edge"], capture=True, timeout_s=60)
    assert_error(result, 78, "ClonedNode", f"{FORMER} (")
    assert "easytier-core" not in processes(lab, FORMER)
    assert (status_of(lab, BOARD)["easytier_pid"], session(lab, BOARD)) == (before, connected_since)
    assert "machine changed" in lab.exec(RELAY, ["edgelink", "registry", "show", FORMER], capture=True).stdout


def test_without_a_registry_a_node_starts_all_the_same(lab: Lab) -> None:
    """Its answer is awaited for three seconds. A copy that came up so, and was never refused before, is refused as soon
    as the registry is back, and the node, which was there all the time, goes on."""
    is_up(lab, BOARD, FORMER)
    pid = status_of(lab, BOARD)["easytier_pid"]
    lab.host_path(FORMER, Paths().refused_as_copy).unlink()
    lab.kill(RELAY)
    kill(lab, RELAY, "mosquitto")
    lab.start(FORMER)
    wait_until("its EasyTier is started", lambda: "easytier-core" in processes(lab, FORMER))
    start_relay(lab)
    wait_until("the copy's daemon has ended", lambda: lab.daemon(FORMER) is None, 120)
    assert "ClonedNode" in lab.daemon_log(FORMER).read_text()
    assert "easytier-core" not in processes(lab, FORMER)
    is_up(lab, BOARD, FORMER)
    assert status_of(lab, BOARD)["easytier_pid"] == pid


def test_a_copy_of_a_revoked_node_gets_nowhere(lab: Lab) -> None:
    """Not to the broker, not into the overlay, and not in anew with the key that it copied."""
    is_up(lab, BOARD, FORMER)
    put_disk(lab, BOARD, FORMER)
    spare = make_token(lab, "--uses", "5")
    result = lab.exec(RELAY, ["edgelink", "revoke", FORMER, "--yes", "--now"], capture=True, timeout_s=120)
    assert result.returncode in (0, 75), result.stdout + result.stderr
    wait_until("the revoked node has ended", lambda: lab.daemon(BOARD) is None)
    lab.start(FORMER)
    wait_for_condition(lab, FORMER, "RegistryConnected", "RegistryAuthRefused")
    wait_for_condition(lab, FORMER, "PeersReachable", "NetworkRefused")
    assert not can_ping(lab, FORMER, RELAY_IP)
    assert FORMER not in registered(lab)
    lab.stop(FORMER)
    (lab.host_path(FORMER, Paths().state) / Paths().membership.name).unlink()
    assert_error(Machine(lab, FORMER).join(spare), 1, "NodeRevoked")
