"""The other ways to run it: relay and head on one machine, an overlay that is there already, a head for one command,
Ray as an ordinary user, direct paths, and the lab's own commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import port_scan
import pytest
import secrets_search
import yaml
from conftest import MakeLab
from faults import children, command, pids_of
from forged import send_forged
from machines import (
    Machine,
    assert_error,
    can_ping,
    leftovers,
    make_token,
    road,
    start_relay,
    wait_for_condition,
    wait_until,
)

from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import write_demo_cluster
from edgelink.overlay.overlay_drops import Kind, counted_in
from edgelink.overlay.own_routes import TABLE
from edgelink.overlay.rpc_guard import RPC_TABLE

EDGE = "edge-1"

pytestmark = [pytest.mark.timeout(420), pytest.mark.usefixtures("easytier")]


def configure(lab: Lab, node: str, **sections: dict[str, Any]) -> None:
    """Change keys in the node's configuration file."""
    file = lab.host_path(node, Path("/etc/edgelink/edgelink.yaml"))
    values = yaml.safe_load(file.read_text())
    for section, keys in sections.items():
        values[section] = {**values.get(section, {}), **keys}
    file.write_text(yaml.safe_dump(values))


def status_of(lab: Lab, node: str) -> dict[str, Any]:
    status = road(lab).status(node)
    assert status is not None, f"{node}: no daemon"
    return status


def condition(lab: Lab, node: str, kind: str) -> dict[str, Any]:
    return next(item for item in status_of(lab, node)["conditions"] if item["type"] == kind)


# -- an overlay that is there already


def test_an_existing_overlay(make_lab: MakeLab) -> None:
    """One routed network: the cluster runs on it under the machines' own addresses, without any EasyTier."""
    lab = make_lab()
    existing = {"kind": "existing", "device": "eth0"}
    lab.up(edges=1, direct=True, config={"overlay": existing, "relay": {"cidr": "198.51.100.0/24"}})
    unfounded = lab.exec(RELAY, ["edgelink", "bootstrap"], capture=True, timeout_s=60)
    assert_error(unfounded, 78, "overlay.device eth0: needs exactly one IPv4 address, found none")
    configure(lab, RELAY, overlay={"device": "wan"})  # the relay is reached by another network, and may be
    relay = start_relay(lab)
    assert relay["overlay_ip"] == "203.0.113.10"
    assert condition(lab, RELAY, "OverlayUp")["status"] == "True"
    walk = road(lab)
    elsewhere = lab.exec(
        EDGE, ["edgelink", "join", "-"], stdin=make_token(lab), capture=True, env={"EDGELINK_OVERLAY__DEVICE": "lo"}
    )
    assert_error(elsewhere, 1, "127.0.0.1, lies outside of 198.51.100.0/24", "overlay.device")
    for node in (CLOUD, EDGE):
        walk.enrol(node)
        lab.start(node)
    cloud, edge = walk.wait_ready(CLOUD), walk.wait_ready(EDGE)
    assert (cloud["overlay_ip"], edge["overlay_ip"]) == ("198.51.100.2", "198.51.100.6")
    assert "as 198.51.100.6 with node rank 1" in condition(lab, EDGE, "RayJoined")["message"]
    told = lab.exec(
        CLOUD, ["edgelink", "run", "--", "sh", "-c", "echo $RLINF_COMM_NET_DEVICES $RAY_ADDRESS"], capture=True
    )
    assert told.stdout.split() == ["eth0", "198.51.100.2:6379"], told.stderr
    assert not any(pids_of(lab, node, "easytier-core") for node in (RELAY, CLOUD, EDGE))

    # Members reach Ray there; the relay, whose address lies outside of the network, stands for the Internet.
    addresses, raylets = {CLOUD: "198.51.100.2", EDGE: "198.51.100.6"}, {20001, 20002}
    assert port_scan.open_tcp_ports(lab, EDGE, addresses[CLOUD], some=raylets) == raylets
    for address in addresses.values():
        assert port_scan.open_tcp_ports(lab, RELAY, address, some=raylets) == set()

    # Nothing of ours keeps packets on the device, and a way by another one is named all the same.
    for node in (CLOUD, EDGE):
        assert "edgelink_easytier" not in lab.exec(node, ["nft", "list", "tables"], capture=True).stdout
        assert lab.exec(node, ["ip", "rule", "show", "table", str(TABLE)], capture=True).stdout == ""
    raylet = children(lab, EDGE)["raylet"]
    for words in ("link add other type bridge", "link set other up", "route add 198.51.100.2/32 dev other"):
        lab.exec(EDGE, ["ip", *words.split()], check=True)
    _, lost = wait_for_condition(lab, EDGE, "OverlayUp", "RouteElsewhere", 10)
    assert "what is for cloud (198.51.100.2) leaves by other instead of eth0" in lost["message"]
    lab.exec(EDGE, ["ip", "link", "del", "other"], check=True)
    walk.wait_ready(EDGE)
    lab.exec(EDGE, ["ip", "link", "set", "eth0", "down"], check=True)
    status, lost = wait_for_condition(lab, EDGE, "OverlayUp", "DeviceDown")
    assert "the device eth0 is down" in lost["message"]
    assert status["phase"] == "Degraded"
    lab.exec(EDGE, ["ip", "link", "set", "eth0", "up"], check=True)
    lab.exec(EDGE, ["ip", "route", "add", "default", "via", "198.51.100.5"], check=True)
    walk.wait_ready(EDGE)
    assert children(lab, EDGE)["raylet"] == raylet


