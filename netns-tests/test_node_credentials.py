"""Credentials of EasyTier 2.6 on the way from registry to core: real daemons and broker, EasyTier played by a stand-in.

The stand-in carries nothing; what counts is with what it is started, and what it is asked for.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MakeLab
from machines import (
    Machine,
    assert_error,
    make_token,
    membership,
    registered,
    start_with_relay,
    wait_for_condition,
    wait_until,
)

from edgelink.lab import RELAY, Lab

EDGES = ("edge-1", "edge-2")

pytestmark = pytest.mark.timeout(300)

# Makes the device, which lives as long as the process, and becomes the stand-in.
_CORE = """#!{python} -IS
import fcntl, os, struct, subprocess, sys, tomllib
if "-c" in sys.argv:
    with open(sys.argv[sys.argv.index("-c") + 1], "rb") as file:
        config = tomllib.load(file)
    tun, name = os.open("/dev/net/tun", os.O_RDWR), config["flags"]["dev_name"]
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH", name.encode(), 0x1001))
    os.set_inheritable(tun, True)
    subprocess.run(["ip", "address", "add", config["ipv4"], "dev", name], check=True)
    subprocess.run(["ip", "link", "set", name, "mtu", str(config["flags"]["mtu"] - 20), "up"], check=True)
os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


def stand_in(directory: Path, version: str) -> Path:
    """An easytier-core of this version, its easytier-cli beside it."""
    source = Path(__file__).parent.parent / "tests" / "easytier_stand_in.py"
    spec = importlib.util.spec_from_file_location("easytier_stand_in", source)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    real = directory / version / "real"
    real.mkdir(parents=True)
    core = directory / version / "easytier-core"
    core.write_text(_CORE.format(python=sys.executable, real=str(module.install(real, version))))
    core.chmod(0o755)
    (directory / version / "easytier-cli").symlink_to(real / "easytier-cli")
    return core


def up(lab: Lab, core: Path, *, credentials: bool) -> None:
    lab.up(len(EDGES), config={"relay": {"credentials": credentials}, "overlay": {"easytier_core": str(core)}})
    start_with_relay(lab, EDGES)
    for node in EDGES:
        wait_for_condition(lab, node, "OverlayUp", "DeviceConfirmed")
        wait_for_condition(lab, node, "SecretCurrent", "Current")


def easytier_pid(lab: Lab, node: str) -> int:
    status, _ = wait_for_condition(lab, node, "OverlayUp", "DeviceConfirmed")
    return int(status["easytier_pid"])


def environment(pid: int) -> dict[str, str]:
    """Of a process, as root sees it."""
    text = Path(f"/proc/{pid}/environ").read_text()
    return dict(line.split("=", 1) for line in text.split("\0") if line)


def issued(lab: Lab, epoch: int = 1) -> set[str]:
    """The nodes that the relay's EasyTier has a credential of."""
    file = Machine(lab, RELAY).paths.state / "easytier-credentials" / f"easytier-credentials-{epoch}.json"
    assert file.stat().st_mode & 0o777 == 0o600

    def listed() -> set[str] | None:
        with suppress(json.JSONDecodeError):  # EasyTier writes it in place, and is asked again when a daemon starts
            return {name.partition("-")[0] for name in json.loads(file.read_text())}
        return None

    return wait_until("the credentials are written", listed, wanted=lambda _: True)


def files_with(secret: str, *roots: Path) -> list[str]:
    """The names of those that hold it, but for the stand-in's own; a file may go while it is looked at."""
    found = []
    for path in (path for root in roots for path in root.rglob("*")):
        with suppress(FileNotFoundError):
            if path.is_file() and not path.name.startswith("effective.json") and secret.encode() in path.read_bytes():
                found.append(path.name)
    return found


