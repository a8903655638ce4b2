"""Promise 9, no traffic nobody asked for: every packet that a node sends through its router is looked at, and a DNS
server that answers every name leads EasyTier's STUN requests to where they are seen.

One test takes the promise away first, by an easytier-core started by hand: only so a silent router proves anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import MakeLab
from machines import can_ping, wait_until
from packet_watch import EVERYTHING_ELSE, RELAY, RELAY_NAME, Packet, Watch

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import Lab
from edgelink.lab.road import Road
from edgelink.overlay.acquisition import default_cache_dir, find_easytier
from edgelink.overlay.stun import NAMES, NOWHERE
from edgelink.process import Identity, SessionLauncher, procfs
from edgelink.process.identity import is_alive
from edgelink.process.launcher import ProcessSpec
from edgelink.process.private_files import PrivateFile, PrivateFilesError, is_seen, renew

EASYTIER_PORT, BROKER_PORT = 11010, 8883
RELAY_STUN_PORTS = (3478, 3479)
OBSERVED_S = 23.0  # 2.6.4 asks at its start and about every 15 s
_NODE_SCRIPT = Path(__file__).with_name("overlay_node.py")

pytestmark = pytest.mark.timeout(420)


class World(NamedTuple):
    lab: Lab
    edge: Watch
    relay: Watch


@pytest.fixture
def world(make_lab: MakeLab, easytier: None) -> Iterator[World]:
    """A lab whose edge and relay have resolvers that lead every name somewhere."""
    lab = make_lab()
    lab.up(edges=1, config={"relay": {"advertise": [RELAY_NAME]}})
    with ExitStack() as stack:
        watches = []
        for node, router, device, address in (
            ("edge-1", "edge-1-nat", "lan", "192.168.11.1"),
            ("relay", "internet", "relay", "203.0.113.1"),
        ):
            watches.append(Watch(lab, router, device, address))
            stack.callback(watches[-1].close)
            watches[-1].be_resolver_of(lab, node)
        yield World(lab, *watches)


def core_of(lab: Lab, node: str) -> Identity:
    record = lab.host_path(node, Paths().processes / "easytier.json")
    return Identity.from_dict(json.loads(record.read_text()))


def by_hand(world: World, tmp_path: Path) -> subprocess.Popen[bytes]:
    """The edge's EasyTier as its manual says, with the same relay."""
    config = tmp_path / "by-hand.toml"
    config.write_text(
        'hostname = "by-hand"\nipv4 = "10.99.0.2/24"\nlisteners = []\n'
        f'[network_identity]\nnetwork_name = "x"\nnetwork_secret = "y"\n[[peer]]\nuri = "tcp://{RELAY_NAME}:11010"\n'
        '[flags]\ndev_name = "byhand0"\nenable_ipv6 = false\n'
    )
    return world.lab.popen("edge-1", ["easytier-core", "-c", str(config)], tmp_path / "by-hand.log", cwd=tmp_path)


def test_nothing_but_the_relay_is_contacted(world: World, tmp_path: Path) -> None:
    """Edge and relay of the product send packets to each other and ask DNS for the relay, in two rounds of STUN, which
    the relay answers; an EasyTier started by hand on the same node, with its own defaults, asks strangers at once."""
    core = by_hand(world, tmp_path)
    started_s = time.monotonic()
    try:
        wait_until("STUN packets of an EasyTier started by hand", world.edge.stun)
        first_stun_s = time.monotonic() - started_s
        assert set(world.edge.names) & set(NAMES), world.edge.names
    finally:
        core.kill()
        core.wait()
    world.edge.forget()
    world.relay.forget()

    road = Road(world.lab, SystemClock(), print)
    world.lab.start("relay")
    road.wait_ready("relay")
    road.enrol("edge-1")
    world.lab.start("edge-1")
    wait_until("EasyTier is started", world.lab.host_path("edge-1", Paths().processes / "easytier.json").exists)
    time.sleep(max(OBSERVED_S, 3 * first_stun_s))  # how long it is looked at

    status = road.status("edge-1")
    assert status is not None
    overlay = next(item for item in status["conditions"] if item["type"] == "OverlayUp")
    assert overlay["status"] == "True", overlay
    assert "STUN" not in overlay["message"]
    wait_until("the edge reaches the relay", lambda: can_ping(world.lab, "edge-1", core_address(road)))
    always = {
        Packet("tcp", RELAY, EASYTIER_PORT),
        Packet("tcp", RELAY, BROKER_PORT),
        Packet("udp", RELAY, RELAY_STUN_PORTS[0]),
        Packet("udp", "192.168.11.1", 53),
    }
    # From 2.5.0 on EasyTier asks the relay's other port, too, and both by TCP, where nobody listens.
    at_times = {Packet(protocol, RELAY, port) for protocol in ("tcp", "udp") for port in RELAY_STUN_PORTS}
    assert always <= set(world.edge.packets) <= always | at_times
    # The edge also asks whether its resolver means somebody else by the relay's short name.
    assert set(world.edge.names) == {RELAY_NAME, "relay"}
    # The relay answers the edge, behind its router, and asks nobody for anything.
    assert {packet for packet in world.relay.packets if packet.target != "198.51.100.6"} <= {
        Packet("udp", "203.0.113.1", 53)
    }
    assert set(world.relay.names) <= {RELAY_NAME}
    for node in ("edge-1", "relay"):
        core_identity = core_of(world.lab, node)
        assert is_alive(core_identity)
        assert procfs.command_of(core_identity.pid) == "easytier-core"


