"""The other ways to run it: relay and head on one machine, an overlay that is there already, a head for one command,
Ray as an ordinary user, direct paths, and the lab's own commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
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


# -- the lab's own commands, and direct paths in it


def test_the_lab_by_its_commands_and_direct_paths(make_lab: MakeLab, tmp_path: Path) -> None:
    """`lab up --no-daemons --direct`, exec, start, status, stop, down; `edgelink status` shows the paths found."""
    lab = make_lab()  # removed even if `lab down` fails

    def run(verb: str, *arguments: str, stdin: str = "", status: int = 0) -> str:
        result = subprocess.run(
            [Path(sys.executable).with_name("edgelink"), "lab", verb, "--name", lab.name, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        return result.stdout + (result.stderr if status else "")

    def nodes() -> dict[str, dict[str, Any]]:
        return {row["node"]: row for row in json.loads(run("status", "--json"))}

    assert "edgelink lab up" in run("status", status=1)
    run("up", "--no-daemons", "--direct", "--edges", "1")
    assert "already there" in run("up", "--no-daemons", status=1)
    found = nodes()
    assert {name: row["daemon_pid"] for name, row in found.items()} == dict.fromkeys(("internet", RELAY, CLOUD, EDGE))
    assert found[CLOUD]["addresses"] == {"eth0": ["198.51.100.2"]}
    assert run("exec", EDGE, "--", "hostname").strip() == EDGE
    run("exec", EDGE, "--", "sh", "-c", "exit 7", status=7)
    assert "its nodes are: " in run("exec", "edge-9", "--", "true", status=1)
    assert "is a router" in run("start", "internet", status=1)

    run("start", RELAY)
    wait_until("the relay is ready", lambda: nodes()[RELAY]["phase"] == "Ready")
    for node, role in ((CLOUD, "head"), (EDGE, "edge")):
        configure(lab, node, ray={"python": str(tmp_path / "none")})  # its seconds are another test's
        token = run("exec", RELAY, "--", "edgelink", "token", "create", "--role", role)
        assert f"joined as {node}" in run("exec", node, "--", "edgelink", "join", "-", stdin=token)
        run("start", node)
    assert nodes()[EDGE]["daemon_pid"]

    def way(source: str, target: str) -> str | None:
        result = lab.exec(source, ["edgelink", "status", "--json"], capture=True)
        paths = json.loads(result.stdout)["daemons"][0]["paths"] if result.stdout else []
        return next((path["path"] for path in paths if path["hostname"] == target), None)

    for source, target in ((CLOUD, EDGE), (EDGE, CLOUD)):
        wait_until(f"a direct path {source} → {target}", lambda s=source, t=target: way(s, t) == "direct")
    assert f"→ {EDGE:<18} 10.10.0.3       direct, tcp" in run("exec", CLOUD, "--", "edgelink", "status", status=1)

    for node in (EDGE, CLOUD):
        run("stop", node)
        assert leftovers(lab, node) == []
    assert nodes()[EDGE]["daemon_pid"] is None
    run("down")
    run("down")
    assert not lab.directory.exists()
    assert lab.name not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