def assert_has_its_own(lab: Lab, node: str) -> str:
    """Its EasyTier was started with its credential, which is nowhere else than in membership.json."""
    credential, pid = membership(lab, node).secrets.credential, easytier_pid(lab, node)
    assert credential
    assert environment(pid).get("ET_CREDENTIAL") == credential
    assert credential not in Path(f"/proc/{pid}/cmdline").read_text()
    peeking = ["setpriv", "--reuid=65534", "--clear-groups", "cat", f"/proc/{pid}/environ"]
    assert lab.exec(node, peeking, capture=True).returncode != 0
    paths = Machine(lab, node).paths
    assert paths.easytier_config.exists()
    wait_until(  # while it is written anew there are two of it
        "membership.json alone holds the credential",
        lambda: files_with(credential, paths.state, paths.runtime),
        30,
        wanted=lambda names: names == ["membership.json"],
    )
    assert credential not in lab.daemon_log(node).read_text()
    return credential


def test_a_network_of_credentials(make_lab: MakeLab, tmp_path: Path) -> None:
    """Each node is given its own; a revoked one loses it at once, and nobody else's EasyTier is touched."""
    lab = make_lab()
    up(lab, stand_in(tmp_path, "2.6.4"), credentials=True)
    assert assert_has_its_own(lab, "edge-1") != assert_has_its_own(lab, "edge-2")
    secret = membership(lab, RELAY).secrets.network_secret
    for node in EDGES:
        assert files_with(secret, Machine(lab, node).paths.state) == []
    assert "ET_CREDENTIAL" not in environment(easytier_pid(lab, RELAY))
    ids = {node: membership(lab, node).lease.node_id for node in EDGES}
    assert issued(lab) == set(ids.values())

    pids = {node: easytier_pid(lab, node) for node in (RELAY, "edge-1")}
    result = lab.exec(RELAY, ["edgelink", "revoke", "edge-2", "--yes"], capture=True, timeout_s=60)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "edge-2 is out of the network" in result.stdout
    assert issued(lab) == {ids["edge-1"]}
    wait_until("edge-2's daemon has ended", lambda: lab.daemon("edge-2") is None)
    assert {node: easytier_pid(lab, node) for node in pids} == pids
    assert_error(lab.exec(RELAY, ["edgelink", "rotate-secret"], capture=True), 2, "no node but the relay knows")

    config = lab.host_path("cloud", Path("/etc/edgelink")) / "edgelink.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["overlay"]["easytier_core"] = str(stand_in(tmp_path, "2.5.0"))
    config.write_text(yaml.safe_dump(settings))
    assert_error(Machine(lab, "cloud").join(make_token(lab, "--role", "head")), 1, "cloud has EasyTier 2.5.0")
    assert "cloud" not in registered(lab)
    lab.kill(RELAY)
    lab.start(RELAY)
    wait_for_condition(lab, RELAY, "SecretCurrent", "Current")
    assert issued(lab) == {ids["edge-1"]}
    assert easytier_pid(lab, "edge-1") == pids["edge-1"]


def test_a_network_changes_to_credentials(make_lab: MakeLab, tmp_path: Path) -> None:
    """By one command; each node's EasyTier is started anew with its own, the relay's with a fresh secret."""
    lab = make_lab()
    up(lab, stand_in(tmp_path, "2.6.4"), credentials=False)
    before = membership(lab, RELAY).secrets.network_secret
    assert {membership(lab, node).secrets.network_secret for node in EDGES} == {before}
    lab.stop("edge-2")
    refused = lab.exec(RELAY, ["edgelink", "rotate-secret", "--credentials"], capture=True, timeout_s=60)
    assert_error(refused, 75, "edge-2 (offline)")
    lab.start("edge-2")
    wait_for_condition(lab, "edge-2", "OverlayUp", "DeviceConfirmed")
    wait_for_condition(lab, "edge-2", "SecretCurrent", "Current")

    changed = lab.exec(RELAY, ["edgelink", "rotate-secret", "--credentials"], capture=True, timeout_s=120)
    assert changed.returncode == 0, changed.stdout + changed.stderr
    print(f"\n{changed.stdout.strip()}")
    for node in EDGES:
        assert_has_its_own(lab, node)
        assert membership(lab, node).secrets.network_secret == ""
    relay = membership(lab, RELAY).secrets
    assert relay.secret_epoch == 2
    assert relay.network_secret != before
    assert issued(lab, 2) == {membership(lab, node).lease.node_id for node in EDGES}
    wait_for_condition(lab, RELAY, "SecretCurrent", "Current")
