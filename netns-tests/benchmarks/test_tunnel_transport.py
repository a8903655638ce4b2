"""What the tunnel carries over a long, lossy link, by its transport and the kernel's congestion control: the reason why
nodes dial the relay over TCP, and why BBR is recommended. By hand, so that nothing of EdgeLink is in the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from contenders import EDGE, ByHand, bench_lab
from figures import Figure, Figures

from edgelink.lab import CLOUD, RELAY

pytestmark = pytest.mark.timeout(900)

WAN = {"rtt": "100ms", "loss": "0.5%", "rate": "20mbit"}
NODES = (RELAY, CLOUD, EDGE)
SECONDS = 10
TRIALS = 2
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
