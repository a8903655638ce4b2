"""What keeps a node from starting: each is named with what to do, has its exit status, and leaves nothing half-started.

A daemon that meets a fault of its machine stays, so that its `status`, here and on the head, can say what is wrong,
and goes on by itself once the fault is mended. What was mistyped or misplaced ends the command at once.
"""

from __future__ import annotations

import contextlib
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import faults
import pytest
import yaml
from conftest import MakeLab
from machines import (
    Machine,
    assert_error,
    leftovers,
    make_token,
    registered,
    road,
    start_relay,
    wait_for_condition,
    wait_until,
)

from edgelink.config import Paths
from edgelink.lab import Lab
from edgelink.lab.road import demo_cluster

pytestmark = [pytest.mark.usefixtures("easytier"), pytest.mark.timeout(900)]

_LISTEN = "import socket, sys, time; s = socket.create_server(('', int(sys.argv[1]))); time.sleep(600)"


@pytest.fixture(scope="module")
def enrolled(make_shared_lab: MakeLab) -> Lab:
    """A lab whose relay runs and whose cloud and two edges have joined; no other daemon runs."""
    lab = make_shared_lab()
    lab.up(edges=2)
    start_relay(lab)
    for node in ("cloud", "edge-1", "edge-2"):
        road(lab).enrol(node)
    return lab


