"""The overlay on a real kernel with a real EasyTier, in sealed namespaces on one bridge (no route out).

Each node's daemon is ``overlay_node.py`` in a namespace; everything that is judged is looked at from outside.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machines import records_in, wait_until
from pyroute2 import NetNS, netns

from edgelink.errors import EasyTierNotFoundError
from edgelink.overlay.acquisition import EasyTierBinary, default_cache_dir, find_easytier
from edgelink.overlay.status import Peer, parse_json
from edgelink.process import Identity, is_alive, procfs, usage

pytestmark = [pytest.mark.netns, pytest.mark.timeout(420)]
NODE_SCRIPT = Path(__file__).with_name("overlay_node.py")
STRANGER = Path(__file__).with_name("stranger.py")
LOOK_S = 10.0  # the soonest look that no event asked for: the end of a start that failed
RELAY_PEER = "tcp://192.0.2.1:11010"


class Node:
    """A namespace on the bridge, and at most one daemon in it."""

    def __init__(self, net: Net, name: str, number: int, lan: str | None = None) -> None:
        self.name, self.namespace = name, f"{net.prefix}{name}"
        self.address = f"10.10.0.{number}"
        self.directory = net.directory / name
        self.directory.mkdir()
        self.net = net
        self._instance_id = str(uuid.uuid4())
        self.daemon: subprocess.Popen[bytes] | None = None
        net.connect(self.namespace, lan or f"192.0.2.{number}/24")

    def start(self, *peers: str) -> None:
        settings = {
            "directory": str(self.directory),
            "hostname": self.name,
            "secret": self.net.secret,
            "address": f"{self.address}/24",
            "peers": peers,
            "core": str(self.net.easytier.core),
            "version": self.net.easytier.version,
            "instance_id": self._instance_id,
        }
        file = self.directory / "settings.json"
        file.touch(0o600)
        file.write_text(json.dumps(settings))
        with (self.directory / "daemon.out").open("ab") as out, (self.directory / "daemon.err").open("ab") as err:
            command = ("ip", "netns", "exec", self.namespace, sys.executable, str(NODE_SCRIPT), str(file))
            self.daemon = subprocess.Popen(command, stdout=out, stderr=err)

    def kill(self, signal_number: signal.Signals = signal.SIGKILL) -> None:
        if self.daemon is not None:
            self.daemon.send_signal(signal_number)
            self.daemon.wait(60)
            self.daemon = None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(("ip", "netns", "exec", self.namespace, *command), capture_output=True, text=True)

    def changes(self, kind: str = "OverlayUp") -> list[dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError):
            return [change for change in records_in(self.directory / "daemon.out") if change["type"] == kind]
        return []

    def wait_for(self, status: str, *, since: int = 0) -> dict[str, Any]:
        """The first change to ``status`` among those after the first ``since``."""

        def of_status(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [change for change in changes if change["status"] == status]

        changes = wait_until(f"{self.name}: OverlayUp={status}", lambda: self.changes()[since:], wanted=of_status)
        return of_status(changes)[0]

    @property
    def core_record(self) -> Path:
        return self.directory / "state" / "processes" / "easytier.json"

    @property
    def core_pid(self) -> int:
        return int(json.loads(self.core_record.read_text())["pid"])

    def addresses(self) -> list[str]:
        with NetNS(self.namespace) as kernel:
            found = kernel.link_lookup(ifname="et0")
            return [
                f"{a.get_attr('IFA_LOCAL')}/{a['prefixlen']}"
                for i in found
                for a in kernel.get_addr(index=i, family=socket.AF_INET)
            ]

    def can_ping(self, address: str) -> bool:
        """By one packet: a busy machine may take its time with it, and loses none."""
        return self.run("ping", "-c1", "-W5", address).returncode == 0

    def peers(self) -> list[Peer]:
        return parse_json(self.run(str(self.net.easytier.cli), "-p", "127.0.0.1:15888", "-o", "json", "peer").stdout)


class Net:
    """A bridge without a way out, its nodes, and EasyTiers started by hand."""

    def __init__(self, directory: Path, easytier: EasyTierBinary) -> None:
        self.directory, self.easytier = directory, easytier
        self.prefix = f"ov{secrets.token_hex(2)}-"
        self.secret = secrets.token_urlsafe(24)
        self.nodes: list[Node] = []
        self._hub = f"{self.prefix}hub"
        self._count = 0
        self._namespaces: list[str] = []
        self._by_hand: list[subprocess.Popen[bytes]] = []
        self._make(self._hub)
        with NetNS(self._hub) as hub:
            hub.link("add", ifname="br0", kind="bridge")
            hub.link("set", ifname="br0", state="up")

    def _make(self, namespace: str) -> None:
        netns.create(namespace)
        self._namespaces.append(namespace)
        with NetNS(namespace) as kernel:
            kernel.link("set", ifname="lo", state="up")

    def connect(self, namespace: str, address: str) -> None:
        self._make(namespace)
        self._count += 1
        port, (ip, prefixlen) = f"port{self._count}", address.split("/")
        with NetNS(self._hub) as hub, NetNS(namespace) as kernel:
            hub.link("add", ifname=port, kind="veth", peer={"ifname": "eth0", "net_ns_fd": namespace})
            bridge, index = hub.link_lookup(ifname="br0")[0], hub.link_lookup(ifname=port)[0]
            hub.link("set", index=index, master=bridge, state="up")
            index = kernel.link_lookup(ifname="eth0")[0]
            kernel.addr("add", index=index, address=ip, prefixlen=int(prefixlen))
            kernel.link("set", index=index, state="up")

    def node(self, name: str, number: int, lan: str | None = None) -> Node:
        self.nodes.append(Node(self, name, number, lan))
        return self.nodes[-1]

    def by_hand(self, node: Node, network: str, whitelist: str, *peers: str) -> subprocess.Popen[bytes]:
        """EasyTier as somebody else would start it, with a network of their own."""
        config = node.directory / "by-hand.toml"
        config.write_text(
            f'hostname = "{node.name}"\nipv4 = "{node.address}/24"\nlisteners = ["tcp://0.0.0.0:11010"]\n'
            'rpc_portal = "127.0.0.1:15888"\nstun_servers = []\nstun_servers_v6 = []\n'
            f'[network_identity]\nnetwork_name = "{network}"\nnetwork_secret = "of somebody else"\n'
            + "".join(f'[[peer]]\nuri = "{peer}"\n' for peer in peers)
            + f'[flags]\ndev_name = "et0"\nenable_ipv6 = false\nrelay_network_whitelist = "{whitelist}"\n'
        )
        with (node.directory / "by-hand.log").open("wb") as log:
            command = ("ip", "netns", "exec", node.namespace, str(self.easytier.core), "-c", str(config))
            self._by_hand.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=node.directory))
        return self._by_hand[-1]

    def close(self) -> None:
        for node in self.nodes:
            node.kill(signal.SIGTERM)
        for process in self._by_hand:
            process.kill()
            process.wait()
        for namespace in self._namespaces:
            for pid in subprocess.run(("ip", "netns", "pids", namespace), capture_output=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            netns.remove(namespace)


@contextlib.contextmanager
def a_net(directory: Path) -> Iterator[Net]:
    try:
        easytier = find_easytier(None, default_cache_dir())
    except EasyTierNotFoundError as error:
        pytest.skip(str(error))
    made = Net(directory, easytier)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with a_net(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """A relay and an edge in a net that all tests of this file share which need no more."""
    with a_net(tmp_path_factory.mktemp("shared")) as made:
        yield made.node("relay", 1), made.node("edge", 2)


@pytest.fixture
def pair(members: tuple[Node, Node]) -> tuple[Node, Node]:
    """A relay and an edge, both up and seeing each other, whatever the test before has left. The edge's daemon and
    EasyTier are new ones: no fault is their second one."""
    relay, edge = members
    edge.kill(signal.SIGTERM)
    for node, peers in ((relay, ()), (edge, (RELAY_PEER,))):
        if node.daemon is None or node.daemon.poll() is not None:
            seen = len(node.changes())
            node.start(*peers)
            node.wait_for("True", since=seen)
    wait_until("edge reaches relay", lambda: edge.can_ping(relay.address))
    return relay, edge


def test_the_overlay_is_up_only_with_its_address_and_keeps_its_secret(pair: tuple[Node, Node]) -> None:
    """EasyTier runs from its file, OverlayUp comes with the address, and the secret is nowhere to be read."""
    net = pair[0].net
    for node in pair:
        assert node.addresses() == [f"{node.address}/24"]
        process = Path(f"/proc/{node.core_pid}")
        assert net.secret.encode() not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        logs = [path for path in node.directory.rglob("*") if path.is_file() and "log" in path.name]
        assert any("easytier.log" in path.name for path in logs)
        for path in [*logs, node.directory / "daemon.out", node.directory / "daemon.err"]:
            assert net.secret not in path.read_text(), path
    relay_row = next(row for row in pair[1].peers() if row.hostname == "relay")
    assert (str(relay_row.ipv4), relay_row.is_direct) == (pair[0].address, True)


def test_the_condition_follows_the_kernel_without_delay(net: Net) -> None:
    """From the start of the core to OverlayUp pass what EasyTier itself takes (30 ms) and a wake-up."""
    node = net.node("relay", 1)
    node.start()
    node.wait_for("True")

    def told() -> list[dict[str, Any]]:
        return [event for event in records_in(node.directory / "daemon.err") if event["event"] == "overlay.up"]

    (up,) = wait_until("it is told", told)
    print(f"up after {up['after_s']} s")
    assert up["after_s"] < LOOK_S / 2


@pytest.mark.parametrize(
    "fault",
    [("link", "set", "et0", "down"), ("addr", "flush", "dev", "et0"), ("link", "del", "et0")],
    ids=["down", "address lost", "deleted"],
)
def test_a_broken_device_is_noticed_and_repaired(pair: tuple[Node, Node], fault: tuple[str, ...]) -> None:
    """EasyTier notices none of these faults; the daemon does, by the kernel's word, and the overlay works again."""
    relay, edge = pair
    seen, at = len(edge.changes()), time.monotonic()
    assert edge.run("ip", *fault).returncode == 0

    noticed = edge.wait_for("False", since=seen)
    repaired = edge.wait_for("True", since=seen + 1)
    print(f"noticed after {noticed['at'] - at:.2f} s, repaired after {repaired['at'] - at:.2f} s")
    assert noticed["at"] - at < LOOK_S / 2
    assert edge.addresses() == [f"{edge.address}/24"]
    wait_until("edge reaches relay again", lambda: edge.can_ping(relay.address))


