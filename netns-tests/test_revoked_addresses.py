"""What a revoked node held is dropped by all others at once: while the secret changes, and by one that cannot follow.

Relay and three edges, without Ray. The revoked machine is nobody's any more: its daemon is dead, its EasyTier runs.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import MakeLab
from machines import (
    Machine,
    can_ping,
    make_token,
    overlay_ip,
    start_with_relay,
    wait_for_condition,
    wait_until,
)
from test_direct_paths import FOUND_S, wait_for_path

from edgelink.config import OverlayConfig, Paths
from edgelink.lab import RELAY, Lab
from edgelink.overlay.acquisition import default_cache_dir, find_easytier

EDGES = ("edge-1", "edge-2", "edge-3")
STOLEN, STRAGGLER = "edge-3", "edge-2"
REMAINING = (RELAY, "edge-1", STRAGGLER)
IN_FLIGHT_S = 2.0  # also where a machine is busy
DROPPED_S = 30.0  # the command's start, and a tenth of a second

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]

_CHATTER = """
import select, socket, sys, time
own, others = sys.argv[1], sys.argv[2:]
end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
end.bind((own, 47474))
next_s = 0.0
while True:
    if time.time() >= next_s:
        next_s = time.time() + 0.05
        for other in others:
            try:
                end.sendto(b"hello", (other, 47474))
            except OSError:  # dropped here, or the device is away: EasyTier is started anew
                pass
    if select.select([end], [], [], 0.05)[0]:
        print(time.time(), end.recvfrom(100)[1][0], flush=True)