@contextlib.contextmanager
def daemon(lab: Lab, node: str, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[None]:
    """The node's daemon; a stop in the midst of its trouble leaves nothing."""
    lab.start(node, flags, env=env)
    try:
        yield
    finally:
        lab.stop(node)
    assert leftovers(lab, node) == []


def assert_status_tells(lab: Lab, node: str, *words: str) -> None:
    """`edgelink status` fails with 1, and a person reads there what to do."""
    shown = lab.exec(node, ["edgelink", "status"], capture=True)
    assert shown.returncode == 1
    for word in words:
        assert word in shown.stdout


def assert_overlay_refused(lab: Lab, node: str, reason: str, *words: str) -> None:
    """The daemon says so, and is the only process of the node; there is no device."""
    status, condition = wait_for_condition(lab, node, "OverlayUp", reason)
    assert condition["status"] == "False"
    assert condition["final"], "a person has to act, and the phase says so"
    assert status["phase"] == "Failed"
    assert status["easytier_pid"] is None
    assert_status_tells(lab, node, reason, *words)
    assert_only_the_daemon(lab, node)


def assert_only_the_daemon(lab: Lab, node: str) -> None:
    """Its protective table may be there; so may, for a moment, a program that it asks something."""
    wait_until(
        f"{node}: only the daemon is left",
        lambda: [item for item in leftovers(lab, node, daemon=True) if "table inet edgelink" not in item],
        wanted=lambda left: not left,
    )


def write_cluster(path: Path, **changes: Any) -> str:
    cluster = demo_cluster(2)["cluster"] | changes
    path.write_text(yaml.safe_dump({"cluster": cluster}))
    return str(path)


# -- the overlay cannot come up


@pytest.mark.parametrize("address", ["10.10.0.99/24", "10.10.0.129/25", "10.0.0.5/8"])
def test_the_lan_has_the_overlays_network(enrolled: Lab, address: str) -> None:
    """A local network that overlaps is named with its device, and EasyTier is not started into it."""
    enrolled.exec("edge-1", ["ip", "address", "add", address, "dev", "eth0"], check=True)
    try:
        with daemon(enrolled, "edge-1"):
            assert_overlay_refused(enrolled, "edge-1", "CidrCollision", "10.10.0.0/24", "eth0", "relay.cidr")
    finally:
        enrolled.exec("edge-1", ["ip", "address", "del", address, "dev", "eth0"], check=True)


def test_a_relay_is_not_founded_on_a_collision(make_lab: MakeLab) -> None:
    """The first start is refused (78) before the network is settled; with another CIDR it succeeds."""
    lab = make_lab()
    lab.up(edges=1)
    lab.exec("relay", ["ip", "address", "add", "10.10.0.7/16", "dev", "wan"], check=True)
    refused = lab.exec("relay", ["edgelink", "bootstrap"], capture=True, timeout_s=60)
    assert_error(refused, 78, "10.10.0.0/24 collides with 10.10.0.0/16", "wan", "relay.cidr")
    assert leftovers(lab, "relay") == []
    assert not lab.host_path("relay", Paths().registry_database).exists()
    assert start_relay(lab, "--cidr", "10.11.0.0/24")["overlay_ip"] == "10.11.0.1"


def test_no_tun_device(enrolled: Lab) -> None:
    """A machine or container without /dev/net/tun: named, with the command that mends it."""
    enrolled.exec("edge-1", ["mount", "-t", "tmpfs", "none", "/dev/net"], check=True)
    try:
        with daemon(enrolled, "edge-1"):
            assert_overlay_refused(enrolled, "edge-1", "TunMissing", "/dev/net/tun", "modprobe tun", "--device")
    finally:
        enrolled.exec("edge-1", ["umount", "/dev/net"], check=True)


def test_no_right_to_make_devices(enrolled: Lab, tmp_path: Path) -> None:
    """A container without NET_ADMIN: named, with the option that gives it."""
    log = tmp_path / "edge.log"
    argv = ["setpriv", "--bounding-set=-net_admin", "edgelink", "edge"]
    child = enrolled.popen("edge-1", argv, log, cwd=Path("/"))

    def status() -> subprocess.CompletedProcess[str]:
        assert child.poll() is None, log.read_text()
        return enrolled.exec("edge-1", ["edgelink", "status"], capture=True)

    try:
        shown = wait_until(
            "status tells what is missing", status, wanted=lambda result: "NetAdminMissing" in result.stdout
        )
        assert shown.returncode == 1
        assert "--cap-add NET_ADMIN" in shown.stdout
        assert faults.pids_of(enrolled, "edge-1", "easytier-core") == set()
    finally:
        child.terminate()
        child.wait(60)
    assert leftovers(enrolled, "edge-1") == []


def test_no_easytier(enrolled: Lab) -> None:
    """Neither on PATH nor in the cache: named with the ways to get it."""
    here = Path(sys.executable).parent
    path = f"{here}:/usr/sbin:/usr/bin:/sbin:/bin"
    if shutil.which("easytier-core", path=path):
        pytest.skip("easytier-core lies in a system directory of this machine")
    with daemon(enrolled, "edge-1", env={"PATH": path}):
        assert_overlay_refused(
            enrolled, "edge-1", "EasyTierNotFound", "neither on PATH nor in", "edgelink.overlay.acquisition"
        )


def test_the_device_is_taken(enrolled: Lab) -> None:
    """An et0 that somebody else made is left alone, and named."""
    enrolled.exec("edge-1", ["ip", "tuntap", "add", "et0", "mode", "tun"], check=True)
    try:
        enrolled.start("edge-1")
        status, condition = wait_for_condition(enrolled, "edge-1", "OverlayUp", "DeviceBusy")
        assert status["easytier_pid"] is None
        assert "overlay.device" in condition["message"]
        enrolled.stop("edge-1")
        assert len(left := leftovers(enrolled, "edge-1")) == 1, left
        assert left[0].startswith("et0 ")
    finally:
        enrolled.stop("edge-1")
        enrolled.exec("edge-1", ["ip", "link", "del", "et0"], check=True)


@pytest.mark.parametrize("port", [15888, 11010])
def test_a_port_of_easytier_is_busy(enrolled: Lab, tmp_path: Path, port: int) -> None:
    """The holder is named with the key that moves the port."""
    with held_port(enrolled, "edge-1", port, tmp_path) as holder, daemon_beside(enrolled, "edge-1", holder):
        _, condition = wait_for_condition(enrolled, "edge-1", "OverlayUp", "PortBusy")
        assert f"tcp port {port}" in condition["message"]
        assert f"(pid {holder.pid})" in condition["message"]
        assert "overlay." in condition["message"]
        assert_status_tells(enrolled, "edge-1", "PortBusy")
    assert leftovers(enrolled, "edge-1") == []


@contextlib.contextmanager
def held_port(lab: Lab, node: str, port: int, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    holder = lab.popen(node, ["python", "-c", _LISTEN, str(port)], tmp_path / "holder.log")
    try:
        wait_until(
            f"port {port} is held; {tmp_path / 'holder.log'}",
            lambda: lab.exec(node, ["ss", "-Hltn"], capture=True).stdout,
            wanted=lambda listening: f":{port} " in listening,
        )
        yield holder
    finally:
        holder.kill()
        holder.wait()


@contextlib.contextmanager
def daemon_beside(lab: Lab, node: str, other: subprocess.Popen[bytes]) -> Iterator[None]:
    """The same beside a process of ours."""
    lab.start(node)
    try:
        yield
    finally:
        lab.stop(node)
    assert leftovers(lab, node) == [f"pid {other.pid}"]


# -- commands in the wrong place


def test_what_needs_a_daemon_says_so(enrolled: Lab) -> None:
    """Where none runs: 1, or 2 for a run, which belongs to the head; each says what to start."""
    for argv, code, told in (
        (["status"], 1, "edgelink head"),
        (["env"], 1, "edgelink head"),
        (["exec", "--", "ray", "status"], 1, "edgelink head"),
        (["token", "create"], 1, "on the relay"),
        (["run", "--", "true"], 2, "edgelink head"),
    ):
        result = enrolled.exec("cloud", ["edgelink", *argv], capture=True)
        assert_error(result, code, told, "NotTheHead" if argv[0] == "run" else "DaemonNotRunning")


def test_a_machine_that_never_joined(enrolled: Lab) -> None:
    """No lease, no daemon: 78, and how to get one; nothing is started."""
    machine = Machine(enrolled, "edge-2", "stranger")
    assert_error(machine.edgelink("edge"), 78, "edgelink join TOKEN", "NotJoined")
    for argv in (("head",), ("head", "--", "true")):
        assert_error(machine.edgelink(*argv), 78, "edgelink join TOKEN", "NotJoined")
    assert leftovers(enrolled, "edge-2") == []


def test_a_token_that_is_refused_ends_the_daemon(enrolled: Lab, tmp_path: Path) -> None:
    """`edge --token-file`: a used or spoilt token is an error at once, not a daemon that waits for ever."""
    used = make_token(enrolled)
    assert Machine(enrolled, "edge-2", "first").join(used).returncode == 0
    machine = Machine(enrolled, "edge-2", "second")
    for text, words in ((used, "was used already"), (used[:-9], "cut off")):
        file = tmp_path / "token"
        file.write_text(text)
        assert_error(machine.edgelink("edge", "--token-file", str(file)), 1, words)
        assert machine.lease is None
    assert leftovers(enrolled, "edge-2") == []


def test_the_wrong_role(enrolled: Lab) -> None:
    """A machine that was enrolled as an edge does not become a head by a command."""
    result = enrolled.exec("edge-1", ["edgelink", "head"], capture=True, timeout_s=60)
    assert_error(result, 78, "is enrolled as edge", "edgelink edge", "WrongRole")
    assert leftovers(enrolled, "edge-1") == []


def test_an_unusable_configuration(enrolled: Lab, tmp_path: Path) -> None:
    """78 with the path of every key that is wrong, before anything is started."""
    file = tmp_path / "edgelink.yaml"
    file.write_text("overlay: {mtu: 12}\nrey: {}\n")
    result = enrolled.exec("edge-1", ["edgelink", "edge", "--config", str(file)], capture=True, timeout_s=60)
    assert_error(result, 78, "overlay.mtu", "rey: unknown key", "ConfigInvalid")
    assert leftovers(enrolled, "edge-1") == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(None, "No such file", id="missing"),
        pytest.param("cluster: [", "line 1 opens a bracket", id="no-yaml"),
        pytest.param("model: x", "no cluster section", id="no-section"),
        pytest.param({"num_nodes": 0}, "num_nodes", id="num-nodes"),
        pytest.param({"num_nodes": 2}, "node_groups[1].node_ranks", id="rank-out-of-range"),
        pytest.param(
            {"component_placement": {"actor": {"node_group": "clowd", "placement": "0"}}}, "'clowd'", id="unknown-group"
        ),
    ],
)
def test_a_bad_cluster_file(enrolled: Lab, tmp_path: Path, text: object, words: str) -> None:
    """78 before any daemon is started and any node waited for."""
    file = tmp_path / "cluster.yaml"
    if isinstance(text, dict):
        write_cluster(file, **text)
    elif text is not None:
        file.write_text(str(text))
    argv = ["edgelink", "head", "--cluster", str(file), "--", "touch", str(tmp_path / "ran")]
    assert_error(enrolled.exec("cloud", argv, capture=True, timeout_s=60), 78, words)
    assert leftovers(enrolled, "cloud") == []
    assert not (tmp_path / "ran").exists()


