"""What EdgeLink's nftables and its routing table cost: one stream over the overlay, and packets on a bare device.

Runs with and without alternate. The daemons are killed first: EasyTier goes on, and nobody puts back what is gone.
A thousand addresses may come in, as in a large network. The rules are cheap beside EasyTier's encryption, so the second
test has no EasyTier: small packets between two namespaces, with the rules around that device.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest
from contenders import bench_lab
from figures import Figure, Figures
from machines import wait_until
from overlay_lab import EDGE, NODES, OVERLAY_IPS, OverlayLab

from edgelink.lab import CLOUD, Lab
from edgelink.overlay.nft import Table
from edgelink.overlay.overlay_rules import OverlayRules
from edgelink.overlay.own_routes import PRIORITY, TABLE
from edgelink.overlay.rpc_guard import RPC_TABLE, rpc_guard
from edgelink.process.identity import usage

pytestmark = pytest.mark.timeout(600)

RUNS, SECONDS = 5, 5
LEAST_RATIO = 0.97
LINE = {"rtt": "20ms", "rate": "100mbit"}
NEIGHBOUR, LAN_IP, NEIGHBOUR_IP = "edge-1-nat", "192.168.11.2", "192.168.11.1"
RPC_PORT = 15888


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = bench_lab("tables")
    try:
        lab.up(edges=1)
        yield lab
    finally:
        lab.down()


def guard(device: str, address: str, members: list[str]) -> Table:
    interface = IPv4Interface(address)
    others = {interface.network.network_address + number for number in range(1, 1000)}
    return rpc_guard(RPC_PORT, device, OverlayRules(interface, usable=frozenset({*map(IPv4Address, members), *others})))


def nft(lab: Lab, node: str, script: str) -> None:
    lab.exec(node, ["nft", "-f", "-"], capture=True, check=True, stdin=script)


def alternating(
    put: Callable[[], None], take: Callable[[], None], run: Callable[[], tuple[float, ...]]
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """What runs gave with and without. The first one warms up and does not count."""
    run()
    found: dict[bool, list[tuple[float, ...]]] = {True: [], False: []}
    for _ in range(RUNS):
        for is_put, change in ((True, put), (False, take)):
            change()
            found[is_put].append(run())
    return found[True], found[False]


def ratio(figures: Figures, name: str, unit: str, put: Sequence[float], taken: Sequence[float], bar: str = "") -> float:
    """Of the medians, with over without. ``bar``: what it has to be."""
    load = " ".join(f"{each:.1f}" for each in os.getloadavg())
    figures.add(Figure(f"{name} (left: with)", unit, put, taken, f"{bar}; load {load}"))
    return statistics.median(put) / statistics.median(taken)


def iperf3(lab: Lab, source: str, target: str, address: str, *options: str) -> dict[str, Any]:
    """The end of what a client tells that sends from ``source``."""
    log = lab.node_directory(target) / "iperf.log"
    log.unlink(missing_ok=True)
    server = lab.popen(target, ["iperf3", "--server", "--one-off", "--forceflush"], log)
    try:
        wait_until("iperf3 listens", log.read_text, wanted=lambda text: "listening" in text)
        client = ["iperf3", "--client", address, "--time", str(SECONDS), "--json", *options]
        told = lab.exec(source, client, capture=True, check=True, timeout_s=60).stdout
    finally:
        server.kill()
        server.wait()
    end: dict[str, Any] = json.loads(told)["end"]
    return end


def test_a_stream_over_the_overlay(lab: Lab, figures: Figures) -> None:
    """By a line as fast as a robot's may be. Where the processor is the limit, throughput tells of other work.

    So the processor time for each byte is told, too. EasyTier spends it, which writes to the device, and iperf3.
    Measured once, on two busy cores, by a line without a limit: 6 % more with the whole table, 2 % of it for what keeps
    the overlay on its device; the rest is that there are hooks at all.
    """
    lab.set_wan([EDGE], LINE)
    overlay = OverlayLab(lab)
    overlay.start(*NODES, sets_bbr=False)
    overlay.wait_connected()
    overlay.stop(EDGE, CLOUD, number=signal.SIGKILL)
    members = list(OVERLAY_IPS.values())
    tables = {node: guard("et0", f"{OVERLAY_IPS[node]}/24", members).script for node in (EDGE, CLOUD)}

    def put() -> None:
        for node, script in tables.items():
            nft(lab, node, script)
            overlay.sh(node, f"ip rule add pref {PRIORITY} to 10.10.0.0/24 lookup {TABLE}")

    def take() -> None:
        for node in tables:
            nft(lab, node, f"table inet {RPC_TABLE}\ndelete table inet {RPC_TABLE}\n")
            overlay.sh(node, f"ip rule del pref {PRIORITY}")

    easytier = [pid for node in NODES for pid in lab.pids(node)]

    def stream() -> tuple[float, ...]:
        before_s = sum(usage(pid).cpu_s for pid in easytier)
        end = iperf3(lab, EDGE, CLOUD, OVERLAY_IPS[CLOUD])
        spent_s, cpu = sum(usage(pid).cpu_s for pid in easytier) - before_s, end["cpu_utilization_percent"]
        spent_s += (cpu["host_total"] + cpu["remote_total"]) / 100 * SECONDS
        return end["sum_received"]["bits_per_second"] / 1e6, spent_s / end["sum_received"]["bytes"] * 1e9

    take()
    with_tables, without = alternating(put, take, stream)
    rates = [each[0] for each in with_tables], [each[0] for each in without]
    kept = ratio(figures, "TCP over the overlay", "Mbit/s", *rates, f"ratio at least {LEAST_RATIO}")
    ratio(figures, "processor time of it", "s/GB", [each[1] for each in with_tables], [each[1] for each in without])
    put()
    overlay.start(EDGE, CLOUD)  # which adopt what is there, and end it
    overlay.wait_connected()
    overlay.end()
    assert kept >= LEAST_RATIO


def test_small_packets_on_a_bare_device(lab: Lab, figures: Figures) -> None:
    """Both ends are on this machine, so packets a second tell what the processor spends on each."""
    script = guard("eth0", f"{LAN_IP}/24", [NEIGHBOUR_IP]).script

    def put() -> None:
        nft(lab, EDGE, script)

    def take() -> None:
        nft(lab, EDGE, f"table inet {RPC_TABLE}\ndelete table inet {RPC_TABLE}\n")

    def packets_s() -> tuple[float, ...]:
        end = iperf3(lab, NEIGHBOUR, EDGE, LAN_IP, "--udp", "--bitrate", "0", "--length", "64")["sum"]
        return ((end["packets"] - end["lost_packets"]) / SECONDS,)

    with_tables, without = ([each[0] for each in runs] for runs in alternating(put, take, packets_s))
    ratio(figures, "UDP of 64 bytes on a bare device", "packets/s", with_tables, without)