"""


class Chatter:
    """Each node tells each other something twenty times a second, and notes whom it hears."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.addresses = {node: overlay_ip(lab, node) for node in (RELAY, *EDGES)}
        self._logs = {node: directory / f"{node}.log" for node in self.addresses}
        self._processes = [
            lab.popen(node, ["python3", "-c", _CHATTER, own, *self._others(node)], self._logs[node])
            for node, own in self.addresses.items()
        ]

    def _others(self, node: str) -> list[str]:
        return [address for other, address in self.addresses.items() if other != node]

    def heard(self, node: str, source: str) -> list[float]:
        """When ``node`` heard ``source``, seconds of the epoch."""
        lines = [line.split() for line in self._logs[node].read_text().splitlines(keepends=True) if line[-1:] == "\n"]
        return [float(line[0]) for line in lines if line[1:] == [self.addresses[source]]]

    def wait_for_all(self) -> None:
        for node in self.addresses:
            for source in self.addresses:
                if source != node:
                    wait_until(f"{node} hears {source}", lambda n=node, s=source: self.heard(n, s))

    def end(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def rules(lab: Lab, node: str) -> str:
    """The rule about what comes from revoked nodes. Empty: there is none."""
    show = ["nft", "list", "chain", "inet", "edgelink_easytier", "from_members"]
    told = lab.exec(node, show, capture=True).stdout.splitlines()
    return "".join(line for line in told if "from_revoked" in line)


def dropped(lab: Lab, node: str) -> int:
    """How many packets of revoked nodes reached this node's overlay device."""
    found = re.search(r"saddr .* counter packets (\d+) .* drop", rules(lab, node))
    return int(found[1]) if found else 0


def count_of(lab: Lab, node: str) -> Callable[[], int]:
    return lambda: dropped(lab, node)


@contextmanager
def unable_to_follow(lab: Lab, node: str) -> Iterator[None]:
    """Its daemon runs and hears everything, but cannot put another secret down: its EasyTier stays on the old one."""
    file = str(Paths().membership)
    lab.exec(node, ["mount", "--bind", file, file], capture=True, check=True)  # what is mounted on is not replaced
    try:
        yield
    finally:
        # Lazily: its daemon may just have it open.
        lab.exec(node, ["umount", "--lazy", file], capture=True, check=True)


def dial(lab: Lab, node: str, other: str) -> None:
    """Who holds this machine has its EasyTier dial the other for ever, whatever becomes of the relay."""
    cli = find_easytier(None, default_cache_dir()).cli
    rpc, url = f"127.0.0.1:{OverlayConfig().rpc_port}", f"tcp://{lab.topology.address(other)}:11010"
    lab.exec(node, [str(cli), "-p", rpc, "connector", "add", url], capture=True, check=True)


def test_nothing_passes_between_the_revocation_and_the_end_of_the_change(make_lab: MakeLab, tmp_path: Path) -> None:
    """From what was revoked and to it, not even where a node stays on the old secret with it; then another node gets
    the address, and is spoken to by all."""
    lab = make_lab()
    lab.up(len(EDGES), direct=True)
    start_with_relay(lab, EDGES)
    for node in EDGES:
        wait_for_condition(lab, node, "SecretCurrent", "Current")
        wait_for_condition(lab, node, "PeersReachable", "Reachable")
    lab.kill(STOLEN)
    dial(lab, STOLEN, STRAGGLER)
    wait_for_path(lab, "direct", FOUND_S, node=STRAGGLER, other=STOLEN)
    with unable_to_follow(lab, STRAGGLER):
        revoke_under_chatter(lab, tmp_path)
    wait_for_condition(lab, STRAGGLER, "SecretCurrent", "Current", 90)
    stolen_ip = overlay_ip(lab, STOLEN)
    lab.exec(RELAY, ["edgelink", "registry", "release", STOLEN, "--now"], capture=True, check=True)
    machine = Machine(lab, STOLEN)
    assert machine.edgelink("leave", "--yes").returncode == 0
    joined = machine.join(make_token(lab, "--ip", stolen_ip))
    assert joined.returncode == 0, joined.stderr
    lab.start(STOLEN)
    wait_for_condition(lab, STOLEN, "PeersReachable", "Reachable")
    for node in REMAINING:
        wait_until(f"{node} speaks to it", lambda n=node: can_ping(lab, n, stolen_ip))
        assert stolen_ip not in rules(lab, node)


def revoke_under_chatter(lab: Lab, directory: Path) -> None:
    """All talk to each other meanwhile, over the old secret as long as they have it."""
    chatter = Chatter(lab, directory)
    revoking = None
    try:
        chatter.wait_for_all()
        started_s, stolen_ip = time.time(), chatter.addresses[STOLEN]
        log = directory / "revoke.log"
        revoking = lab.popen(RELAY, ["edgelink", "revoke", STOLEN, "--yes"], log)
        for node in REMAINING:
            wait_until(
                f"{node} drops it", lambda n=node: rules(lab, n), DROPPED_S, wanted=lambda text: stolen_ip in text
            )
        dropped_s = time.time()
        for node in REMAINING:  # all are on the old secret for two seconds
            wait_until(f"{node} is still sent something", count_of(lab, node), 20, wanted=lambda count: count > 0)
        assert revoking.wait(120) == 75, log.read_text()
        assert STRAGGLER in log.read_text()
        wait_for_condition(lab, STRAGGLER, "SecretCurrent", "NotRecorded")
        before, ended_s = dropped(lab, STRAGGLER), time.time()
        wait_until("it still reaches the straggler", count_of(lab, STRAGGLER), wanted=lambda count: count > before + 20)
        wait_until("the others go on", lambda: [t for t in chatter.heard(RELAY, "edge-1") if t > ended_s])
    finally:
        chatter.end()
        if revoking is not None and revoking.poll() is None:
            revoking.kill()
            revoking.wait(10)
    last_s = {
        f"{source} to {node}": round(max(chatter.heard(node, source)) - started_s, 2)
        for one in REMAINING
        for node, source in ((one, STOLEN), (STOLEN, one))
    }
    print(f"\nlast heard, s after `edgelink revoke`: {last_s}; dropped by all after {dropped_s - started_s:.2f}")
    assert max(last_s.values()) < dropped_s - started_s + IN_FLIGHT_S
