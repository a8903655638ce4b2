"""What the operator, or a node itself, changes of a membership that is in use: real EasyTier, broker and Ray.

One lab serves all tests of this file, in order; each leaves every node Ready.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import MakeLab
from faults import children
from lab_broker import AS_NODE
from machines import (
    Machine,
    Result,
    assert_error,
    brought_up_on,
    copy_disk,
    membership,
    registered,
    revive,
    wait_for_condition,
    wait_until,
)
from training_run import TrainingRun

from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road
from edgelink.protocol.topics import Topics

EDGES = ("edge-1", "edge-2")
NODES = (RELAY, CLOUD, *EDGES)
BURIED_AFTER_S = 10.0  # the head waits so long before it buries whom it takes for gone

_SAY = """
import asyncio, base64, sys
from pathlib import Path
from edgelink.config import Paths
from edgelink.relay.dynamic_security import ADMIN
from edgelink.protocol.membership import Membership
from edgelink.protocol.tls import client_context
from edgelink.protocol.transport import Login, MqttTransport

async def main(topic, payload):
    membership = Membership.load(Paths())
    transport = MqttTransport(client_context(membership.ca_pem, membership.network_id))
    login = Login(ADMIN, Paths().broker_admin_key.read_text().strip())
    async with transport.connect("127.0.0.1:8883", login) as session:
        await session.publish(topic, base64.b64decode(payload), retain=True)