def test_a_head_for_one_command_on_a_broken_machine(enrolled: Lab, tmp_path: Path) -> None:
    """The run waits, says at which step this very node stands and what to do, and leaves nothing behind."""
    enrolled.exec("cloud", ["mount", "-t", "tmpfs", "none", "/dev/net"], check=True)
    try:
        # Long enough for the daemon, which has only just been started, to find out.
        argv = ["edgelink", "head", "--timeout", "15s", "--", "touch", str(tmp_path / "ran")]
        result = enrolled.exec("cloud", argv, capture=True, timeout_s=120)
        assert_error(result, 75, "cloud at OverlayUp", "TunMissing", "modprobe tun")
    finally:
        enrolled.exec("cloud", ["umount", "/dev/net"], check=True)
    assert leftovers(enrolled, "cloud") == []
    assert not (tmp_path / "ran").exists()


# -- Ray


def test_the_cluster_comes_together_around_its_troubles(enrolled: Lab, tmp_path: Path) -> None:
    """In one story, as starting Rays is slow: an edge before its head, a busy port 6379, and runs that cannot be."""
    lab = enrolled
    lab.start("edge-1", env={"EDGELINK_OVERLAY__DEVICE": "et7"})
    try:
        _, condition = wait_for_condition(lab, "edge-1", "RayJoined", "HeadNotSeen")
        assert not condition["final"]
        assert_status_tells(lab, "edge-1", "HeadNotSeen")
        not_here = lab.exec("edge-1", ["edgelink", "run", "--", "true"], capture=True)
        assert_error(not_here, 2, "edge-1", "cloud (10.10.0.2)", "NotTheHead")
        assert_error(lab.exec("edge-1", ["edgelink", "env"], capture=True), 1, "edgelink status", "RayNotRunning")
        second = lab.exec("edge-1", ["edgelink", "edge"], capture=True, timeout_s=60)
        assert_error(second, 2, "already", "edgelink status", "AlreadyRunning")
        _busy_port_6379(lab, tmp_path)
        road(lab).wait_ready("edge-1")
        _runs_that_cannot_be(lab, tmp_path)
    finally:
        lab.stop("edge-1")
        lab.stop("cloud")
    assert leftovers(lab, "edge-1") == []
    assert leftovers(lab, "cloud") == []


