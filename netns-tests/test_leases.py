"""What the operator, or a node itself, changes of a membership that is in use: real EasyTier, broker and Ray.

One lab serves all tests of this file, in order; each leaves every node Ready.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from conftest import MakeLab
from faults import children
from lab_broker import AS_NODE
from machines import Machine, assert_error, registered, revive, wait_for_condition, wait_until

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road
from edgelink.registry.membership import Membership

EDGES = ("edge-1", "edge-2")
NODES = (RELAY, CLOUD, *EDGES)

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab) -> Road:
    road = Road(make_shared_lab(), SystemClock(), print)
    road.bring_up(len(EDGES))
    return road


@pytest.fixture
def road(brought_up: Road) -> Road:
    """Every node Ready, whatever the test before has left."""
    revive(brought_up, NODES)
    return brought_up


def membership(lab: Lab, node: str) -> Membership:
    found = Membership.load(Machine(lab, node).paths)
    assert found is not None
    return found


def copy_of_state(lab: Lab, node: str, name: str) -> Path:
    """All that a node has on disk, kept; where the node itself sees it."""
    shutil.copytree(Machine(lab, node).paths.state, lab.host_path(node, Paths().runtime) / name, symlinks=True)
    return Paths().runtime / name


def login(lab: Lab, node: str, state: Path) -> str:
    """``let in`` or ``refused``: what the broker says to the password in the state directory ``state``."""
    result = lab.exec(node, [sys.executable, str(AS_NODE), str(state), "login"], capture=True, timeout_s=30)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_a_renewed_password_opens_the_broker_and_nothing_else_changes(road: Road) -> None:
    """`edgelink renew`: the former password is refused, the node stays in, EasyTier and Ray are the same processes."""
    lab = road.lab
    before, pids = membership(lab, "edge-1"), children(lab, "edge-1")
    former = copy_of_state(lab, "edge-1", "former")
    assert login(lab, "edge-1", former) == "let in"
    result = lab.exec("edge-1", ["edgelink", "renew", "--json"], capture=True, timeout_s=60)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["hostname"] == "edge-1"
    after = membership(lab, "edge-1")
    assert after.broker_passwords != before.broker_passwords
    assert len(after.broker_passwords) == 1
    assert login(lab, "edge-1", former) == "refused"
    assert login(lab, "edge-1", Paths().state) == "let in"
    wait_for_condition(lab, "edge-1", "RegistryConnected", "Connected")
    wait_until("the relay lists it as online", lambda: registered(lab)["edge-1"]["online"], 20)
    assert after.lease == before.lease
    assert children(lab, "edge-1") == pids
    for line in (*before.broker_passwords, *after.broker_passwords):
        assert line not in lab.daemon_log("edge-1").read_text()
    lab.kill("edge-1")
    lab.start("edge-1")
    road.wait_ready("edge-1")
    assert children(lab, "edge-1") == pids


def test_a_renewal_without_the_relay_is_finished_when_it_is_back(road: Road) -> None:
    """75, and nothing is lost: the broker lives on without the relay's daemon, and knows the former password."""
    lab = road.lab
    present = membership(lab, "edge-2").secrets.broker_password
    lab.kill(RELAY)
    assert_error(
        lab.exec("edge-2", ["edgelink", "renew", "--timeout", "1s"], capture=True, timeout_s=60), 75, "within 1 s"
    )
    upcoming, still = membership(lab, "edge-2").broker_passwords
    assert still == present
    lab.kill("edge-2")
    lab.start("edge-2")
    lab.start(RELAY)
    wait_until(
        "the password that was begun counts", lambda: membership(lab, "edge-2").broker_passwords == (upcoming,), 60
    )
    road.wait_ready("edge-2")


def test_the_relay_with_the_registry_has_nothing_to_renew(road: Road) -> None:
    """It says so, and where the command belongs."""
    result = road.lab.exec(RELAY, ["edgelink", "renew"], capture=True, timeout_s=60)
    assert_error(result, 2, "holds the registry")
