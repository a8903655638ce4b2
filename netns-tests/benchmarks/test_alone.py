"""Figures of EdgeLink alone: the direct path, and how long a person waits for help."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest
from contenders import EDGE, bench_lab
from figures import Figure, Figures

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road

pytestmark = pytest.mark.timeout(600)

DIRECT_TIMEOUT_S = 30.0  # EasyTier 2.6.4 was measured to need 5.1 s


def test_help_is_quick(figures: Figures) -> None:
    """`edgelink --help` within 0.3 s."""
    program = Path(sys.executable).with_name("edgelink")
    taken = []
    for _ in range(6):
        started_s = time.monotonic()
        subprocess.run([program, "--help"], check=True, capture_output=True)
        taken.append(time.monotonic() - started_s)
    figure = figures.add(Figure("edgelink --help", "s", taken[1:], bar="0.3"))  # the first fills the page cache
    assert median(figure.edgelink) <= 0.3


def test_a_direct_path_is_found(figures: Figures) -> None:
    """On one routed network cloud and edge talk directly: the relay's device stops counting their traffic."""
    lab = bench_lab("direct")
    try:
        road = Road(lab, SystemClock(), lambda line: None)
        road.bring_up(1, direct=True)
        cloud = road.status(CLOUD)
        assert cloud is not None
        started_s = time.monotonic()
        while relayed_bytes(lab, cloud["overlay_ip"]) > 100_000:
            assert time.monotonic() - started_s < DIRECT_TIMEOUT_S, "the relay still carries the traffic"
            time.sleep(0.5)
        figures.add(Figure("direct path after both are ready", "s", [time.monotonic() - started_s], bar="found"))
    finally:
        lab.down()


def relayed_bytes(lab: Lab, cloud_ip: str) -> int:
    """How much the relay's link carried while the edge sent 1 MB of pings to the cloud over the overlay."""

    def counted() -> int:
        answer = lab.exec(RELAY, ["cat", "/sys/class/net/wan/statistics/tx_bytes"], capture=True, check=True)
        return int(answer.stdout)

    before = counted()
    lab.exec(EDGE, ["ping", "-q", "-f", "-c", "1000", "-s", "1000", cloud_ip], capture=True, check=True, timeout_s=60)
    return counted() - before