def _busy_port_6379(lab: Lab, tmp_path: Path) -> None:
    """Named with its holder; no Ray is begun; once the port is free the head starts by itself."""
    with held_port(lab, "cloud", 6379, tmp_path) as holder:
        lab.start("cloud")
        status, condition = wait_for_condition(lab, "cloud", "RayJoined", "PortBusy")
        assert f"6379 (ray.port) by python (pid {holder.pid})" in condition["message"]
        assert_status_tells(lab, "cloud", "PortBusy", "6379")
        echo = json.loads(lab.host_path("cloud", Paths().processes / "echo.json").read_text())
        # The daemon also asks programs that end at once.
        lasting = {status["pid"], status["easytier_pid"], echo["pid"], holder.pid}
        wait_until("no Ray is begun", lambda: lab.pids("cloud"), wanted=lambda pids: pids == lasting)
        argv = ["edgelink", "run", "--timeout", "1s", "--", "true"]
        assert_error(lab.exec("cloud", argv, capture=True, timeout_s=60), 75, "cloud at RayJoined", "PortBusy")
    road(lab).wait_ready("cloud")


def _runs_that_cannot_be(lab: Lab, tmp_path: Path) -> None:
    """More nodes than exist: 75, each missing rank with its step and what to do. The command is never begun."""
    ran = tmp_path / "ran"
    members = [name for name, node in registered(lab).items() if node["preferred_rank"] is not None]
    count = len(members)
    too_many = write_cluster(tmp_path / "too-many.yaml", num_nodes=count + 1)
    lab.exec("cloud", ["edgelink", "wait", "--for", "nodes=2", "--timeout", "2m"], capture=True, check=True)
    argv = ["edgelink", "run", "--cluster", too_many, "--timeout", "2s", "--", "touch", str(ran)]
    result = lab.exec("cloud", argv, capture=True, timeout_s=60)
    assert_error(
        result,
        75,
        f"2 of {count + 1} nodes",
        "edge-2 at Started",
        "edgelink edge",
        f"rank {count} at Enrolled",
        "edgelink token create",
        "--timeout",
        "NodesMissing",
    )
    argv[3] = write_cluster(tmp_path / "bad.yaml", num_nodes=2)
    assert_error(lab.exec("cloud", argv, capture=True, timeout_s=60), 78, "node_ranks")
    both = {"node_groups": [], "component_placement": {"actor": "0-1"}, "num_nodes": 2}
    argv[3] = write_cluster(tmp_path / "both.yaml", **both)
    devices = lab.exec("cloud", argv, capture=True, timeout_s=60)
    assert_error(devices, 78, "DevicesDiffer", "et0 on cloud; et7 on edge-1")
    unknown = ["edgelink", "run", "--", "no-such-program"]
    lab.stop("edge-1")
    _another_python(lab, tmp_path, count)
    fits = {"node_groups": [], "component_placement": {"actor": "0-5"}, "num_nodes": 1}
    argv[3] = write_cluster(tmp_path / "one.yaml", **fits)
    assert_error(
        lab.exec("cloud", argv, capture=True, timeout_s=60), 78, "resource rank out of range", "PlacementInvalid"
    )
    assert not ran.exists()
    argv[3] = write_cluster(tmp_path / "fine.yaml", **(fits | {"component_placement": {"actor": "0"}}))
    missing = lab.exec("cloud", [*argv[:6], *unknown[2:]], capture=True, timeout_s=60)
    assert_error(missing, 2, "no-such-program: command not found", "Usage")
    assert lab.exec("cloud", argv, capture=True, timeout_s=60).returncode == 0
    assert ran.exists(), "what was refused was refused for its reason, not for all"