def test_a_killed_daemon_leaves_the_overlay_alone_and_its_successor_adopts_it(pair: tuple[Node, Node]) -> None:
    """SIGKILL of the daemon cuts nothing; the next one adopts the same core, and still notices its end."""
    relay, edge = pair
    core = edge.core_pid
    edge.kill(signal.SIGKILL)
    assert edge.can_ping(relay.address)

    seen = len(edge.changes())
    edge.start(RELAY_PEER)
    edge.wait_for("True", since=seen)
    assert edge.core_pid == core
    assert edge.can_ping(relay.address)

    seen = len(edge.changes())
    os.kill(core, signal.SIGKILL)
    edge.wait_for("False", since=seen)
    edge.wait_for("True", since=seen + 1)
    assert edge.core_pid != core
    wait_until("edge reaches relay again", lambda: edge.can_ping(relay.address))

    core = edge.core_pid
    edge.kill(signal.SIGTERM)
    assert not Path(f"/proc/{core}").exists(), "a daemon that is told to stop ends its EasyTier"
    assert edge.addresses() == []


def test_another_python_with_the_recorded_pid_is_not_taken_for_easytier(
    pair: tuple[Node, Node], tmp_path: Path
) -> None:
    """EasyTier may be a script of Python's. Whoever got its pid is neither adopted nor signalled, and the core that
    runs on is found all the same."""
    _, edge = pair
    core, record = edge.core_pid, json.loads(edge.core_record.read_text())
    if "script" not in record:
        pytest.skip("this EasyTier is a program of its own")
    script = edge.net.easytier.core
    assert record["script"] == {"path": str(script), "sha256": hashlib.sha256(script.read_bytes()).hexdigest()}
    assert str(script).encode() in Path(f"/proc/{core}/cmdline").read_bytes().split(b"\0")

    other = tmp_path / "other"
    other.write_text("print(flush=True)\ninput()\n")
    command = (sys.executable, "-I", str(other), "-c", str(edge.directory / "state/easytier.toml"))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, start_new_session=True) as stranger:
        try:
            assert stranger.stdout is not None
            stranger.stdout.readline()
            edge.kill(signal.SIGKILL)
            changed = {"pid": stranger.pid, "start_ticks": procfs.read_stat(stranger.pid).start_ticks}
            edge.core_record.write_text(json.dumps(record | changed))
            seen = len(edge.changes())
            edge.start(RELAY_PEER)
            edge.wait_for("True", since=seen)
            assert edge.core_pid == core
            edge.kill(signal.SIGTERM)
            assert not is_alive(Identity.from_dict(record))
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_another_relay_does_not_cut_the_overlay(pair: tuple[Node, Node]) -> None:
    """A list of relays that changed while no daemon ran is no reason to replace the core that works."""
    _, edge = pair
    core = edge.core_pid
    edge.kill(signal.SIGKILL)
    seen = len(edge.changes())
    edge.start(RELAY_PEER, "tcp://192.0.2.9:11010")
    edge.wait_for("True", since=seen)
    assert edge.core_pid == core


