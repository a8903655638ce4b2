"""The first start of a relay: what it is told on its command line, and what is in its way."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

import pytest
from faults import pids_of
from machines import (
    Machine,
    assert_error,
    joined,
    leftovers,
    make_token,
    road,
    start_relay,
    wait_for_condition,
    wait_until,
)

from edgelink.config import Paths
from edgelink.lab import Lab
from edgelink.protocol.token import Token


@pytest.fixture
def lab(network: Lab) -> Lab:
    """A lab of the test's own, nothing running yet."""
    return network


def test_the_flags_of_bootstrap(lab: Lab) -> None:
    """Name, CIDR, address, device, listeners, port and DNS name are taken; later starts keep the network's own."""
    flags = ["--network-name", "robots", "--cidr", "172.30.0.0/20", "--overlay-ip", "172.30.1.1", "--device", "rl0"]
    flags += ["--listener", "tcp://0.0.0.0:12000", "--listener", "udp://0.0.0.0:12001", "--broker-port", "9883"]
    flags += ["--advertise", "relay.edgelink.test", "--advertise", "203.0.113.10"]
    status = start_relay(lab, *flags)
    assert (status["overlay_ip"], status["device"]) == ("172.30.1.1", "rl0")
    assert "172.30.1.1/20" in lab.exec("relay", ["ip", "-4", "address", "show", "rl0"], capture=True).stdout
    listening = lab.exec("relay", ["ss", "-Hltun"], capture=True).stdout
    for port in ("0.0.0.0:12000", "0.0.0.0:12001", "0.0.0.0:9883"):
        assert port in listening
    assert ":11010 " not in listening
    token = make_token(lab)
    assert Token.parse(token).addresses == ("relay.edgelink.test:9883", "203.0.113.10:9883")
    assert joined(Machine(lab, "edge-1"), token).overlay_ip == IPv4Address("172.30.0.1")
    config = lab.host_path("relay", Paths().easytier_config).read_text()
    assert 'network_name = "robots"' in config
    lab.stop("relay")
    again = start_relay(lab, "--cidr", "10.99.0.0/24", "--advertise", "relay.edgelink.test")
    assert (again["overlay_ip"], again["network_id"]) == ("172.30.1.1", status["network_id"])
    assert "settled by the first start" in lab.daemon_log("relay").read_text()


def test_mosquitto_is_missing(lab: Lab) -> None:
    """It is named with the package that has it; once it is there the relay goes on by itself."""
    program = Path(lab.exec("relay", ["which", "mosquitto"], capture=True, check=True).stdout.strip())
    lab.exec("relay", ["mount", "--bind", "/dev/null", str(program)], check=True)
    lab.start("relay")
    _, condition = wait_for_condition(lab, "relay", "BrokerRunning", "DependencyMissing")
    assert "apt-get install mosquitto" in condition["message"]
    shown = lab.exec("relay", ["edgelink", "status"], capture=True)
    assert shown.returncode == 1
    assert "apt-get install mosquitto" in shown.stdout
    lab.exec("relay", ["umount", "--lazy", str(program)], check=True)
    assert road(lab).wait_ready("relay")["broker_pid"]
    assert lab.exec("relay", ["edgelink", "status"], capture=True).returncode == 0


def test_the_brokers_port_is_busy(lab: Lab, tmp_path: Path) -> None:
    """The holder of the port is named, `status` says so, and the relay goes on once the port is free."""
    holder = lab.popen(
        "relay",
        ["python", "-c", "import socket, time; s = socket.create_server(('', 8883)); time.sleep(600)"],
        tmp_path / "holder.log",
    )
    wait_until(
        "the port is held",
        lambda: lab.exec("relay", ["ss", "-Hltn"], capture=True).stdout,
        wanted=lambda listening: ":8883 " in listening,
    )
    lab.start("relay")
    _, condition = wait_for_condition(lab, "relay", "BrokerRunning", "PortBusy")
    assert f"(pid {holder.pid})" in condition["message"]
    assert "relay.broker_port" in condition["message"]
    assert lab.exec("relay", ["edgelink", "status"], capture=True).returncode == 1
    holder.kill()
    road(lab).wait_ready("relay")


@pytest.mark.usefixtures("easytier")
def test_a_network_set_up_by_hand_is_taken_over(lab: Lab, tmp_path: Path) -> None:
    """With its name and secret the relay is taken over under the feet of the other nodes: they go on as they are."""
    by_hand = Path(__file__).parent / "by_hand" / "node.sh"
    secret = "a secret somebody typed: \"1\" & ~ 'two'"
    env = {"BY_HAND_SECRET": secret.replace(" ", "")}  # the script passes it as one shell word

    def type_(node: str, *words: str) -> None:
        lab.exec(node, [str(by_hand), *words], env=env, capture=True, check=True, timeout_s=60)

    def reaches_relay() -> bool:
        ping = ["ping", "-c1", "-W1", "-I", "et0", "10.10.0.1"]
        return lab.exec("edge-1", ping, capture=True).returncode == 0

    type_("relay", "relay")
    type_("edge-1", "overlay", "edge-1", "10.10.0.11")
    wait_until("the node set up by hand reaches the relay", reaches_relay)
    by_hand_pid = pids_of(lab, "edge-1", "easytier-core")
    assert len(by_hand_pid) == 1
    type_("relay", "stop")
    file = tmp_path / "secret"
    file.write_text(env["BY_HAND_SECRET"] + "\n")
    status = start_relay(lab, "--import-secret", str(file), "--network-name", "rlinf-cloud-edge")
    wait_until("the node set up by hand reaches the new relay", reaches_relay)
    assert pids_of(lab, "edge-1", "easytier-core") == by_hand_pid
    assert env["BY_HAND_SECRET"] not in lab.daemon_log("relay").read_text()
    assert status["overlay_ip"] == "10.10.0.1"
    # Leases count from where nobody was told who is there: people give the token the address that is in use.
    joined(Machine(lab, "edge-1"), make_token(lab, "--ip", "10.10.0.11"))
    lab.stop("relay")
    file.write_text("another secret")
    assert_error(
        lab.exec("relay", ["edgelink", "bootstrap", "--import-secret", str(file)], capture=True), 78, "--import-secret"
    )
    assert leftovers(lab, "relay") == []
    start_relay(lab)