# -- relay and head on one machine


@pytest.mark.timeout(300)
@pytest.mark.long
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

    def wait_for_both() -> None:
        wait_until(
            "both daemons are ready",
            shown,
            wanted=lambda daemons: len(daemons) == 2 and all(daemon["ready"] for daemon in daemons.values()),
        )

    walk.enrol(EDGE)
    lab.start(EDGE)
    wait_for_both()
    walk.wait_ready(EDGE)
    text = lab.exec(RELAY, ["edgelink", "status"], capture=True, check=True).stdout
    assert {"relay: Ready", "head relay: Ready"} <= set(text.splitlines())
    core, raylet = pids_of(lab, RELAY, "easytier-core"), children(lab, EDGE)["raylet"]
    assert len(core) == 1

    def forged_is_dropped() -> None:
        """Whichever daemon keeps the table."""
        look = ["nft", "list", "table", "inet", RPC_TABLE]

        def dropped() -> int:
            return counted_in(lab.exec(RELAY, look, capture=True, check=True).stdout)[Kind.UNLEASED]

        before = dropped()
        send_forged(lab, EDGE, "10.10.0.77", "10.10.0.1")
        wait_until("it is dropped", dropped, 10, wanted=lambda now: now == before + 1)
        assert can_ping(lab, RELAY, "10.10.0.1"), "it speaks to itself by its overlay address"

    forged_is_dropped()

    lab.stop(RELAY)  # the head takes EasyTier over
    wait_until("the head stands alone", shown, wanted=lambda daemons: set(daemons) == {"head"})
    wait_until("the head owns EasyTier", shown, wanted=lambda daemons: daemons["head"]["easytier_pid"] in core)
    forged_is_dropped()
    lab.start(RELAY)
    wait_for_both()
    changed = lab.exec(RELAY, ["edgelink", "rotate-secret"], capture=True, timeout_s=60)
    assert changed.returncode == 0, changed.stderr  # the head's daemon restarts what the relay's shares with it
    former = core
    core = wait_until(
        "there is one EasyTier, another one",
        lambda: pids_of(lab, RELAY, "easytier-core"),
        wanted=lambda pids: len(pids) == 1 and pids != former,
    )
    wait_for_both()
    assert children(lab, EDGE)["raylet"] == raylet
    head.send_signal(signal.SIGTERM)
    assert head.wait(60) == 0
    wait_until("the relay owns EasyTier", lambda: status_of(lab, RELAY)["easytier_pid"], wanted=core.__contains__)
    assert pids_of(lab, RELAY, "easytier-core") == core
    assert pids_of(lab, RELAY, "raylet") == set()
    head = lab.popen(RELAY, ["edgelink", "head"], lab.node_directory(RELAY) / "head.log")
    wait_for_both()
    assert {daemon["overlay_ip"] for daemon in shown().values()} == {"10.10.0.1"}
    assert pids_of(lab, RELAY, "easytier-core") == core
    wait_until(
        "the edge follows the new Ray",
        lambda: pids_of(lab, EDGE, "raylet"),
        wanted=lambda pids: pids and raylet not in pids,
    )
    walk.wait_ready(EDGE)
    assert status_of(lab, EDGE)["head"] == {"hostname": "relay", "overlay_ip": "10.10.0.1"}
    lab.stop(RELAY)
    head.send_signal(signal.SIGTERM)
    assert head.wait(60) == 0
    assert leftovers(lab, RELAY) == []


