"""What the tunnel carries over a long, lossy link, by its transport and the kernel's congestion control: the reason why
nodes dial the relay over TCP, and why EdgeLink sets BBR. By hand first, so that nothing of EdgeLink is in the way; then
with EdgeLink's rules, the host's default being cubic."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from contenders import EDGE, ByHand, bench_lab
from figures import Figure, Figures
from overlay_lab import OverlayLab

from edgelink.lab import CLOUD, RELAY

pytestmark = pytest.mark.timeout(900)

WAN = {"rtt": "100ms", "loss": "0.5%", "rate": "20mbit"}
NODES = (RELAY, CLOUD, EDGE)
SECONDS = 10
TRIALS = 2
LOSSY = {"rtt": "100ms", "loss": "1%", "rate": "20mbit"}
RUNS = 5
LEAST_MBIT_S, LEAST_GAIN, MOST_P99_MS = 10, 5, 800
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")


@pytest.fixture(autouse=True)
def allowed() -> Iterator[None]:
    """A network namespace may choose only what the machine allows everybody."""
    before = ALLOWED.read_text()
    ALLOWED.write_text("reno cubic bbr")
    try:
        yield
    finally:
        ALLOWED.write_text(before)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_what_the_tunnel_carries(transport: str, figures: Figures) -> None:
    """One TCP stream from the edge to the cloud by the relay. Over TCP with BBR at least half of the rate arrives."""
    lab = bench_lab("transport")
    try:
        lab.up(edges=1)
        side = ByHand(lab)
        found = {}
        for control in ("cubic", "bbr"):
            for node in NODES:  # what a connection has is decided when it begins
                setting = f"net.ipv4.tcp_congestion_control={control}"
                lab.exec(node, ["sysctl", "-qw", setting], capture=True, check=True)
            side.road.overlay(*NODES, transport=transport)
            lab.set_wan([EDGE], WAN)
            found[control] = [side.iperf_mbit_s(EDGE, CLOUD, SECONDS) for _ in range(TRIALS)]
            lab.set_wan([EDGE], {"rtt": "0", "loss": "0", "rate": "none"})
            side.road.stop(*reversed(NODES))
            figures.add(Figure(f"tunnel over {transport}, {control} in the kernel", "Mbit/s", found[control]))
        if transport == "tcp":
            assert min(found["bbr"]) >= 10
    finally:
        lab.down()


def test_edgelink_gives_the_tunnel_alone_bbr(figures: Figures) -> None:
    """In both directions, host and main table untouched; medians of five runs, and what pings beside them take."""
    lab = bench_lab("congestion")
    try:
        lab.up(edges=1)
        overlay = OverlayLab(lab)
        for node in NODES:
            lab.exec(node, ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"], capture=True, check=True)
        lab.set_wan([EDGE], LOSSY)
        found = {}
        for sets_bbr, what in ((False, "the host's cubic"), (True, "EdgeLink's rules")):
            overlay.start(*NODES, sets_bbr=sets_bbr)
            overlay.wait_connected()
            for source, target in ((CLOUD, EDGE), (EDGE, CLOUD)):
                runs = [overlay.carry(source, target, SECONDS) for _ in range(RUNS)]
                found[sets_bbr, source] = runs
                way = f"{source} to {target}, 1 % loss, {what}"
                figures.add(Figure(way, "Mbit/s", [run.mbit_s for run in runs]))
                figures.add(Figure(f"{way}: p99 of pings beside it", "ms", [run.p99_ms for run in runs]))
            overlay.end()
        for source in (CLOUD, EDGE):
            before, after = (statistics.median(run.mbit_s for run in found[is_set, source]) for is_set in (False, True))
            assert after >= LEAST_MBIT_S, source
            assert after >= LEAST_GAIN * before, source
            assert statistics.median(run.p99_ms for run in found[True, source]) <= MOST_P99_MS, source
    finally:
        lab.down()