def core_address(road: Road) -> str:
    status = road.status("relay")
    assert status is not None
    return str(status["overlay_ip"])


_CONTACT = """
import socket, sys
for name in sys.argv[1:]:
    found = {entry[4][0] for entry in socket.getaddrinfo(name, 3478)}
    errors = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as end:
            end.settimeout(1)
            try:
                end.connect((name, 3478))
                end.send(b"stun")
            except OSError as error:
                errors.append(f"{type(error).__name__}:{error.errno}")
    print(name, *found, *errors)
"""


def overlay_node(world: World, tmp_path: Path, *prefix: str) -> subprocess.Popen[bytes]:
    """The overlay part of a daemon alone, on the edge; its condition changes go to ``node.log``."""
    easytier = find_easytier(None, default_cache_dir())
    settings = {
        "directory": str(tmp_path / "node"),
        "hostname": "edge-1",
        "secret": "of the lab alone",
        "address": "10.10.0.2/24",
        "peers": [f"tcp://{RELAY_NAME}:{EASYTIER_PORT}"],
        "core": str(easytier.core),
        "version": easytier.version,
        "instance_id": "0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
    }
    (tmp_path / "node").mkdir(exist_ok=True)
    file = tmp_path / "settings.json"
    file.write_text(json.dumps(settings))
    return world.lab.popen("edge-1", [*prefix, sys.executable, str(_NODE_SCRIPT), str(file)], tmp_path / "node.log")


def overlay_up(tmp_path: Path) -> dict[str, Any]:
    def found() -> dict[str, Any] | None:
        lines = (tmp_path / "node.log").read_text().splitlines(keepends=True)
        told = [line for line in lines if '"OverlayUp"' in line and line.endswith("\n")]
        changes = [json.loads(line) for line in told if line.startswith("{")]
        return next((change for change in changes if change.get("status") == "True"), None)

    return wait_until(f"OverlayUp; {tmp_path / 'node.log'}", found)


def record_of(tmp_path: Path) -> Identity:
    return Identity.from_dict(json.loads((tmp_path / "node/state/processes/easytier.json").read_text()))


def test_no_version_finds_its_servers(world: World, tmp_path: Path) -> None:
    """Where EasyTier runs, every name of every version leads nowhere, by UDP and by TCP, without a question to DNS and
    without a packet; all other names resolve; on the rest of the node nothing is changed."""
    daemon = overlay_node(world, tmp_path)
    overlay_up(tmp_path)
    core = record_of(tmp_path)
    world.edge.forget()

    inside = ["nsenter", f"--target={core.pid}", "--mount"]
    answer = world.lab.exec("edge-1", [*inside, sys.executable, "-c", _CONTACT, *NAMES], capture=True, check=True)
    refused = ["OSError:101", "PermissionError:13"]
    assert [line.split() for line in answer.stdout.splitlines()] == [[name, NOWHERE, *refused] for name in NAMES]
    assert world.edge.stun() == []
    assert set(world.edge.names) <= {RELAY_NAME}
    for name, address in ((RELAY_NAME, RELAY), ("relay.edgelink.test", RELAY), ("localhost", "127.0.0.1")):
        found = world.lab.exec("edge-1", [*inside, "getent", "ahostsv4", name], capture=True, check=True)
        assert found.stdout.split()[0] == address
    outside = world.lab.exec("edge-1", ["getent", "ahostsv4", NAMES[0]], capture=True, check=True)
    assert outside.stdout.split()[0] == EVERYTHING_ELSE

    daemon.send_signal(signal.SIGTERM)
    daemon.wait(60)