# -- the lab's own commands, and direct paths in it

LONG_WAY = "--rtt", "80ms", "--jitter", "10ms", "--loss", "1%", "--rate", "20mbit"


@pytest.mark.long
def test_the_lab_by_its_commands_and_direct_paths(make_lab: MakeLab, tmp_path: Path) -> None:
    """`lab up --no-daemons --direct`, exec, start, status, stop, down; `edgelink status` shows the paths found."""
    lab = make_lab()  # removed even if `lab down` fails

    def run(verb: str, *arguments: str, stdin: str = "", status: int = 0) -> str:
        result = subprocess.run(
            [Path(sys.executable).with_name("edgelink"), "lab", verb, "--name", lab.name, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        return result.stdout + (result.stderr if status else "")

    def nodes() -> dict[str, dict[str, Any]]:
        return {row["node"]: row for row in json.loads(run("status", "--json"))}

    assert "edgelink lab up" in run("status", status=1)
    run("up", "--no-daemons", "--direct", "--edges", "1", *LONG_WAY)
    assert "already there" in run("up", "--no-daemons", status=1)

    def mean_rtt_ms() -> float:
        told = run("exec", EDGE, "--", "ping", "-q", "-c", "10", "-i", "0.1", "-W", "2", "203.0.113.10")
        return float(told.rpartition(" = ")[2].split("/")[1])

    assert 65 < mean_rtt_ms() < 200
    run("set", EDGE, "--clear")
    assert mean_rtt_ms() < 40
    found = nodes()
    assert {name: row["daemon_pid"] for name, row in found.items()} == dict.fromkeys(("internet", RELAY, CLOUD, EDGE))
    assert found[CLOUD]["addresses"] == {"eth0": ["198.51.100.2"]}
    assert run("exec", EDGE, "--", "hostname").strip() == EDGE
    run("exec", EDGE, "--", "sh", "-c", "exit 7", status=7)
    assert "its nodes are: " in run("exec", "edge-9", "--", "true", status=1)
    assert "is a router" in run("start", "internet", status=1)

    run("start", RELAY)
    wait_until("the relay is ready", lambda: nodes()[RELAY]["phase"], wanted=lambda phase: phase == "Ready")
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

    wait_until(
        "direct paths",
        lambda: (way(CLOUD, EDGE), way(EDGE, CLOUD)),
        wanted=lambda ways: ways == ("direct", "direct"),
    )
    shown = run("exec", CLOUD, "--", "edgelink", "status", "--verbose", status=1)
    assert f"→ {EDGE:<18} 10.10.0.3       direct, " in shown  # by TCP, by UDP that was punched, or both

    for node in (EDGE, CLOUD):
        run("stop", node)
        assert leftovers(lab, node) == []
    assert nodes()[EDGE]["daemon_pid"] is None
    run("down")
    run("down")
    assert not lab.directory.exists()
    assert lab.name not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


# -- a head for the length of one command


@pytest.fixture(scope="module")
def enrolled(make_shared_lab: MakeLab) -> Lab:
    """A relay that runs, a cloud and an edge that have joined; the tests start those as they need them."""
    lab = make_shared_lab()
    lab.up(edges=1)
    start_relay(lab)
    for node in (CLOUD, EDGE):
        road(lab).enrol(node)
    return lab


def head_for(lab: Lab, cluster: Path, *argv: str, timeout: str = "60s", cwd: Path | None = None) -> Any:
    """``edgelink head --cluster FILE -- CMD`` to its end."""
    command = ["edgelink", "head", "--cluster", str(cluster), "--timeout", timeout, "--", *argv]
    return lab.exec(CLOUD, command, capture=True, cwd=cwd, timeout_s=180)


@pytest.mark.long
def test_a_head_for_one_command(enrolled: Lab, tmp_path: Path) -> None:
    """It waits for the edge, runs CMD as the caller would, passes its status on, and takes everything with it."""
    lab = enrolled
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", 1)
    refused = tmp_path / "refused.yaml"
    refused.write_text(cluster.read_text().replace("num_nodes: 2", "num_nodes: two"))
    assert_error(head_for(lab, refused, "touch", str(tmp_path / "ran")), 78, "num_nodes")
    missing = head_for(lab, cluster, "touch", str(tmp_path / "ran"), timeout="1s")
    assert_error(missing, 75, "missing: ", f"{EDGE} at Started (never seen: ", "NodesMissing")
    assert not (tmp_path / "ran").exists()
    assert leftovers(lab, CLOUD) == []

    lab.start(EDGE)
    script = "pwd; echo $RLINF_NODE_RANK $RAY_ADDRESS; cat $EDGELINK_PLACEMENT; echo grumble >&2; exit 7"
    result = head_for(lab, cluster, "sh", "-c", script, cwd=tmp_path)
    assert result.returncode == 7, result.stderr
    directory, address, placement = result.stdout.split("\n", 2)
    assert (directory, address) == (str(tmp_path), "0 10.10.0.2:6379")
    assert [node["hostname"] for node in json.loads(placement)["nodes"]] == [CLOUD, EDGE]
    assert "grumble" in result.stderr
    assert f"2/2: {CLOUD}, {EDGE} ready" in result.stderr  # the live list
    assert leftovers(lab, CLOUD) == []


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGKILL", -9)])
@pytest.mark.long
def test_a_head_for_one_command_is_stopped(enrolled: Lab, tmp_path: Path, number: str, status: int) -> None:
    """Ctrl+C, SIGTERM, even SIGKILL: CMD, daemon, EasyTier and Ray are gone. A second head is refused meanwhile."""
    lab, log, ready = enrolled, tmp_path / "log", tmp_path / "ready"
    while_waiting = number != "SIGINT"  # for an edge that nobody is
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", 2 if while_waiting else 1)
    script = "trap 'echo interrupted; exit 130' INT; touch $0; while :; do sleep 0.1; done"
    head = lab.popen(CLOUD, ["edgelink", "head", "--cluster", str(cluster), "--", "sh", "-c", script, str(ready)], log)
    if while_waiting:
        wait_until("it waits", log.read_text, wanted=lambda text: "rank 2 nobody enrolled" in text)
        assert_error(head_for(lab, cluster, "true"), 2, "head cloud", "AlreadyRunning")
    else:
        wait_until("CMD runs", ready.exists)
    os.killpg(head.pid, signal.Signals[number])  # what a terminal does on Ctrl+C
    assert head.wait(60) == status, log.read_text()
    assert ("interrupted" in log.read_text()) == (number == "SIGINT")
    wait_until("nothing is left", lambda: leftovers(lab, CLOUD), wanted=lambda left: left == [])


# -- Ray as an ordinary user

TRAINER, VISITOR = 61001, 61002

# Two users and a way for them to the interpreter, in the node's own mount namespace only: the machine keeps its users,
# and a home directory that is closed to others (0700) stays so.
_ADD_USERS = """
import os, pathlib, subprocess, sys
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
users, *needed = sys.argv[1:]
for name in ("passwd", "group"):
    lines = pathlib.Path("/etc", name).read_text().splitlines()
    for user, number in (item.split(":") for item in users.split(",")):
        rest = f"{number}::/dev/shm/{user}:/bin/sh" if name == "passwd" else ""
        lines.append(f"{user}:x:{number}:{rest}")
        os.makedirs(f"/dev/shm/{user}", 0o700, exist_ok=True)
        os.chown(f"/dev/shm/{user}", int(number), int(number))
    changed = pathlib.Path("/dev/shm", name)
    changed.write_text("\\n".join(lines) + "\\n")
    mount("--bind", str(changed), f"/etc/{name}")
closed = {}
for path in map(pathlib.Path, needed):
    for parent in reversed(path.parents):
        if not parent.stat().st_mode & 0o001:
            closed.setdefault(parent, []).append((path, os.open(path, os.O_PATH)))
            break
for parent, paths in closed.items():
    mount("-t", "tmpfs", "-o", "mode=755", "none", str(parent))
    for path, descriptor in paths:
        path.mkdir(parents=True, exist_ok=True)
        mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{descriptor}", str(path))
"""


def add_users(lab: Lab, node: str) -> None:
    search_path = lab.environment(node)["PATH"].split(":")
    needed = {Path(sys.base_prefix).resolve().parent, Path(sys.prefix).resolve(), Path(__file__).parent.parent}
    needed |= {Path(entry).resolve() for entry in search_path if Path(entry).is_dir()}
    users = f"trainer:{TRAINER},visitor:{VISITOR}"
    lab.exec(
        node, ["python", "-c", _ADD_USERS, users, *map(str, sorted(needed))], capture=True, check=True, cwd=Path("/")
    )


def run_as(lab: Lab, uid: int, *argv: str) -> Any:
    """A command of an ordinary user on the cloud node."""
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]
    home = "/dev/shm/trainer" if uid == TRAINER else "/dev/shm/visitor"
    return lab.exec(CLOUD, [*become, *argv], capture=True, cwd=Path("/"), env={"HOME": home}, timeout_s=60)


_WHO = """
import os, ray
ray.init(logging_level="error", log_to_driver=False)
@ray.remote
def who():
    return os.getuid()
print("uids", os.getuid(), ray.get(who.remote()))
"""


def workers_find_no_secret(lab: Lab) -> None:
    """A task on each node looks for the network's secrets wherever it can; as root the same search finds them.

    The Ray token is no secret to Ray's own user: it is in a file for it.
    """
    secrets = {
        name: secret
        for name, secret in secrets_search.secrets_of(lab, (RELAY, CLOUD, EDGE), []).items()
        if name != "Ray token"
    }
    assert {"network secret", f"node key of {EDGE}", f"broker password of {CLOUD}"} <= set(secrets)
    addresses = {node: status_of(lab, node)["overlay_ip"] for node in (CLOUD, EDGE)}
    needles = json.dumps({name: secret[::-1] for name, secret in secrets.items()})
    for node in addresses:
        put = (
            "import os, sys; f = open('/dev/shm/needles', 'w'); f.write(sys.stdin.read()); os.fchmod(f.fileno(), 0o644)"
        )
        lab.exec(node, ["python", "-c", put], stdin=needles, capture=True, check=True)
    script = str(Path(__file__).with_name("worker_search.py"))
    search = ["python", script, "/dev/shm/needles"]
    ran = run_as(lab, TRAINER, "edgelink", "run", "--", *search, *addresses.values())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    answers = json.loads(ran.stdout.strip().splitlines()[-1])
    assert set(answers) == set(addresses.values())
    for answer in answers.values():
        assert answer["uid"] == TRAINER
        assert (answer["found"], answer["rpc"], answer["traced"]) == ([], [], [])
        assert min(answer["looked"].values()) > 10, answer
    for node in addresses:
        as_root = json.loads(lab.exec(node, search, capture=True, check=True, timeout_s=60).stdout)["here"]
        assert as_root["rpc"], "the search itself works"
        names = {line.partition(" in ")[0] for line in as_root["found"]}
        assert {"network secret", f"node key of {node}", f"broker password of {node}"} <= names


def users_of_ray(lab: Lab, node: str) -> list[int]:
    """Whose each of Ray's processes is; some live for a moment only."""
    users = []
    for pid in lab.pids(node):
        if command(pid).startswith(("raylet", "gcs_server", "ray::")):
            with suppress(FileNotFoundError):
                users.append(Path(f"/proc/{pid}").stat().st_uid)
    return users


@pytest.mark.long
def test_ray_as_an_ordinary_user(enrolled: Lab) -> None:
    """Ray and driver are the user's; another user is refused by name; root's interpreter is not run without a word."""
    lab, walk = enrolled, road(enrolled)
    lab.stop(EDGE)
    for node in (CLOUD, EDGE):
        configure(lab, node, ray={"allow_root": False})
        add_users(lab, node)
    lab.start(CLOUD)
    status, refused = wait_for_condition(lab, CLOUD, "RayJoined", "RayAsRoot")
    assert status["phase"] == "Failed"
    assert "ray.user" in refused["message"]
    assert "ray.allow_root" in refused["message"]
    lab.stop(CLOUD)

    for node in (CLOUD, EDGE):
        configure(lab, node, ray={"user": "trainer"})
        lab.start(node)
    for node in (CLOUD, EDGE):
        walk.wait_ready(node)
        least = 3 if node == CLOUD else 2
        wait_until(
            f"{node}: Ray's agents have their names",
            lambda node=node: users_of_ray(lab, node),
            wanted=lambda users, least=least: len(users) >= least,
        )
        assert set(users_of_ray(lab, node)) == {TRAINER}
        assert (Machine(lab, node).paths.runtime / "ray/token").stat().st_uid == TRAINER
    ran = run_as(lab, TRAINER, "edgelink", "run", "--", "python", "-c", _WHO)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"uids {TRAINER} {TRAINER}" in ran.stdout
    workers_find_no_secret(lab)
    for node in (CLOUD, EDGE):
        lab.exec(node, ["install", "--directory", "--mode=700", "/dev/shm/of-root"], check=True)
    hidden = run_as(lab, TRAINER, "edgelink", "run", "--require-path", "/dev/shm/of-root/model", "--", "true")
    on_both = f"missing on {CLOUD} (Permission denied), {EDGE} (Permission denied)"
    assert_error(hidden, 78, f"--require-path /dev/shm/of-root/model: {on_both}", "PreflightFailed")
    for argv in (("run", "--", "true"), ("exec", "--", "ray", "status")):
        denied = run_as(lab, VISITOR, "edgelink", *argv)
        assert_error(denied, 2, "the user visitor ", "root (sudo) or trainer", "PermissionDenied")
    assert run_as(lab, VISITOR, "edgelink", "status").returncode == 0
    assert run_as(lab, VISITOR, "cat", "/run/edgelink/ray/token").returncode != 0
    for node in (EDGE, CLOUD):
        lab.stop(node)
        assert lab.pids(node) == set()


@pytest.mark.long
def test_root_without_its_override_starts_a_driver(enrolled: Lab) -> None:
    """In a container without CAP_DAC_OVERRIDE root may not enter what is Ray's user's: the driver is that user's."""
    lab = enrolled
    configure(lab, CLOUD, ray={"user": "trainer", "allow_root": False, "gcs_store": True})
    add_users(lab, CLOUD)
    shut_out = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "edgelink"]
    daemon = lab.popen(CLOUD, [*shut_out, "head"], lab.node_directory(CLOUD) / "shut-out.log", cwd=Path("/"))
    try:
        wait_until("a head that serves", lambda: road(lab).status(CLOUD))
        _, joined = wait_for_condition(lab, CLOUD, "RayJoined", "AliveInRay")
        assert "without ray.gcs_store" in joined["message"]
        ran = lab.exec(
            CLOUD, [*shut_out, "exec", "--", "python", "-c", _WHO], capture=True, cwd=Path("/"), timeout_s=90
        )
        assert f"uids {TRAINER} {TRAINER}" in ran.stdout, ran.stdout + ran.stderr
        assert "going on as trainer" in ran.stderr
        alone = [*shut_out, "run", "--nodes", CLOUD, "--", "python", "-c", _WHO]
        ran = lab.exec(CLOUD, alone, capture=True, cwd=Path("/"), timeout_s=90)
        assert f"uids {TRAINER} {TRAINER}" in ran.stdout, ran.stdout + ran.stderr
        assert run_as(lab, VISITOR, "ls", "/var/lib/edgelink-ray").returncode != 0
    finally:
        daemon.terminate()
        daemon.wait(60)
    assert lab.pids(CLOUD) == set()
