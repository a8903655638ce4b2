"""A relay on a machine booted by systemd: `edgelink up`, restart, stop and reboot, with real EasyTier and Mosquitto."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import booted
import pytest
from booted import BootedNode, installed_edgelink
from conftest import MakeLab
from machines import children, wait_until

from edgelink.lab import RELAY
from edgelink.lab.topology import RELAY_ADDRESS
from edgelink.overlay.acquisition import default_cache_dir, find_easytier
from edgelink.protocol.token import Token

UNIT = "edgelink-bootstrap.service"
CHILDREN = ("edgelink-easytier.service", "edgelink-mosquitto.service")

STOPPED_S = 45.0  # the unit's TimeoutStopSec: so nothing had to be killed

pytestmark = [pytest.mark.usefixtures("easytier"), pytest.mark.timeout(420)]
if reason := booted.reason_to_skip():
    pytestmark.append(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def machine(make_shared_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedNode]:
    """The relay's machine, booted for the first time; EdgeLink is installed, and nothing else."""
    lab = make_shared_lab()
    lab.up(edges=1)
    machine = BootedNode(lab, RELAY, find_easytier(None, default_cache_dir()))
    try:
        machine.install(edgelink=installed_edgelink(tmp_path_factory))
        machine.boot()
        yield machine
    finally:
        machine.remove()


def test_one_command_makes_the_relay(machine: BootedNode) -> None:
    """Into a file it prints no token. Again, at a terminal: each command for another machine on a line of its own."""
    relay = ("edgelink", "up", "--relay", "--advertise", str(RELAY_ADDRESS))
    made = machine.run(*relay, check=True)
    print(made.stdout)
    first = machine.wait_ready()
    assert "elt1_" not in made.stdout + made.stderr
    shown = machine.run("script", "--quiet", "--return", "--command", " ".join(relay), "/dev/null", check=True).stdout
    lines = [line.strip() for line in shown.splitlines()]
    tokens = [line.removeprefix("sudo edgelink up ") for line in lines if line.startswith("sudo edgelink up ")]
    assert len({Token.parse(token).token_id for token in tokens}) == 2  # a head's and an edge's
    again = machine.wait_ready()
    assert (again["network_id"], again["pid"]) == (first["network_id"], first["pid"])
    # In its sandbox, too, the responder reads the node's key.
    look = ("systemctl", "is-active", "edgelink-echo")
    wait_until("echoes are answered", lambda: machine.run(*look).stdout.strip(), 60, wanted=lambda is_: is_ == "active")


def test_a_relays_broker_and_easytier_outlive_its_daemon_and_end_with_its_unit(machine: BootedNode) -> None:
    """Under one network and one CA all the while; the broker runs as its own user."""
    first = machine.wait_ready()
    pids = children(first)
    assert [machine.show(unit, "MainPID") for unit in CHILDREN] == [str(pid) for pid in pids]
    status = machine.path(Path(f"/proc/{first['broker_pid']}/status")).read_text()
    assert "\nUid:\t0\t" not in status

    machine.run("systemctl", "restart", UNIT, check=True)
    assert children(machine.wait_ready()) == pids
    machine.run("kill", "-KILL", str(machine.daemon_pid(UNIT)), check=True)
    wait_until(
        "the broker is adopted",
        machine.status,
        wanted=lambda status: status["ready"] and children(status) == pids,
    )

    machine.run("systemctl", "stop", UNIT, check=True)
    assert [pid for pid in pids if machine.path(Path(f"/proc/{pid}")).exists()] == []
    assert machine.show(UNIT, "Result") == "success"
    machine.run("systemctl", "start", UNIT, check=True)
    assert machine.wait_ready()["network_id"] == first["network_id"]

    took_s = machine.shut_down()
    print(f"went down in {took_s:.1f} s")
    assert took_s < STOPPED_S
    machine.boot()
    again = machine.wait_ready()
    assert (again["network_id"], again["node_id"]) == (first["network_id"], first["node_id"])