@pytest.mark.parametrize("relay_is_ours", [True, False], ids=["our relay", "an open relay"])
def test_a_foreign_network_is_not_relayed(net: Net, relay_is_ours: bool) -> None:
    """Two nodes of another network that know only our relay find nothing there; an open relay would serve them."""
    relay = net.node("relay", 1)
    strangers = [net.node("stranger-1", 21), net.node("stranger-2", 22)]
    if relay_is_ours:
        relay.start()
        relay.wait_for("True")
    else:
        net.by_hand(relay, "fleet-a", "*")
    for stranger in strangers:
        net.by_hand(stranger, "fleet-b", "*", RELAY_PEER)
    wait_until("strangers have their devices", lambda: [stranger.addresses() for stranger in strangers], wanted=all)

    def see_each_other() -> bool:
        return strangers[0].can_ping(strangers[1].address)

    if not relay_is_ours:
        wait_until("strangers reach each other through an open relay", see_each_other)
        return
    looked_until_s = time.monotonic() + 10
    while time.monotonic() < looked_until_s:
        assert not see_each_other()
        assert not strangers[0].can_ping(relay.address)
    assert "stranger-2" not in {row.hostname for row in strangers[0].peers()}
    assert {row.hostname for row in relay.peers()} == {"relay"}


_HEAR = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.bind((sys.argv[1], 7777))
    end.settimeout(40)
    print("listening", flush=True)
    print(end.recv(100).decode())