def _another_python(lab: Lab, tmp_path: Path, count: int) -> None:
    """Who waits, and `edgelink nodes`, name both versions; Ray is not started for it."""
    python = tmp_path / "python3"
    python.write_text(f"""#!/bin/sh\necho '["3.10.12", "{version("ray")}", false, [], {{}}]'\n""")
    python.chmod(0o755)
    why = f"(Python 3.10.12, head has {platform.python_version()})"
    with daemon(lab, "edge-1", env={"EDGELINK_RAY__PYTHON": str(python)}):
        wait_for_condition(lab, "edge-1", "RayJoined", "VersionMismatch")
        shown = wait_until(
            "the head has heard of it, and of the end of the Ray before",
            lambda: lab.exec("cloud", ["edgelink", "nodes"], capture=True),
            wanted=lambda seen: "✗ edge-1: VersionMismatch: " in seen.stdout and f"1 of {count} nodes " in seen.stdout,
        )
        argv = ["edgelink", "wait", "--for", f"nodes={count}", "--timeout", "2s"]
        waited = lab.exec("cloud", argv, capture=True, timeout_s=60)
        assert_error(
            waited, 75, f"1/{count}: cloud ready; edge-1 ", why, "1 of ", "edge-1 at RayJoined (VersionMismatch"
        )
        assert shown.returncode == 1
        row = next(line for line in shown.stdout.splitlines() if line.startswith("edge-1"))
        assert why in row
        assert any("python 3.10.12" in line and line.endswith(": edge-1") for line in shown.stdout.splitlines())
        assert "✗ edge-1: VersionMismatch: " in shown.stdout
        assert f"1 of {count} nodes " in shown.stdout


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        pytest.param("PYTHON", "/usr/bin/env", "ConfigInvalid", id="no-python"),
        pytest.param("PYTHON", "/nowhere/python", "ConfigInvalid", id="no-interpreter"),
        pytest.param("USER", "nobody-of-that-name", "ConfigInvalid", id="no-such-user"),
        pytest.param("PYTHON", None, "DependencyMissing", id="no-ray"),
    ],
)
def test_no_ray_to_run(enrolled: Lab, tmp_path: Path, key: str, value: str | None, reason: str) -> None:
    """The overlay is up all the same; Ray says which key to mend."""
    if value is None:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
        value = str(tmp_path / "bare" / "bin" / "python")
    with daemon(enrolled, "edge-2", env={f"EDGELINK_RAY__{key}": value}):
        _, condition = wait_for_condition(enrolled, "edge-2", "RayJoined", reason)
        assert f"ray.{key.lower()}" in condition["message"]
        assert value in condition["message"]
        assert condition["final"]
        assert_status_tells(enrolled, "edge-2", value)
        wait_for_condition(enrolled, "edge-2", "OverlayUp", "DeviceConfirmed")