asyncio.run(main(*sys.argv[1:]))
"""

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab) -> Road:
    return brought_up_on(make_shared_lab(), len(EDGES))


@pytest.fixture
def road(brought_up: Road) -> Road:
    """Every node Ready, whatever the test before has left."""
    return revive(brought_up, NODES)


def copy_of_state(lab: Lab, node: str, name: str) -> Path:
    """All that a node has on disk, kept; where the node itself sees it."""
    copy_disk(Machine(lab, node).paths.state, lab.host_path(node, Paths().runtime) / name)
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
    begun_s = time.monotonic()
    result = lab.exec("edge-1", ["edgelink", "renew", "--json"], capture=True, timeout_s=60)
    print(f"renewed after {time.monotonic() - begun_s:.1f} s")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["hostname"] == "edge-1"
    after = membership(lab, "edge-1")
    assert after.broker_passwords != before.broker_passwords
    assert len(after.broker_passwords) == 1
    assert login(lab, "edge-1", former) == "refused"
    assert login(lab, "edge-1", Paths().state) == "let in"
    wait_for_condition(lab, "edge-1", "RegistryConnected", "Connected")
    wait_until("the relay lists it as online", lambda: registered(lab)["edge-1"]["online"])
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
    wait_until("the password that was begun counts", lambda: membership(lab, "edge-2").broker_passwords == (upcoming,))
    road.wait_ready("edge-2")


def test_the_relay_with_the_registry_has_nothing_to_renew(road: Road) -> None:
    """It says so, and where the command belongs."""
    result = road.lab.exec(RELAY, ["edgelink", "renew"], capture=True, timeout_s=60)
    assert_error(result, 2, "holds the registry")


def say_as_the_broker(lab: Lab, topic: str, payload: bytes) -> None:
    """What a broker in wrong hands can make every node hear."""
    argv = [sys.executable, "-c", _SAY, topic, base64.b64encode(payload).decode()]
    lab.exec(RELAY, argv, capture=True, check=True, timeout_s=30)


def set_lease(lab: Lab, *options: str) -> Result:
    return lab.exec(RELAY, ["edgelink", "registry", "set", *options], capture=True, timeout_s=60)


def overlay_starts(lab: Lab, node: str) -> int:
    return lab.daemon_log(node).read_text().count("overlay.up")


def ray_addresses(lab: Lab) -> set[str]:
    """Where a driver finds the nodes that are alive in Ray."""
    script = (
        "import ray; ray.init(address='auto', logging_level='error', log_to_driver=False); "
        "print(*[node['NodeManagerAddress'] for node in ray.nodes() if node['Alive']])"
    )
    argv = ["edgelink", "exec", "--", "python", "-c", script]
    return set(lab.exec(CLOUD, argv, capture=True, check=True, timeout_s=60).stdout.splitlines()[-1].split())


def wait_for_ray_at(lab: Lab, addresses: set[str]) -> None:
    """Until the nodes that are alive in Ray are at these; the one that left may be listed for a moment."""
    wait_until("Ray has these nodes", lambda: ray_addresses(lab), wanted=lambda found: found == addresses)


def test_a_lease_is_changed_on_a_running_node(road: Road) -> None:
    """`registry set`: EasyTier restarts once, Ray knows the node at its new address, the former one rests."""
    lab = road.lab
    easytier = children(lab, "edge-1")["easytier-core"]
    labelled = json.loads(set_lease(lab, "edge-1", "--label", "room=9", "--json").stdout)["lease"]
    before = wait_until(
        "the node has its label", lambda: membership(lab, "edge-1"), wanted=lambda it: it.lease.labels == {"room": "9"}
    )
    starts, begun_s = overlay_starts(lab, "edge-1"), time.monotonic()
    changes = ["--ip", "10.10.0.50", "--hostname", "franka", "--label", "arm=left", "--unlabel", "room"]
    result = set_lease(lab, "edge-1", *changes, "--json")
    assert result.returncode == 0, result.stderr
    changed = json.loads(result.stdout)["lease"]
    assert (changed["lease_epoch"], changed["labels"]) == (labelled["lease_epoch"] + 1, {"arm": "left"})
    wait_until("the node uses it", lambda: (road.status("edge-1") or {}).get("overlay_ip") == "10.10.0.50")
    status = road.wait_ready("edge-1")
    print(f"ready under the new address after {time.monotonic() - begun_s:.1f} s")
    assert status["hostname"] == "franka"
    leased = next(condition for condition in status["conditions"] if condition["type"] == "Leased")
    assert leased["message"] == "franka holds 10.10.0.50 and preferred rank 1"
    assert children(lab, "edge-1")["easytier-core"] != easytier
    assert overlay_starts(lab, "edge-1") == starts + 1
    wait_for_condition(lab, CLOUD, "NodesReady", "AllAlive")
    wait_for_ray_at(lab, {"10.10.0.2", "10.10.0.50", "10.10.0.4"})
    resting = json.loads(lab.exec(RELAY, ["edgelink", "registry", "list", "--json"], capture=True, check=True).stdout)
    rests = {rest["value"] for rest in resting["resting"] if rest["node_id"] == before.lease.node_id}
    assert rests == {"edge-1", "10.10.0.3"}
    refused = lab.exec(RELAY, ["edgelink", "token", "create", "--ip", "10.10.0.3"], capture=True, timeout_s=30)
    assert_error(refused, 1, "10.10.0.3")


def test_an_older_lease_does_not_count(road: Road) -> None:
    """Signed by the registry once, and played again by a broker in wrong hands: refused, counted, and nothing moves."""
    lab = road.lab
    before = membership(lab, "edge-2")
    assert set_lease(lab, "edge-2", "--label", "arm=left").returncode == 0
    wait_until("the node has it", lambda: membership(lab, "edge-2").lease.labels == {"arm": "left"})
    pids, after = children(lab, "edge-2"), membership(lab, "edge-2")
    topic = Topics(before.network_id).lease(before.lease.node_id)
    say_as_the_broker(lab, topic, before.lease_envelope.model_dump_json().encode())

    def refused() -> int:
        found = road.status("edge-2")
        return found["refused"].get("Outdated", 0) if found else 0

    wait_until("it is counted as outdated", refused)
    assert membership(lab, "edge-2").lease == after.lease
    assert children(lab, "edge-2") == pids, "labels restart nothing"


def test_a_change_waits_for_the_end_of_a_run(road: Road, tmp_path: Path) -> None:
    """75 while a run may use the node; with --force the node waits by itself, and the training goes on."""
    lab = road.lab
    run = TrainingRun(road, tmp_path, 100_000, edges=2)
    run.wait_for_more_than(2)
    assert_error(set_lease(lab, "edge-2", "--ip", "10.10.0.60"), 75, "run in progress")
    former = membership(lab, "edge-2").lease
    assert set_lease(lab, "edge-2", "--ip", "10.10.0.60", "--force").returncode == 0
    _, waits = wait_for_condition(lab, "edge-2", "Leased", "LeaseChangeWaits")
    assert "10.10.0.60" in waits["message"]
    pids = children(lab, "edge-2")
    time.sleep(2.5 * BURIED_AFTER_S)  # what must not happen has its time; not a synchronisation
    run.wait_for_more_than(len(run.iterations()) + 2)
    assert membership(lab, "edge-2").lease == former
    assert children(lab, "edge-2") == pids
    run.command.send_signal(signal.SIGINT)
    assert run.command.wait(120) in (0, 130)
    wait_until("the node has it", lambda: str(membership(lab, "edge-2").lease.overlay_ip) == "10.10.0.60")
    road.wait_ready("edge-2")
    wait_for_condition(lab, CLOUD, "NodesReady", "AllAlive")


def test_the_head_moves_and_the_edges_join_it_there(road: Road) -> None:
    """Its Ray is the cluster: a new one at the new address, under the same rank, and every edge follows."""
    lab = road.lab
    edges = {str(membership(lab, edge).lease.overlay_ip) for edge in EDGES}
    begun_s = time.monotonic()
    assert set_lease(lab, "cloud", "--ip", "10.10.0.70").returncode == 0
    wait_until("the head uses it", lambda: (road.status(CLOUD) or {}).get("overlay_ip") == "10.10.0.70")
    for node in (CLOUD, *EDGES):
        road.wait_ready(node)
    wait_for_condition(lab, CLOUD, "NodesReady", "AllAlive")
    print(f"all in the new head's Ray after {time.monotonic() - begun_s:.1f} s")
    wait_for_ray_at(lab, {"10.10.0.70", *edges})
