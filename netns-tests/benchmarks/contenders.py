"""The two roads that are compared, behind one face: a lab with one edge each, both up at the same time.

Each has its relay, head and observer running throughout; what alternates is the edge.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from by_hand.road import ByHandRoad

from edgelink.clock import SystemClock
from edgelink.config import OverlayConfig
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road
from edgelink.overlay.acquisition import default_cache_dir, find_easytier
from edgelink.process import procfs
from edgelink.process.identity import usage

_SETTLES_S = 3.0  # what was frozen catches up first, and EdgeLink asks everybody: that is the freezing's own cost
_OBSERVER = Path(__file__).with_name("observer.py")
EDGE = "edge-1"
_IPERF_PORT = "45201"  # where a training may listen: over the overlay nothing else answers


@dataclass(frozen=True)
class Stream:
    """What one TCP stream has carried, and the processor time of EasyTier and iperf3 for each byte of it."""

    mbit_s: float
    s_per_gb: float


class Contender(ABC):
    """One lab in which an edge can be started and stopped again and again."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.observations = lab.node_directory(CLOUD) / "observer.log"

    @abstractmethod
    def prepare(self) -> None:
        """Relay and head up, observer watching, edge known but not running."""

    @abstractmethod
    def start_edge(self) -> None:
        """What is typed on the edge; may return before the edge is in Ray."""

    @abstractmethod
    def stop_edge(self) -> None: ...

    @abstractmethod
    def overlay_ip(self, node: str) -> str: ...

    def observed(self) -> list[dict[str, Any]]:
        lines = self.observations.read_text().splitlines() if self.observations.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_observed(self, already: int, timeout_s: float = 120) -> dict[str, Any]:
        """The next node the observer sees after the ``already`` it has seen."""
        deadline_s = time.monotonic() + timeout_s
        while len(found := self.observed()) <= already:
            assert time.monotonic() < deadline_s, f"no new node in Ray: {self.observations.read_text()}"
            time.sleep(0.05)
        return found[already]

    def edge_start_s(self) -> float:
        """From the start of the edge's command to "alive in Ray", as the observer sees it."""
        already, started_s = len(self.observed()), time.monotonic()
        self.start_edge()
        seen = self.wait_observed(already)
        assert seen["ip"] == self.overlay_ip(EDGE)
        return float(seen["at_s"]) - started_s

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Freeze everything of this lab: what one road burns must not be charged to the other.

        A few seconds only: EasyTier gives a silent peer 10 s, Ray a silent node longer.
        """
        pids = [pid for node in self.lab.topology.machines for pid in self.lab.pids(node.name)]
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    def pid_of(self, node: str, program: str) -> int:
        (pid,) = (pid for pid in self.lab.pids(node) if procfs.command_of(pid) == program)
        return pid

    def easytier_s(self) -> float:
        """The processor time of all EasyTiers of this lab."""
        return sum(usage(self.pid_of(node, "easytier-core")).cpu_s for node in (RELAY, CLOUD, EDGE))

    def stream(self, source: str, target: str, seconds: int = 4) -> Stream:
        """One TCP stream over the overlay."""
        address = self.overlay_ip(target)
        log = self.lab.node_directory(target) / "iperf.log"
        client = ["iperf3", "--client", address, "--port", _IPERF_PORT, "--time", str(seconds), "--json"]
        for _ in range(5):  # iperf3 now and then ends at once, with status 0 and no figures
            server = self.lab.popen(
                target, ["iperf3", "--server", "--one-off", "--bind", address, "--port", _IPERF_PORT], log
            )
            try:
                self._wait_listening(target, f"{address}:{_IPERF_PORT}")
                before_s = self.easytier_s()
                result = self.lab.exec(source, client, capture=True, timeout_s=60)
                server.wait(10)
                spent_s = self.easytier_s() - before_s
            finally:
                server.kill()
                server.wait()
            end = json.loads(result.stdout)["end"]
            if received := end.get("sum_received"):
                cpu = end["cpu_utilization_percent"]
                spent_s += (cpu["host_total"] + cpu["remote_total"]) / 100 * received["seconds"]
                return Stream(received["bits_per_second"] / 1e6, spent_s / received["bytes"] * 1e9)
        raise AssertionError(f"iperf3 {source} to {address}: {result.stdout}")

    def _wait_listening(self, node: str, address: str) -> None:
        deadline_s = time.monotonic() + 10
        while address not in self.lab.exec(node, ["ss", "-tlnH"], capture=True, check=True).stdout:
            assert time.monotonic() < deadline_s, f"{node}: nothing listens on {address}"
            time.sleep(0.05)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class ByHand(Contender):
    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        # The same packets on both roads; what a smaller MTU costs by itself is in ADR 0017.
        self.road = ByHandRoad(lab, easytier_flags=f"--mtu {OverlayConfig().mtu}")

    def prepare(self) -> None:
        self.lab.up(edges=1)
        self.road.overlay(RELAY, CLOUD)
        self.road.head()
        self.lab.popen(
            CLOUD,
            ["python", "-W", "ignore", str(_OBSERVER), f"{self.overlay_ip(CLOUD)}:6379"],
            self.observations,
            env={"RAY_AUTH_MODE": "disabled"},
        )
        self.wait_observed(0)

    def start_edge(self) -> None:
        self.road.overlay(EDGE)
        self.road.edge(1)

    def stop_edge(self) -> None:
        self.road.stop(EDGE)

    def overlay_ip(self, node: str) -> str:
        return self.road.overlay_ip(node)


class EdgeLink(Contender):
    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self.road = Road(lab, SystemClock(), lambda line: None)
        self._overlay_ips: dict[str, str] = {}

    def prepare(self) -> None:
        self.road.bring_up(1)
        for node in (RELAY, CLOUD, EDGE):
            status = self.road.status(node)
            assert status is not None
            self._overlay_ips[node] = status["overlay_ip"]
        self.stop_edge()
        # `edgelink exec` gives the observer the head's environment, Ray's token with it.
        self.lab.popen(
            CLOUD,
            ["edgelink", "exec", "--", "python", "-W", "ignore", str(_OBSERVER), f"{self.overlay_ip(CLOUD)}:6379"],
            self.observations,
        )
        self.wait_observed(0)

    def start_edge(self) -> None:
        self.lab.start(EDGE)

    def stop_edge(self) -> None:
        self.lab.stop(EDGE)

    def overlay_ip(self, node: str) -> str:
        return self._overlay_ips[node]


@dataclass(frozen=True)
class Pair:
    by_hand: ByHand
    edgelink: EdgeLink

    @property
    def both(self) -> tuple[Contender, ...]:
        return (self.by_hand, self.edgelink)

    def in_turn(self) -> Iterator[Contender]:
        """Each contender while the other one rests."""
        for contender, other in (self.both, self.both[::-1]):
            with other.resting():
                time.sleep(_SETTLES_S)
                yield contender


def bench_lab(kind: str) -> Lab:
    easytier = find_easytier(None, default_cache_dir()).core.parent
    return Lab(f"bench-{kind}-{secrets.token_hex(3)}", extra_path=[easytier])