def test_a_container_without_the_right_to_mount_says_so(world: World, tmp_path: Path) -> None:
    """With NET_ADMIN alone, as in a container, the overlay works, its condition says what is not prevented and how to;
    a hosts file of the container's own with the names in it then does the same."""
    without = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--"]
    daemon = overlay_node(world, tmp_path, *without)
    message = overlay_up(tmp_path)["message"]
    assert "unshare: Operation not permitted" in message
    assert "CAP_SYS_ADMIN" in message
    assert '"overlay.stun_not_prevented"' in (tmp_path / "node.log").read_text()
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(60)

    hosts = world.lab.node_directory("edge-1") / "hosts"
    hosts.write_text(hosts.read_text() + "".join(f"0.0.0.0\t{name}\n" for name in NAMES))
    (tmp_path / "node.log").unlink()
    world.edge.forget()
    overlay_node(world, tmp_path, *without)
    assert "STUN" not in overlay_up(tmp_path)["message"]
    time.sleep(OBSERVED_S / 2)
    assert world.edge.stun() == []
    assert set(world.edge.names) == {RELAY_NAME}


def test_an_edited_hosts_file_takes_nothing_away(world: World, tmp_path: Path) -> None:
    """The daemon sees at once that an editor has put another /etc/hosts in place: the running EasyTier gets its names
    back, and the new ones with them."""
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("nsswitch.conf", "ld.so.cache"):
        shutil.copy(Path("/etc", name), etc)
    for name in ("hosts", "resolv.conf"):
        shutil.copy(world.lab.node_directory("edge-1") / name, etc)
    on_it = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc && exec "$@"', str(etc)]
    daemon = overlay_node(world, tmp_path, *on_it)
    overlay_up(tmp_path)
    core = record_of(tmp_path)

    for number in range(3):
        (etc / "edited").write_text(f"{EVERYTHING_ELSE} edited-{number}\n")
        (etc / "edited").replace(etc / "hosts")
        seen = Path(f"/proc/{core.pid}/root/etc/hosts")
        wait_until(
            f"EasyTier sees edit {number} and its own names",
            seen.read_text,
            wanted=lambda text, number=number: f"{NOWHERE} {NAMES[0]}" in text and f"edited-{number}" in text,
        )
    assert record_of(tmp_path) == core, "the same EasyTier runs on"
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(60)


def test_a_private_file_survives_a_rename_over_its_target(tmp_path: Path) -> None:
    """The kernel drops a mount whose target is replaced, as editors do; renewing puts it back in the running child, and
    a process that has no files of its own is never touched."""
    target, source = tmp_path / "hosts", tmp_path / "private"
    target.write_text("the machine's")
    source.write_text("its own")
    file = PrivateFile(source, target)
    child = asyncio.run(SessionLauncher().launch(_sleeper(tmp_path, file)))
    other = asyncio.run(SessionLauncher().launch(_sleeper(tmp_path)))
    try:
        assert is_seen(child.pid, file)
        assert procfs.executable_of(child.pid) == os.path.realpath("/usr/bin/sleep")
        assert not is_seen(other.pid, file)
        (tmp_path / "new").write_text("edited")
        (tmp_path / "new").replace(target)
        assert not is_seen(child.pid, file), "then this kernel needs no renewing"
        renew(child, [file])
        assert is_seen(child.pid, file)
        with pytest.raises(PrivateFilesError, match=f"pid {other.pid}"):
            renew(other, [file])
        assert target.read_text() == "edited"
    finally:
        for identity in (child, other):
            os.kill(identity.pid, signal.SIGKILL)
            os.waitpid(identity.pid, 0)


def _sleeper(directory: Path, *files: PrivateFile) -> ProcessSpec:
    return ProcessSpec(
        "sleep", ("/usr/bin/sleep", "60"), {}, directory, directory / "log", "hash", private_files=tuple(files)
    )
