"""What the tests of the product's commands share: machines that join, and a look at what is left of a node.

A machine is a state and a runtime directory of its own on a lab node, so one lab node can stand for several.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from edgelink.api.client import DaemonNotRunningError, call
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import RELAY, Lab
from edgelink.lab.road import Road
from edgelink.overlay.own_routes import TABLE
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Lease

Result = subprocess.CompletedProcess[str]
Found = dict[str, dict[str, Any]]  # what doctor found, by check
T = TypeVar("T")

_LOOK_S = 0.1
_SHOWN = 2000  # characters of what was seen last


def wait_until(
    what: str, look: Callable[[], T | None], timeout_s: float = 120, *, wanted: Callable[[T], object] = bool
) -> T:
    """What ``look`` sees, once it is ``wanted``: by default anything that counts as true. None never is.

    Raises:
        AssertionError: it was not in time; says what was waited for, and what was seen last.
    """
    deadline_s = time.monotonic() + timeout_s
    while (seen := look()) is None or not wanted(seen):
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s; last seen: {repr(seen)[-_SHOWN:]}"
        time.sleep(_LOOK_S)
    return seen


@dataclass(frozen=True)
class Machine:
    """One machine on a lab node. ``name`` is also the hostname it asks for; None: the node's own directories."""

    lab: Lab
    node: str
    name: str | None = None

    @property
    def env(self) -> dict[str, str]:
        if self.name is None:
            return {}
        return {
            "EDGELINK_STATE_DIR": f"/var/lib/edgelink/{self.name}",
            "EDGELINK_RUNTIME_DIR": f"/run/edgelink/{self.name}",
            "EDGELINK_HOSTNAME": self.name,
        }

    @property
    def paths(self) -> Paths:
        """Its directories as the host sees them."""
        inside = Paths() if self.name is None else Paths(Paths().state / self.name, Paths().runtime / self.name)
        return Paths(self.lab.host_path(self.node, inside.state), self.lab.host_path(self.node, inside.runtime))

    def run(self, *argv: str, stdin: str | None = None, timeout_s: float = 120) -> Result:
        return self.lab.exec(self.node, argv, env=self.env, stdin=stdin, capture=True, timeout_s=timeout_s)

    def edgelink(self, *argv: str, stdin: str | None = None, timeout_s: float = 120) -> Result:
        """One command of the product, as a person types it."""
        return self.run("edgelink", *argv, stdin=stdin, timeout_s=timeout_s)

    def join(self, token: str, *options: str) -> Result:
        return self.edgelink("join", "-", *options, stdin=token)

    @property
    def lease(self) -> Lease | None:
        """What it keeps, its signature checked; None when it never enrolled."""
        membership = Membership.load(self.paths)
        return None if membership is None else membership.lease


def membership(lab: Lab, node: str) -> Membership:
    """What the node itself keeps, its lease's signature checked."""
    found = Membership.load(Machine(lab, node).paths)
    assert found is not None
    return found


def copy_disk(source: Path, target: Path) -> Path:
    """All that a node keeps in its directory ``source``, but for what its daemon, which may run, is just writing."""
    being_written = shutil.ignore_patterns(".*")
    return Path(shutil.copytree(source, target, symlinks=True, ignore=being_written, dirs_exist_ok=True))


def records_in(file: Path) -> list[dict[str, Any]]:
    """What a file of JSON lines tells, if it is there yet; a line that is being written is not."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


_SEND = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 47000), 10) as connection:
    connection.settimeout(60)
    started_s = time.monotonic()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(time.monotonic() - started_s)
"""
_TAKE = """
import socket
with socket.create_server(("0.0.0.0", 47000)) as server:
    print("listening", flush=True)
    connection, _ = server.accept()
    while connection.recv(65536):
        pass
    connection.sendall(b"x")
"""


def push_s(lab: Lab, source: str, target: str, address: str, size_bytes: int = 1_000_000) -> float:
    """Seconds that ``size_bytes`` take over TCP from ``source`` to ``address`` on ``target``, until they are taken."""
    log = lab.node_directory(target) / "take.log"
    log.unlink(missing_ok=True)
    taker = lab.popen(target, ["python", "-c", _TAKE], log)
    try:
        wait_until("it listens", log.read_text, wanted=lambda text: "listening" in text)
        command = ["python", "-c", _SEND, address, str(size_bytes)]
        return float(lab.exec(source, command, capture=True, check=True, timeout_s=120).stdout)
    finally:
        taker.kill()
        taker.wait()


def overlay_ip(lab: Lab, node: str) -> str:
    return str(membership(lab, node).lease.overlay_ip)


def can_ping(lab: Lab, node: str, address: str) -> bool:
    return lab.exec(node, ["ping", "-c", "1", "-W", "1", address], capture=True).returncode == 0


def make_token(lab: Lab, *options: str) -> str:
    """``edgelink token create`` on the relay."""
    return lab.exec("relay", ["edgelink", "token", "create", *options], capture=True, check=True).stdout.strip()


def joined(machine: Machine, token: str, *options: str) -> Lease:
    """The lease that a machine has got by ``edgelink join``."""
    result = machine.join(token, *options)
    assert result.returncode == 0, result.stderr
    lease = machine.lease
    assert lease is not None
    return lease


def start_relay(lab: Lab, *flags: str) -> dict[str, Any]:
    """The relay's status once it is ready."""
    lab.start(RELAY, flags)
    return road(lab).wait_ready(RELAY)


def road(lab: Lab) -> Road:
    return Road(lab, SystemClock(), print)


