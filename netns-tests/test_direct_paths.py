"""Direct paths without anyone else's servers: found on a routed network and through NAT, and they outlive the relay.

Two edges and a relay, without Ray: daemons, EasyTier and the relay's STUN are the real ones.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from conftest import MakeLab
from faults import kill, kill_relay
from machines import road, start_relay, wait_for_condition, wait_until
from outages import OutageDriver
from pings import Pings

from edgelink.api.client import call
from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.errors import EdgelinkError
from edgelink.lab import RELAY, Lab

EDGES = ("edge-1", "edge-2")
EDGE_1_PUBLIC, EDGE_2_PUBLIC = "198.51.100.6", "198.51.100.10"  # of their routers
RELAY_DEAD_S = 20.0
FOUND_S = 120.0  # 6 s on an idle machine; an attempt that fails is repeated after up to 16 s

# EasyTier itself needs 7 to 8 s for an end of a UDP path that is dead; the bar, on an idle machine, is 2 s.
KILLED_S = 5.0
SOAK_KILLS = 15

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]


def paths(lab: Lab, node: str) -> dict[str, dict[str, Any]]:
    """The ways to the other nodes, as this node's daemon tells them."""
    answer = call(lab.host_path(node, Paths().node_socket), "GET", "/paths")
    return {path["hostname"]: path for path in answer["paths"]}


def path(lab: Lab, node: str, other: str) -> dict[str, Any]:
    """The way to another node, once the daemon tells of it: EasyTier may be late with an answer, and none is told."""
    return wait_until(f"{node} tells its way to {other}", lambda: paths(lab, node).get(other))


def start(lab: Lab, **first_edge: str) -> None:
    """The relay and both edges, which wait for a head that never comes: the overlay needs none."""
    start_relay(lab)
    for node in EDGES:
        road(lab).enrol(node)
    for node, env in zip(EDGES, (first_edge, {}), strict=True):
        lab.start(node, env=env)


@pytest.fixture(scope="module")
def started(make_shared_lab: MakeLab) -> Lab:
    lab = make_shared_lab()
    lab.up(edges=2, nat=dict.fromkeys(EDGES, "cone"))
    start(lab)
    return lab


@pytest.fixture
def punched(started: Lab) -> Lab:
    """Relay and edges run, and the edges reach relay and broker, whatever the test before has left."""
    for node in (RELAY, *EDGES):
        if started.daemon(node) is None:
            started.start(node)
    road(started).wait_ready(RELAY)
    for node in EDGES:
        wait_for_condition(started, node, "RegistryConnected", "Connected")
        wait_for_path(started, "direct", FOUND_S, node=node, other=RELAY)
    return started


def wait_for_path(lab: Lab, kind: str, timeout_s: float, *, node: str = "edge-1", other: str = "edge-2") -> float:
    """Until one reaches the other so; the seconds it took."""
    clock = SystemClock()
    started_s = clock.monotonic_s()
    seen: Any = None
    while clock.monotonic_s() - started_s < timeout_s:
        try:
            seen = paths(lab, node).get(other)
        except EdgelinkError as error:  # it has only just been started
            seen = error
        if isinstance(seen, dict) and seen["path"] == kind:
            return clock.monotonic_s() - started_s
        clock.block(0.2)
    raise AssertionError(f"{node} did not reach {other} {kind} within {timeout_s:g} s: {seen}")


def what_doctor_sees(lab: Lab, node: str) -> tuple[str, str]:
    """Its verdict on this node's NAT, and the public address under which the relays see the node."""
    answer = lab.exec(node, ["edgelink", "doctor", "--json"], capture=True).stdout
    check = next(check for check in json.loads(answer)["checks"] if check["check"] == "stun-answers")
    addresses = set(re.findall(r"([0-9.]+):[0-9]+", check["figure"]))
    assert len(addresses) == 1, check
    return check["verdict"], addresses.pop()


def told(lab: Lab, node: str, other: str) -> list[str]:
    """The changes of the way to another node that this node's daemon has logged."""
    lines = [line for line in lab.daemon_log(node).read_text().splitlines() if '"overlay.path_changed"' in line]
    return [line["now"] for line in map(json.loads, lines) if line["node"] == other]


def pinged(lab: Lab, node: str, other: str) -> dict[str, Any]:
    """The summary of two echoes of `edgelink ping`, once the other one answers: its way is listed before that."""
    argv = ["edgelink", "ping", other, "-c", "2", "--interval", "0.1", "--full", "--json"]
    answer = wait_until(
        f"{other} answers {node}",
        lambda: lab.exec(node, argv, capture=True),
        20,
        wanted=lambda result: result.returncode == 0,
    )
    told = answer.stdout
    summary: dict[str, Any] = json.loads(told.splitlines()[-1])
    assert (summary["event"], summary["answered"]) == ("summary", 2), told
    return summary


