"""A lab whose nodes run the overlay part of the daemon alone (``overlay_node.py``): no registry, no Ray."""

from __future__ import annotations

import json
import re
import signal
import statistics
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines import can_ping, wait_until

from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.overlay.acquisition import default_cache_dir, find_easytier

EDGE = "edge-1"
NODES = (RELAY, CLOUD, EDGE)
OVERLAY_IPS = {RELAY: "10.10.0.1", CLOUD: "10.10.0.2", EDGE: "10.10.0.3"}
RELAY_ADDRESS = "203.0.113.10"
PORT = 11010
RAY_UID = 1234  # nobody runs as this user here; rules may pick it
_SCRIPT = Path(__file__).with_name("overlay_node.py")


@dataclass(frozen=True)
class Carried:
    """What one stream got, and what happened to pings beside it.

    Attributes:
        p99_ms: the round trip of those that came back.
        lost_percent: of the pings, without those on their way when the stream ended.
        sender_rtt_ms: the stream's, as its sender's kernel sees it. A proxy in EasyTier answers within a millisecond.
    """

    mbit_s: float
    p99_ms: float
    lost_percent: float
    sender_rtt_ms: float


class OverlayLab:
    """The daemons' overlay parts on a lab that is up."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._easytier = find_easytier(None, default_cache_dir())
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._ids = {node: str(uuid.uuid4()) for node in NODES}

    def start(
        self,
        *nodes: str,
        sets_bbr: bool = True,
        adjusts_tcp: bool = True,
        transport: str = "tcp",
        flags: tuple[str, ...] = (),
    ) -> None:
        """Start the daemons. ``flags`` are further ones on EasyTier's command line."""
        for node in nodes:
            directory = self._directory(node)
            directory.mkdir(exist_ok=True)
            settings = {
                "directory": str(self._directory(node)),
                "hostname": node,
                "secret": "a secret of this test",
                "address": f"{OVERLAY_IPS[node]}/24",
                "peers": [] if node == RELAY else [f"{transport}://{RELAY_ADDRESS}:{PORT}"],
                "listeners": [f"{transport}://0.0.0.0:{PORT}"] if node == RELAY else [],
                "core": str(self._core(directory, flags)),
                "version": self._easytier.version,
                "instance_id": self._ids[node],
                "sets_bbr": sets_bbr,
                "adjusts_tcp": adjusts_tcp,
                "members": OVERLAY_IPS,
                "ray_uid": RAY_UID,
            }
            (directory / "settings.json").write_text(json.dumps(settings))
            command = [sys.executable, str(_SCRIPT), str(directory / "settings.json")]
            self._daemons[node] = self.lab.popen(node, command, directory / "daemon.out")

    def _core(self, directory: Path, flags: tuple[str, ...]) -> Path:
        if not flags:
            return self._easytier.core
        cli, program = directory / "easytier-cli", directory / "easytier-core"
        cli.unlink(missing_ok=True)
        cli.symlink_to(self._easytier.core.with_name("easytier-cli"))
        program.write_text(f'#!/bin/sh\nexec {self._easytier.core} "$@" {" ".join(flags)}\n')
        program.chmod(0o755)
        return program

    def stop(self, *nodes: str, number: signal.Signals = signal.SIGTERM) -> None:
        for node in list(nodes):
            daemon = self._daemons.pop(node)
            daemon.send_signal(number)
            daemon.wait(60)

    def end(self) -> None:
        """Stop all that run, the relay last."""
        self.stop(*reversed([*self._daemons]))

    def wait_connected(self, source: str = EDGE, target: str = CLOUD, timeout_s: float = 60) -> None:
        wait_until(f"{target} answers {source}", lambda: can_ping(self.lab, source, OVERLAY_IPS[target]), timeout_s)

    def sh(self, node: str, command: str) -> str:
        return self.lab.exec(node, command.split(), capture=True, check=True).stdout

    def condition(self, node: str) -> str:
        """The last message of ``OverlayUp``."""
        told = self.told(node)
        return str(told[-1]["message"]) if told else ""

    def told(self, node: str) -> list[dict[str, Any]]:
        """Everything that was said in ``OverlayUp``, in its order."""
        lines = self._directory(node).joinpath("daemon.out").read_text().splitlines()
        return [json.loads(line) for line in lines if '"OverlayUp"' in line]

    def carry(self, source: str, target: str, seconds: int) -> Carried:
        """One TCP stream over the overlay, 20 pings a second beside it from the edge."""
        server_log = self._directory(target) / "iperf.log"
        server_log.unlink(missing_ok=True)
        server = self.lab.popen(target, ["iperf3", "--server", "--one-off", "--forceflush"], server_log)
        pings_log = self._directory(EDGE) / "pings"
        pings_log.unlink(missing_ok=True)
        try:
            wait_until("iperf3 listens", server_log.read_text, wanted=lambda text: "listening" in text)
            other = target if source == EDGE else source
            pings = self.lab.popen(EDGE, ["ping", "-i", "0.05", OVERLAY_IPS[other]], pings_log)
            try:
                client = ["iperf3", "--client", OVERLAY_IPS[target], "--time", str(seconds), "--json"]
                told = json.loads(self.lab.exec(source, client, capture=True, timeout_s=120).stdout)
            finally:
                pings.send_signal(signal.SIGINT)
                pings.wait()
        finally:
            server.kill()
            server.wait()
        pongs = re.findall(r"icmp_seq=([0-9]+) .*time=([0-9.]+)", pings_log.read_text())
        rtts_ms, numbers = [float(rtt_ms) for _, rtt_ms in pongs], {int(number) for number, _ in pongs}
        return Carried(
            mbit_s=told["end"]["sum_received"]["bits_per_second"] / 1e6,
            p99_ms=statistics.quantiles(rtts_ms, n=100)[98] if len(rtts_ms) > 1 else float("inf"),
            lost_percent=100 * (1 - len(numbers) / max(numbers)) if numbers else 100.0,
            sender_rtt_ms=told["end"]["streams"][0]["sender"]["mean_rtt"] / 1000,
        )

    def _directory(self, node: str) -> Path:
        return self.lab.node_directory(node) / "overlay"
