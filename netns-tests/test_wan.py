"""A lab's links made long, lossy and narrow, measured from outside with ping and iperf3."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from conftest import MakeLab
from machines import wait_until

from edgelink.lab import Lab

pytestmark = [pytest.mark.netns, pytest.mark.timeout(300)]
RELAY = "203.0.113.10"
CLEAR = {"rtt": "0", "jitter": "0", "loss": "0", "rate": "none"}
_ORDER = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
    receiver.bind(("0.0.0.0", 7000))
    print("listening", flush=True)
    receiver.settimeout(10)
    print(*(receiver.recv(10).decode() for _ in range(200)), flush=True)
"""
_SEND = """
import socket, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    for number in range(200):
        sender.sendto(str(number).encode(), ("203.0.113.10", 7000))
        time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def shared(make_shared_lab: MakeLab) -> Lab:
    lab = make_shared_lab()
    lab.up(edges=2)
    return lab


@pytest.fixture
def lab(shared: Lab) -> Iterator[Lab]:
    yield shared
    shared.set_wan(["relay", "edge-1", "edge-2"], CLEAR)


def rtts_ms(lab: Lab, node: str, count: int = 20, interval_s: float = 0.02, target: str = RELAY) -> list[float]:
    """Of the pings that were answered."""
    argv = ["ping", "-c", str(count), "-i", str(interval_s), "-W", "2", target]
    return [float(found) for found in re.findall(r"time=([0-9.]+)", lab.exec(node, argv, capture=True).stdout)]


def rate_mbit(lab: Lab, node: str, tmp_path: Path, *args: str) -> float:
    """What arrives of a TCP stream between ``node`` and the relay."""
    log = tmp_path / "iperf3.log"
    log.unlink(missing_ok=True)
    server = lab.popen("relay", ["iperf3", "--server", "--one-off", "--forceflush"], log)
    wait_until("iperf3 listens", log.read_text, wanted=lambda text: "listening" in text)
    argv = ["iperf3", "--client", RELAY, "--time", "3", "--omit", "1", "--json", *args]
    told = json.loads(lab.exec(node, argv, capture=True, check=True, timeout_s=60).stdout)
    server.wait(30)  # the next one needs its port
    return float(told["end"]["sum_received"]["bits_per_second"]) / 1e6


def test_a_long_link_is_long_for_its_machine_alone(lab: Lab) -> None:
    """No packet is early; two machines with long ways are apart by the sum; another length takes effect at once."""
    told = lab.set_wan(["edge-1"], {"rtt": "80ms"})
    assert told == {"edge-1": "rtt +80 ms"}
    long, short = rtts_ms(lab, "edge-1"), rtts_ms(lab, "edge-2")
    assert len(long) == len(short) == 20
    assert min(long) >= 80
    assert statistics.median(long) < 100
    assert statistics.median(short) < 20

    lab.set_wan(["relay"], {"rtt": "40ms"})
    assert 120 <= statistics.median(rtts_ms(lab, "edge-1")) < 140
    assert 40 <= statistics.median(rtts_ms(lab, "edge-2")) < 60
    lab.set_wan(["edge-1"], {"rtt": "0.3s"})
    assert 340 <= statistics.median(rtts_ms(lab, "edge-1")) < 360
    lab.set_wan(["relay", "edge-1"], CLEAR)
    assert statistics.median(rtts_ms(lab, "edge-1")) < 20


def test_jitter_varies_the_length_and_keeps_the_order(lab: Lab, tmp_path: Path) -> None:
    """The round trip is between what it is less and more the jitter; no packet overtakes another."""
    lab.set_wan(["edge-1"], {"rtt": "80ms", "jitter": "40ms"})
    found = rtts_ms(lab, "edge-1", count=50)
    assert min(found) >= 40
    assert min(found) < 80 < max(found)
    assert statistics.pstdev(found) > 5

    log = tmp_path / "order.log"
    lab.popen("relay", ["python", "-c", _ORDER], log)
    wait_until("the receiver listens", log.read_text, wanted=lambda text: "listening" in text)
    lab.exec("edge-1", ["python", "-c", _SEND], check=True)
    wait_until("all have come", log.read_text, wanted=lambda text: "199" in text)
    assert [int(word) for word in log.read_text().split()[1:]] == list(range(200))


def test_a_lossy_link_loses_both_ways(lab: Lab) -> None:
    """10 % each way leave 81 % of the pings: 324 of 400, give or take six standard deviations (7.8)."""
    lab.set_wan(["edge-1"], {"loss": "10%"})
    assert 276 <= len(rtts_ms(lab, "edge-1", 400, 0.003)) <= 372
    assert len(rtts_ms(lab, "edge-2", 100, 0.003)) == 100
    lab.set_wan(["edge-1"], {"loss": "100%"})
    assert rtts_ms(lab, "edge-1", 3) == []


def test_a_narrow_link_is_narrow_in_each_direction(lab: Lab, tmp_path: Path) -> None:
    """TCP gets what the link carries, less the headers."""
    lab.set_wan(["edge-1"], {"rate": "8mbit", "rtt": "20ms"})
    for direction in ((), ("--reverse",)):
        assert 5 < rate_mbit(lab, "edge-1", tmp_path, *direction) <= 8
    lab.set_wan(["edge-1"], {"rate": "none"})
    assert rate_mbit(lab, "edge-1", tmp_path) > 20


def test_a_full_link_keeps_100_ms_waiting(lab: Lab, tmp_path: Path) -> None:
    """And loses the rest: twice as much as it carries is sent. In the other direction nothing waits."""
    lab.set_wan(["edge-1"], {"rate": "8mbit", "rtt": "20ms"})
    heard, sent = tmp_path / "server.log", tmp_path / "client.log"
    flood = ["iperf3", "--client", RELAY, "--udp", "--bitrate", "16M", "--length", "1200", "--time", "60"]
    with ExitStack() as ended:
        ended.callback(lab.popen("relay", ["iperf3", "--server", "--forceflush"], heard).kill)
        wait_until("iperf3 listens", heard.read_text, wanted=lambda text: "listening" in text)
        ended.callback(lab.popen("edge-1", [*flood, "--forceflush"], sent).kill)
        wait_until("a second of it is sent", sent.read_text, wanted=lambda text: "Mbits/sec" in text)
        waited = [each - 20 for each in rtts_ms(lab, "edge-1", 60, 0.05)]
    assert 70 <= statistics.median(waited) <= 300  # a busy machine is late; without an end it would be seconds


def test_conditions_survive_a_reboot_and_are_shown(lab: Lab) -> None:
    """The machine's cable is pulled and put in again: the way is as long as before."""
    lab.set_wan(["relay"], {"rtt": "60ms", "rate": "50mbit"})
    lab.reboot("relay")
    assert 60 <= statistics.median(rtts_ms(lab, "edge-1")) < 80
    row = next(row for row in lab.status() if row["node"] == "relay")
    assert row["wan"] == "rtt +60 ms, 50 Mbit/s"
    shown = lab.exec("relay", ["tc", "qdisc", "show", "dev", "wan"], capture=True, check=True).stdout
    assert "50Mbit" in shown


def test_what_holds_packets_back_is_missed(lab: Lab) -> None:
    """Without it a long link is silent, and not short; the next change starts it anew."""
    lab.set_wan(["edge-1"], {"rtt": "40ms"})
    if "netem" in lab.exec("internet", ["tc", "qdisc", "show"], capture=True).stdout:
        pytest.skip("the kernel has netem: no process holds packets back")
    delayer = lab.state.delayer
    assert delayer is not None
    os.kill(delayer.pid, signal.SIGKILL)
    wait_until("it is gone", lambda: not delayer.is_alive)
    assert rtts_ms(lab, "edge-1", 3) == []
    lab.set_wan(["edge-1"], {"rtt": "50ms"})
    assert 50 <= statistics.median(rtts_ms(lab, "edge-1")) < 70