def overlay_ip(lab: Lab, node: str) -> str:
    status = road(lab).status(node)
    assert status is not None
    return str(status["overlay_ip"])


def closed(lab: Lab, node: str, other: str) -> int:
    """How often this node's daemon has closed dead paths to another node, or found that EasyTier had by itself."""
    lines = lab.daemon_log(node).read_text().splitlines()
    events = ('"overlay.dead_path_closed"', '"overlay.dead_path_gone"')
    return sum(any(e in line for e in events) and json.loads(line)["node"] == other for line in lines)


def gaps_of_a_kill(lab: Lab, victim: str, others: Sequence[str], directory: Path) -> list[float]:
    """SIGKILL to the victim's EasyTier: how long each of the others, which reach it directly, had no answer of it."""
    for other in others:
        wait_for_path(lab, "direct", FOUND_S, node=other, other=victim)
    before = [closed(lab, other, victim) for other in others]
    address, started = overlay_ip(lab, victim), time.time()
    pings = [Pings(lab, other, directory / f"{victim}-{other}-{started}.log", address) for other in others]
    try:
        killed = time.time()
        kill(lab, victim, "easytier-core")
        for each in pings:
            each.wait_for_answer()
        for other, count in zip(others, before, strict=True):
            wait_until(
                f"{other} closes the dead path",
                lambda o=other: closed(lab, o, victim),
                wanted=lambda seen, c=count: seen > c,
            )
    finally:
        for each in pings:
            each.stop()
    return [each.gap_since_s(killed) for each in pings]


@contextmanager
def pinging(lab: Lab, log: Path) -> Iterator[Callable[[], set[int]]]:
    """Pings from edge-1 to edge-2, up to 20 a second; yields who tells the numbers of those that are answered."""
    child = lab.popen("edge-1", ["ping", "-i", "0.05", overlay_ip(lab, "edge-2")], log)

    def answered() -> set[int]:
        return {int(number) for number in re.findall(r"icmp_seq=(\d+) .*time=", log.read_text())}

    try:
        wait_until("pings are answered", answered, wanted=lambda numbers: len(numbers) > 10)
        yield answered
    finally:
        child.kill()
        child.wait()


def assert_survives_the_relay(lab: Lab, tmp_path: Path) -> None:
    with pinging(lab, tmp_path / "ping.log") as answered:
        with kill_relay(lab):
            before = max(answered())
            time.sleep(RELAY_DEAD_S)  # how long it is away
            last = max(answered())
            assert path(lab, "edge-1", "edge-2")["path"] == "direct"
        assert last - before > RELAY_DEAD_S, "pings stood still"
        wait_until("those before the last one are answered", answered, wanted=lambda found: last + 1 in found)
        assert set(range(1, last)) - answered() == set()


def test_two_nat_sites_punch_a_direct_path_with_the_relays_stun(punched: Lab, tmp_path: Path) -> None:
    """Within seconds, by UDP, with the relay's STUN alone; the relay's death costs not one ping."""
    lab = punched
    print(f"direct after {wait_for_path(lab, 'direct', FOUND_S):.1f} s")
    assert path(lab, "edge-1", "edge-2")["protocol"] == "udp"
    assert pinged(lab, "edge-1", "edge-2")["ways"] == ["direct, udp"]
    assert told(lab, "edge-1", "edge-2")[-1] == "direct, udp"
    assert what_doctor_sees(lab, "edge-1") == ("ok", EDGE_1_PUBLIC)
    assert_survives_the_relay(lab, tmp_path)


def test_a_killed_easytier_does_not_hold_up_its_direct_paths(punched: Lab, tmp_path: Path) -> None:
    """The other end hears of it over the broker, gives the dead path up at once, and goes on through the relay."""
    lab = punched
    for victim, other in (EDGES, EDGES[::-1]):
        (gap_s,) = gaps_of_a_kill(lab, victim, [other], tmp_path)
        print(f"EasyTier of {victim} killed: {other} had no answer for {gap_s:.2f} s")
        assert gap_s < KILLED_S
    assert wait_for_path(lab, "direct", FOUND_S) < FOUND_S