"""
PING, PONG = 4, 5


@pytest.mark.parametrize("how", ["join", "serve"])
def test_without_the_secret_a_stranger_speaks_into_the_overlay_and_hears_nothing(
    pair: tuple[Node, Node], how: str
) -> None:
    """Either at the relay's port or, as a forged relay, where an edge dials. EasyTier 2.6 takes a digest of zeros for
    somebody without a secret, and packets that are not encrypted. Once it does not, this fails, and security.md is to
    be mended."""
    relay, edge = pair
    victim, other = (relay, edge) if how == "join" else (edge, relay)
    strangers = [node for node in relay.net.nodes if node.name == "stranger"]
    stranger = strangers[0] if strangers else relay.net.node("stranger", 66)
    listener = ("ip", "netns", "exec", victim.namespace, sys.executable, "-c", _HEAR, victim.address)
    with subprocess.Popen(listener, stdout=subprocess.PIPE, text=True) as hearing:
        assert hearing.stdout is not None
        hearing.stdout.readline()
        address = "192.0.2.1" if how == "join" else "192.0.2.66"
        argv = [sys.executable, str(STRANGER), how, address, other.address, victim.address, "7777"]
        with subprocess.Popen(("ip", "netns", "exec", stranger.namespace, *argv), stdout=subprocess.PIPE) as speaking:
            if how == "serve":
                edge.kill(signal.SIGTERM)
                edge.start("tcp://192.0.2.66:11010")
            told = json.loads(speaking.communicate(timeout=90)[0])
        heard = hearing.stdout.read().strip()
    assert heard == "from a stranger"
    assert told["network"] == "fleet-a"
    assert set(told["in clear"]) <= {PING, PONG}, "nothing that says anything comes in clear"


def test_neighbours_find_their_direct_path(pair: tuple[Node, Node]) -> None:
    """Two nodes on one routed network that know only the relay talk directly after some seconds."""
    _, edge = pair
    other = edge.net.node("edge-2", 3)
    other.start(RELAY_PEER)
    other.wait_for("True")
    wait_until(
        "edge and edge-2 are direct",
        edge.peers,
        120,
        wanted=lambda peers: any(row.hostname == "edge-2" and row.is_direct for row in peers),
    )
    other.kill(signal.SIGTERM)


def wait_for_reason(node: Node, reason: str) -> dict[str, Any]:
    def of_reason(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [change for change in changes if change["reason"] == reason]

    return of_reason(wait_until(f"{node.name}: {reason}", node.changes, wanted=of_reason))[0]


def test_a_colliding_lan_is_refused_before_anything_is_started(net: Net) -> None:
    """A node whose own network overlaps the overlay's is told so, and no EasyTier is started."""
    node = net.node("edge", 2, lan="10.10.4.2/16")
    node.start(RELAY_PEER)
    condition = wait_for_reason(node, "CidrCollision")
    assert condition["final"]
    assert "10.10.0.0/16" in condition["message"]
    assert "eth0" in condition["message"]
    assert node.addresses() == []


