"""What the tunnel carries: with EdgeLink's BBR against the host's cubic, and by EasyTier's ways to the relay.

The host's default is cubic in all of it.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from contenders import bench_lab
from figures import Figure, Figures
from overlay_lab import EDGE, NODES, Carried, OverlayLab

from edgelink.lab import CLOUD, Lab

pytestmark = pytest.mark.timeout(900)

SECONDS = 10
LOSSY = {"rtt": "100ms", "loss": "1%", "rate": "20mbit"}
LINKS = ({"rtt": "40ms", "loss": "0%", "rate": "200mbit"}, LOSSY, {"rtt": "300ms", "loss": "3%", "rate": "5mbit"})
# By name: the scheme of the relay's URL, and flags of EasyTier on all nodes.
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "TCP": ("tcp", ()),
    "UDP": ("udp", ()),
    "UDP, QUIC proxy": ("udp", ("--enable-quic-proxy", "--disable-quic-input false")),
}
DIRECTIONS = ((CLOUD, EDGE), (EDGE, CLOUD))
ROUNDS = 2
WORTH = 1.5
LEAST_RTT_MS = 30  # of a stream that crosses any of the links
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


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = bench_lab("transport")
    try:
        lab.up(edges=1)
        for node in NODES:  # what a connection has is decided when it begins
            lab.exec(node, ["sysctl", "-qw", "net.ipv4.tcp_congestion_control=cubic"], capture=True, check=True)
        yield lab
    finally:
        lab.down()


def test_no_other_way_to_the_relay_is_worth_a_choice(lab: Lab, figures: Figures) -> None:
    """Once another one is, on two links of three, a transport ``auto`` is worth building (ADR 0038)."""
    wins = Counter[str]()
    for link in LINKS:
        found = carried_by_way(lab, link)
        ratios = {key: of_tcp(runs, found["TCP", key[1]]) for key, runs in found.items()}
        for (way, source), runs in found.items():
            what, (goodput, delay) = f"{' '.join(link.values())}, from {source}, {way}", ratios[way, source]
            figures.add(Figure(what, "Mbit/s", [run.mbit_s for run in runs], bar=f"{goodput:.2f} of TCP's"))
            delays_ms = [run.p99_ms for run in runs]
            figures.add(Figure(f"{what}: p99 of pings beside it", "ms", delays_ms, bar=f"{delay:.2f} of TCP's"))
        both = {way: [ratios[way, source] for source, _ in DIRECTIONS] for way in WAYS}
        wins.update(way for way in WAYS if all(goodput >= WORTH and delay <= 1 for goodput, delay in both[way]))
    assert max(wins.values(), default=0) < 2, wins


def carried_by_way(lab: Lab, link: dict[str, str]) -> dict[tuple[str, str], list[Carried]]:
    """What the tunnel carries on the edge's ``link`` by each way and from each node, the ways in turns."""
    overlay, found = OverlayLab(lab), defaultdict[tuple[str, str], list[Carried]](list)
    lab.set_wan([EDGE], link)
    for _ in range(ROUNDS):
        for way, (transport, flags) in WAYS.items():
            overlay.start(*NODES, transport=transport, flags=flags)
            overlay.wait_connected()
            for source, target in DIRECTIONS:
                run = overlay.carry(source, target, SECONDS)
                assert (run.sender_rtt_ms < LEAST_RTT_MS) == bool(flags), f"{way}: whether a proxy took the stream"
                found[way, source].append(run)
            overlay.end()
    return found


def of_tcp(runs: list[Carried], over_tcp: list[Carried]) -> tuple[float, float]:
    """Return the goodput's median and that of the pings' p99, as ratios of those over TCP."""
    goodput = statistics.median(run.mbit_s for run in runs) / statistics.median(run.mbit_s for run in over_tcp)
    delay = statistics.median(run.p99_ms for run in runs) / statistics.median(run.p99_ms for run in over_tcp)
    return goodput, delay


def test_edgelink_gives_the_tunnel_alone_bbr(lab: Lab, figures: Figures) -> None:
    """In both directions, host and main table untouched; medians of five runs, and what pings beside them take."""
    overlay, found = OverlayLab(lab), {}
    lab.set_wan([EDGE], LOSSY)
    for sets_bbr, what in ((False, "the host's cubic"), (True, "EdgeLink's rules")):
        overlay.start(*NODES, sets_bbr=sets_bbr)
        overlay.wait_connected()
        for source, target in DIRECTIONS:
            runs = [overlay.carry(source, target, SECONDS) for _ in range(RUNS)]
            found[sets_bbr, source] = runs
            way = f"{source} to {target}, 1 % loss, {what}"
            figures.add(Figure(way, "Mbit/s", [run.mbit_s for run in runs]))
            figures.add(Figure(f"{way}: p99 of pings beside it", "ms", [run.p99_ms for run in runs]))
        overlay.end()
    for source, _ in DIRECTIONS:
        before, after = (statistics.median(run.mbit_s for run in found[is_set, source]) for is_set in (False, True))
        assert after >= LEAST_MBIT_S, source
        assert after >= LEAST_GAIN * before, source
        assert statistics.median(run.p99_ms for run in found[True, source]) <= MOST_P99_MS, source