@pytest.mark.long
def test_neighbours_on_a_routed_network_talk_directly_unless_p2p_is_off(make_lab: MakeLab, tmp_path: Path) -> None:
    """One of them listens, the other dials; switched off on one of them, all goes through the relay."""
    lab = make_lab()
    lab.up(edges=2, direct=True)
    start(lab, EDGELINK_OVERLAY__P2P="false")
    wait_for_path(lab, "relayed", FOUND_S)
    assert path(lab, "edge-1", "edge-2")["via"] == "relay"
    assert pinged(lab, "edge-1", "edge-2")["ways"] == ["through relay"]
    assert pinged(lab, "relay", overlay_ip(lab, "edge-1"))["ways"] == ["direct, tcp"]
    with pytest.raises(AssertionError, match="did not reach"):
        wait_for_path(lab, "direct", 10)  # twice what it takes where it is on
    for node in EDGES:
        lab.stop(node)
        lab.start(node)
    print(f"direct after {wait_for_path(lab, 'direct', FOUND_S):.1f} s")
    wait_until(  # a way by UDP may come beside it, and before it
        "they talk by TCP",
        lambda: path(lab, "edge-1", "edge-2")["protocol"] or "",
        wanted=lambda protocols: "tcp" in protocols.split(","),
    )
    assert_survives_the_relay(lab, tmp_path)


soak = pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="`make soak`")


@soak
def test_with_two_relays_a_symmetric_nat_is_known_and_punched(make_lab: MakeLab, tmp_path: Path) -> None:
    """Two addresses of STUN servers tell the kind of NAT; then EasyTier tries many ports, and the relays may die."""
    lab = make_lab()
    lab.up(edges=2, relays=2, nat={"edge-1": "cone", "edge-2": "symmetric"})
    start_relay(lab)
    road(lab).add_relay("relay-2")
    for node in EDGES:
        road(lab).enrol(node)
        lab.start(node)
    print(f"direct after {wait_for_path(lab, 'direct', 2 * FOUND_S):.1f} s")
    assert what_doctor_sees(lab, "edge-1") == ("ok", EDGE_1_PUBLIC)
    assert what_doctor_sees(lab, "edge-2") == ("limited", EDGE_2_PUBLIC)
    assert_survives_the_relay(lab, tmp_path)


@soak
@pytest.mark.parametrize("kind", ["routed", "cone"])
def test_a_driver_does_not_notice_the_death_of_the_relay(make_lab: MakeLab, tmp_path: Path, kind: str) -> None:
    """Its calls to actors on directly reached edges go on at their pace."""
    lab = make_lab()
    sites = ("cloud", *EDGES)
    road(lab).bring_up(len(EDGES), direct=kind == "routed", nat=dict.fromkeys(sites, kind) if kind == "cone" else None)
    for edge in EDGES:
        wait_for_path(lab, "direct", FOUND_S, node="cloud", other=edge)
    driver = OutageDriver(lab, ["edgelink", "run", "--no-preflight", "--", "python"], tmp_path)
    try:
        driver.wait_ready()
        started_s = time.monotonic()
        with kill_relay(lab):
            time.sleep(RELAY_DEAD_S)
            seen = driver.seen(started_s)
    finally:
        driver.stop()
    print(f"longest gap {seen.longest_gap_s:.2f} s of {RELAY_DEAD_S:g} s without relay")
    assert seen.errors == []
    assert seen.lost_nodes == set()
    assert seen.longest_gap_s < RELAY_DEAD_S / 4


@soak
@pytest.mark.timeout(1200)
def test_kills_of_easytier_cost_ray_a_pause(make_lab: MakeLab, tmp_path: Path) -> None:
    """Each edge's EasyTier again and again, all sites reach each other directly: no call fails, no node is lost."""
    lab = make_lab()
    sites = ("cloud", *EDGES)
    road(lab).bring_up(len(EDGES), nat=dict.fromkeys(sites, "cone"))
    driver = OutageDriver(lab, ["edgelink", "run", "--no-preflight", "--", "python"], tmp_path)
    gaps_s: dict[str, list[float]] = {}
    try:
        driver.wait_ready()
        started_s = time.monotonic()
        for _ in range(SOAK_KILLS):
            for victim in EDGES:
                # A new daemon, which adopts EasyTier: the former one would restart it later and later.
                lab.kill(victim)
                lab.start(victim)
                road(lab).wait_ready(victim)
                others = [site for site in sites if site != victim]
                for other, gap_s in zip(others, gaps_of_a_kill(lab, victim, others, tmp_path), strict=True):
                    gaps_s.setdefault(f"{victim} killed, seen from {other}", []).append(gap_s)
        seen = driver.seen(started_s)
    finally:
        driver.stop()
    for what, gaps in gaps_s.items():
        print(f"{what}: {min(gaps):.2f} / {median(gaps):.2f} / {max(gaps):.2f} s (min, median, max of {len(gaps)})")
    print(f"a driver's calls: longest gap {seen.longest_gap_s:.2f} s")
    assert seen.errors == []
    assert seen.lost_nodes == set()
    assert max(max(gaps) for gaps in gaps_s.values()) < KILLED_S
