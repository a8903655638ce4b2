"""The other ways to run it: relay and head on one machine, an overlay that is there already, a head for one command,
Ray as an ordinary user, direct paths, and the lab's own commands."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MakeLab
from machines import leftovers, road, start_relay, wait_for_condition

from edgelink.lab import CLOUD, RELAY, Lab

EDGE = "edge-1"

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("easytier")]


def wait_until(what: str, probe: Callable[[], Any], timeout_s: float = 30) -> Any:
    deadline_s = time.monotonic() + timeout_s
    while not (found := probe()):
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.1)
    return found


def processes(lab: Lab, node: str, name: str) -> set[int]:
    """The node's processes with this command name."""
    found = set()
    for pid in lab.pids(node):
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                found.add(pid)
        except OSError:
            continue  # gone meanwhile
    return found


def configure(lab: Lab, node: str, **sections: dict[str, Any]) -> None:
    """Change keys in the node's configuration file."""
    file = lab.host_path(node, Path("/etc/edgelink/edgelink.yaml"))
    values = yaml.safe_load(file.read_text())
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    file.write_text(yaml.safe_dump(values))


def condition(lab: Lab, node: str, kind: str) -> dict[str, Any]:
    status = road(lab).status(node)
    assert status is not None, f"{node}: no daemon"
    return next(item for item in status["conditions"] if item["type"] == kind)


# -- an overlay that is there already


def test_an_existing_overlay(make_lab: MakeLab) -> None:
    """One routed network: the cluster runs on it under the machines' own addresses, without any EasyTier."""
    lab = make_lab()
    existing = {"kind": "existing", "device": "eth0"}
    lab.up(edges=1, direct=True, config={"overlay": existing, "relay": {"cidr": "198.51.100.0/24"}})
    configure(lab, RELAY, overlay={"device": "wan"})  # the relay is reached by another network, and may be
    relay = start_relay(lab)
    assert relay["overlay_ip"] == "203.0.113.10"
    walk = road(lab)
    for node in (CLOUD, EDGE):
        walk.enrol(node)
        lab.start(node)
    cloud, edge = walk.wait_ready(CLOUD), walk.wait_ready(EDGE)
    assert (cloud["overlay_ip"], edge["overlay_ip"]) == ("198.51.100.2", "198.51.100.6")
    shown = lab.exec(EDGE, ["edgelink", "exec", "--", "ray", "list", "nodes"], capture=True)
    told = lab.exec(
        CLOUD, ["edgelink", "run", "--", "sh", "-c", "echo $RLINF_COMM_NET_DEVICES $RAY_ADDRESS"], capture=True
    )
    assert told.stdout.split() == ["eth0", "198.51.100.2:6379"], told.stderr
    print(shown.stdout, shown.stderr)
    assert not any(processes(lab, node, "easytier-core") for node in (RELAY, CLOUD, EDGE))

    raylet = processes(lab, EDGE, "raylet")
    lab.exec(EDGE, ["ip", "link", "set", "eth0", "down"], check=True)
    _, lost = wait_for_condition(lab, EDGE, "OverlayUp", "DeviceDown", 5)
    assert "the device eth0 is down" in lost["message"]
    assert walk.status(EDGE)["phase"] == "Degraded"
    lab.exec(EDGE, ["ip", "link", "set", "eth0", "up"], check=True)
    lab.exec(EDGE, ["ip", "route", "add", "default", "via", "198.51.100.5"], check=True)
    walk.wait_ready(EDGE)
    assert processes(lab, EDGE, "raylet") == raylet


# -- relay and head on one machine


def test_relay_and_head_on_one_machine(make_lab: MakeLab) -> None:
    """The how-to as it is written: one EasyTier for both daemons, whichever of them goes and comes back."""
    lab = make_lab()
    lab.up(edges=1)
    walk = road(lab)
    lab.start(RELAY, ["--advertise", "relay.edgelink.test"])
    walk.wait_ready(RELAY)
    joined = lab.exec(
        RELAY, ["sh", "-c", "edgelink token create --role head | edgelink join -"], capture=True, check=True
    )
    assert "joined as relay: overlay IP 10.10.0.1, preferred node rank 0" in joined.stdout
    head = lab.popen(RELAY, ["edgelink", "head"], lab.node_directory(RELAY) / "head.log")

    def shown() -> dict[str, dict[str, Any]]:
        answer = lab.exec(RELAY, ["edgelink", "status", "--json"], capture=True)
        daemons = json.loads(answer.stdout)["daemons"] if answer.stdout else []
        return {daemon["role"]: daemon for daemon in daemons}

    def both_ready() -> bool:
        daemons = shown()
        return len(daemons) == 2 and all(daemon["ready"] for daemon in daemons.values())

    walk.enrol(EDGE)
    lab.start(EDGE)
    wait_until("both daemons are ready", both_ready)
    walk.wait_ready(EDGE)
    print(lab.exec(RELAY, ["edgelink", "status"], capture=True).stdout)
    print(lab.exec(EDGE, ["edgelink", "status"], capture=True).stdout)
    core, raylet = processes(lab, RELAY, "easytier-core"), processes(lab, EDGE, "raylet")
    assert len(core) == 1

    lab.stop(RELAY)  # the head takes EasyTier over
    wait_until("the head stands alone", lambda: set(shown()) == {"head"})
    wait_until("the head owns EasyTier", lambda: shown()["head"]["easytier_pid"] in core, 10)
    lab.start(RELAY)
    wait_until("both are back", both_ready)
    head.send_signal(signal.SIGTERM)
    assert head.wait(30) == 0
    wait_until("the relay owns EasyTier", lambda: road(lab).status(RELAY)["easytier_pid"] in core, 10)
    assert processes(lab, RELAY, "easytier-core") == core
    assert processes(lab, RELAY, "raylet") == set()
    head = lab.popen(RELAY, ["edgelink", "head"], lab.node_directory(RELAY) / "head.log")
    wait_until("both are back", both_ready)
    assert {daemon["overlay_ip"] for daemon in shown().values()} == {"10.10.0.1"}
    assert processes(lab, RELAY, "easytier-core") == core
    wait_until("the edge follows the new Ray", lambda: processes(lab, EDGE, "raylet") - raylet)
    walk.wait_ready(EDGE)
    assert walk.status(EDGE)["head"] == {"hostname": "relay", "overlay_ip": "10.10.0.1"}
    lab.stop(RELAY)
    head.send_signal(signal.SIGTERM)
    assert head.wait(30) == 0
    assert leftovers(lab, RELAY) == []