def test_an_easytier_started_by_hand_is_named(net: Net) -> None:
    """A taken port is refused naming its holder, not answered with EasyTier's panic."""
    node = net.node("edge", 2)
    process = net.by_hand(node, "fleet-a", "fleet-a")
    wait_until("the hand-started device", node.addresses)
    node.start(RELAY_PEER)
    condition = wait_for_reason(node, "PortBusy")
    assert f"easytier-core (pid {process.pid})" in condition["message"]


def test_an_idle_daemon_costs_next_to_nothing(pair: tuple[Node, Node]) -> None:
    """Watching is event-driven: neither the daemon nor EasyTier is in a loop."""
    _, edge = pair
    assert edge.daemon is not None
    time.sleep(2)
    pids = {"daemon": edge.daemon.pid, "core": edge.core_pid}
    before, started_s = {name: usage(pid).cpu_s for name, pid in pids.items()}, time.monotonic()
    time.sleep(8)
    elapsed_s = time.monotonic() - started_s
    cores = {name: (usage(pid).cpu_s - before[name]) / elapsed_s for name, pid in pids.items()}
    print(f"cores: {cores}; daemon RSS {usage(edge.daemon.pid).rss_bytes >> 20} MiB")
    assert cores["daemon"] < 0.1, cores
    assert cores["core"] < 0.1, cores