def brought_up_on(lab: Lab, edges: int, **lab_options: Any) -> Road:
    """Relay, head and edges on a lab that is not up yet, every node Ready."""
    walk = road(lab)
    walk.bring_up(edges, **lab_options)
    return walk


def start_with_relay(lab: Lab, nodes: Iterable[str]) -> None:
    """The relay, ready, and daemons of ``nodes``, which have enrolled; the lab is up."""
    start_relay(lab)
    for name in nodes:
        road(lab).enrol(name)
        lab.start(name)


def revive(walk: Road, nodes: Iterable[str]) -> Road:
    """What a test that failed may have left: daemons that are dead are started, and every node gets Ready."""
    names = list(nodes)
    for name in names:
        if walk.lab.daemon(name) is None:
            walk.lab.start(name)
    for name in names:
        walk.wait_ready(name)
    return walk


def status_of(lab: Lab, node: str) -> dict[str, Any]:
    """What the node's daemon says of itself."""
    status = road(lab).status(node)
    assert status is not None, lab.daemon_log(node).read_text()
    return status


def relay_status(lab: Lab) -> dict[str, Any]:
    return status_of(lab, RELAY)


def leases(walk: Road, nodes: Iterable[str]) -> dict[str, tuple[str, int | None]]:
    """Overlay IP and preferred rank, as each node's own daemon says."""
    found = {}
    for node in nodes:
        status = walk.status(node)
        assert status is not None, f"{node}: no daemon answers"
        found[node] = (status["overlay_ip"], status.get("preferred_rank"))
    return found


def registered(lab: Lab) -> dict[str, dict[str, Any]]:
    """Whom the relay lists, by hostname."""
    return {node["hostname"]: node for node in relay_status(lab)["nodes"]}


def wait_for_condition(
    lab: Lab, node: str, kind: str, reason: str, timeout_s: float = 120
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The node's status, and its condition ``kind`` once it has this reason."""
    paths, status = Paths(), dict[str, Any]()
    socket = lab.host_path(node, paths.bootstrap_socket if node.startswith(RELAY) else paths.node_socket)

    def condition() -> dict[str, Any] | None:
        try:
            status.update(call(socket, "GET", "/status"))
        except DaemonNotRunningError:
            assert lab.daemon(node), lab.daemon_log(node).read_text()[-3000:]
            return None
        return next((item for item in status["conditions"] if item["type"] == kind), None)

    found = wait_until(
        f"{node}: {kind} is {reason}", condition, timeout_s, wanted=lambda seen: seen["reason"] == reason
    )
    return status, found


def leftovers(lab: Lab, node: str, *, daemon: bool = False) -> list[str]:
    """What a failed or stopped start has left on a node; ``daemon``: that of ``Lab.start`` may still be there."""
    own = process.pid if (process := lab.daemon(node)) and daemon else None
    left = [f"pid {pid}" for pid in sorted(lab.pids(node) - {own})]
    links = lab.exec(node, ["ip", "-brief", "link"], capture=True, check=True).stdout.splitlines()
    left += [link for link in links if link.split()[0].split("@")[0] not in ("lo", "eth0", "wan")]
    tables = lab.exec(node, ["nft", "list", "tables"], capture=True, check=True).stdout.splitlines()
    left += [table for table in tables if "edgelink" in table]
    rules = lab.exec(node, ["ip", "rule", "show", "table", str(TABLE)], capture=True, check=True).stdout.splitlines()
    routes = lab.exec(node, ["ip", "route", "show", "table", str(TABLE)], capture=True).stdout.splitlines()
    left += [] if daemon else [*rules, *routes]
    expected = {"node.sock", "bootstrap.sock"} if daemon else set()
    for path in lab.host_path(node, Paths().runtime).rglob("*"):
        # Lock files are empty, and the kernel frees what they lock.
        if not path.is_dir() and path.name not in expected and not path.name.endswith((".lock", ".lock.users")):
            left.append(str(path))
    shared_memory = lab.exec(node, ["ls", "/dev/shm"], capture=True, check=True).stdout.split()
    return left + [f"/dev/shm/{name}" for name in shared_memory]


def assert_error(result: Result, code: int, *words: str) -> None:
    """The command refused: exactly this exit code, a message and a hint, and these words in them."""
    assert result.returncode == code, result.stdout + result.stderr
    for word in (*words, "edgelink: ", "what to do: "):
        assert word in result.stderr, f"{word!r} is not in: {result.stderr}"
    assert "Traceback" not in result.stderr
    assert "defect" not in result.stderr


def told_by_doctor(answer: Result) -> Found:
    """What `edgelink doctor --json` has printed."""
    return {row["check"]: row for row in json.loads(answer.stdout)["checks"]}


def wrong(found: Found) -> Found:
    """What is not as it should be, but for what the machine's kernel is too old for."""
    named = {name: f for name, f in found.items() if f["verdict"] in ("failed", "limited")}
    if not Path("/proc/sys/net/ipv4/tcp_rto_max_ms").exists():
        named.pop("tcp-resumes", None)
    return named


def assert_healthy(answer: Result, *judged: str) -> None:
    """`edgelink doctor --json` has found nothing, and could judge these."""
    found = told_by_doctor(answer)
    assert not wrong(found), wrong(found)
    assert answer.returncode == 0, answer.stderr
    for name in ("daemon-ready", *judged):
        assert found[name]["verdict"] == "ok", found[name]


def children(status: dict[str, Any]) -> tuple[int | None, int | None]:
    """The pids of EasyTier and Mosquitto, as the relay tells them."""
    return status["easytier_pid"], status["broker_pid"]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777
