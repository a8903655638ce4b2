"""A member takes the head's overlay address: it gets no connection that it does not have already, and loses those.

One lab serves all tests: relay, head and an edge with Ray, and the machine of a second edge, whose secret the thief
has. The head's own EasyTier is cut off meanwhile, so that what is for its address goes to the thief.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLab
from faults import cut, processes
from intruder import Intruder
from machines import brought_up_on, copy_disk, membership, records_in, revive, status_of, wait_for_condition, wait_until

from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road
from edgelink.overlay.config_file import instance_of

EDGE, THIEF = "edge-1", "edge-2"
HEAD_IP, EDGE_IP = "10.10.0.2", "10.10.0.3"
GCS_PORT, RAYLET_PORT = 6379, 20001
FOUND_WITHIN_S = 120.0  # of it 60 s of patience, and EasyTier's discovery
KEEPS_AT_MOST_S = 90.0
SOAK = os.environ.get("EDGELINK_SOAK") == "1"
FAKE_HEAD = Path(__file__).with_name("fake_head.py")
RESPONDER = "edgelink.overlay.echo_responder"
_KNOCKS = f"""table inet knocks {{
  chain in {{
    type filter hook input priority 0;
    ip saddr {EDGE_IP} tcp flags & (syn | ack) == syn counter
  }}
}}"""
# A kernel would end connections that it does not know.
_NO_RESETS = f"""table inet no_resets {{
  chain out {{ type filter hook output priority 0; ip daddr {EDGE_IP} tcp flags & rst == rst drop; }}
}}"""

_NO_OVERLAY = """table inet no_overlay {
  chain in { type filter hook input priority 0; tcp sport 11010 drop; }
  chain out { type filter hook output priority 0; tcp dport 11010 drop; }
}"""

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def stolen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stolen") / "state"


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab, stolen: Path) -> Road:
    road = brought_up_on(make_shared_lab(), 2)
    copy_disk(road.lab.host_path(THIEF, Paths().state), stolen)
    road.lab.stop(THIEF)
    return road


@pytest.fixture
def lab(road: Road) -> Iterator[Lab]:
    """Each test begins and ends with head and edge Ready."""
    revive(road, (RELAY, CLOUD, EDGE))
    yield road.lab
    revive(road, (RELAY, CLOUD, EDGE))


class FakeHead:
    """The thief: EasyTier with the head's address, open ports, and its own node's echo, or none.

    ``keeps``: it also acknowledges what comes on the head's connections, in the head's stead.
    """

    def __init__(self, lab: Lab, stolen: Path, directory: Path, *, echoes: bool, keeps: bool = False) -> None:
        self._lab = lab
        self._log = directory / "fake_head.log"
        self._tables = {"knocks": _KNOCKS} | ({"no_resets": _NO_RESETS} if keeps else {})
        lab.exec(THIEF, ["nft", "-f", "-"], stdin="\n".join(self._tables.values()), check=True)
        self.began_s = time.time()
        words = [HEAD_IP, str(GCS_PORT), str(RAYLET_PORT), *([f"--keep={EDGE_IP}"] if keeps else [])]
        self._processes = [lab.popen(THIEF, [sys.executable, str(FAKE_HEAD), *words], self._log)]
        self._intruder = Intruder(lab, THIEF, stolen, as_ip=HEAD_IP)
        if echoes:
            lease = membership(lab, THIEF).lease
            own = [HEAD_IP, "et0", "10.10.0.0/24", stolen / "node.key", instance_of(lease.network_id, lease.node_id)]
            command = [sys.executable, "-m", RESPONDER, *map(str, own)]
            self._processes.append(lab.popen(THIEF, command, directory / "echo.log"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in records_in(self._log) if event["event"] == kind]

    def knocks(self) -> int:
        """How many connections the edge has wanted to open."""
        told = self._lab.exec(THIEF, ["nft", "list", "table", "inet", "knocks"], capture=True, check=True).stdout
        found = re.search(r"counter packets (\d+)", told)
        assert found, told
        return int(found[1])

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait(10)
        self._intruder.end()
        for table in self._tables:
            self._lab.exec(THIEF, ["nft", "delete", "table", "inet", table], capture=True)


@pytest.fixture
def thieves(lab: Lab, stolen: Path, tmp_path: Path) -> Iterator[Any]:
    made: list[FakeHead] = []

    def make(*, echoes: bool, keeps: bool = False) -> FakeHead:
        made.append(FakeHead(lab, stolen, tmp_path, echoes=echoes, keeps=keeps))
        return made[-1]

    yield make
    for fake in made:
        fake.end()


@contextmanager
def head_away(lab: Lab) -> Iterator[None]:
    """Cut off the head's EasyTier, but not its daemon from the broker."""
    lab.exec(CLOUD, ["nft", "-f", "-"], stdin=_NO_OVERLAY, check=True)
    try:
        yield
    finally:
        lab.exec(CLOUD, ["nft", "delete", "table", "inet", "no_overlay"], capture=True)


def is_found(lab: Lab) -> bool:
    return any(each["reason"] == "PeerNotWhoItSays" for each in status_of(lab, EDGE)["conditions"])


def test_a_ray_that_starts_says_nothing_to_a_fake_head(lab: Lab, thieves: Any) -> None:
    lab.stop(EDGE)
    with head_away(lab):
        fake = thieves(echoes=True)
        lab.start(EDGE)
        wait_for_condition(lab, EDGE, "PeersReachable", "PeerNotWhoItSays")
        time.sleep(20)  # in which Ray would have started
        assert fake.knocks() == 0
        assert fake.events("accepted") == []
        wait_for_condition(lab, EDGE, "RayJoined", "WaitingForOverlay")


@pytest.mark.parametrize("echoes", [True, pytest.param(False, marks=pytest.mark.long)], ids=["own key", "no echo"])
def test_who_comes_while_the_head_is_away_gets_no_connection(lab: Lab, thieves: Any, *, echoes: bool) -> None:
    """Who answers no echo is found by the registry's word."""
    with head_away(lab):
        wait_for_condition(lab, EDGE, "PeersReachable", "PeerSilent")
        fake = thieves(echoes=echoes)
        found_s = wait_until("it is found", lambda: is_found(lab) and time.time() - fake.began_s, FOUND_WITHIN_S)
        time.sleep(30)  # in which Ray tries again and again
        print(f"found {found_s:.1f} s after it began")
        assert fake.knocks() == 0
        assert fake.events("accepted") == []


def connections(lab: Lab) -> list[str]:
    """The edge's with the head's address, on which something may still be sent."""
    states = [word for state in ("established", "fin-wait-1", "close-wait", "last-ack") for word in ("state", state)]
    argv = ["ss", "-Htn", *states, "dst", HEAD_IP]
    return lab.exec(EDGE, argv, capture=True, check=True).stdout.splitlines()


# What begins as every HTTP/2 client does, too slowly for the head to find fault with it before it is away.
_SPEAKER = """
import itertools, socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
for byte in itertools.chain(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n", itertools.repeat(0)):
    connection.send(bytes([byte]))
    time.sleep(1)
"""


@contextmanager
def speaking(lab: Lab, log: Path) -> Iterator[None]:
    """A connection of the edge with the head's Ray on which something is said every second; Ray's own may rest."""
    process = lab.popen(EDGE, ["python", "-c", _SPEAKER, HEAD_IP, str(GCS_PORT)], log)
    try:
        wait_until("it is connected", log.read_text, wanted=lambda told: told == "connected\n")
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("echoes", [True, pytest.param(False, marks=pytest.mark.long)], ids=["own key", "no echo"])
def test_a_connection_with_the_head_that_another_keeps_is_closed(
    lab: Lab, thieves: Any, tmp_path: Path, *, echoes: bool
) -> None:
    """Where nothing but the missing echo tells, the registry's word is waited for meanwhile."""
    wait_until("Ray is connected", lambda: connections(lab))
    with speaking(lab, tmp_path / "speaker.log"), head_away(lab):
        wait_for_condition(lab, EDGE, "PeersReachable", "PeerSilent")
        assert connections(lab), "they outlive an outage"
        fake = thieves(echoes=echoes, keeps=True)
        wait_until("all are closed", lambda: not connections(lab), FOUND_WITHIN_S)
        closed_s = time.time()
        print(f"closed {closed_s - fake.began_s:.1f} s after it began")
        assert closed_s - fake.began_s <= KEEPS_AT_MOST_S
        assert echoes or fake.events("kept"), "else it has kept none"
        wait_until("it is found", lambda: is_found(lab))
        time.sleep(10)  # in which it would hear more
        assert [event for event in fake.events("kept") if event["at_s"] > closed_s + 1] == [], (
            closed_s,
            fake.events("kept"),
        )
        assert fake.events("accepted") == []


OUTAGES = {
    "an outage": 60.0,
    "the head's daemon is dead": 120.0,
    "the head's daemon and its echo are dead": 120.0,
    "the head's daemon stands still": 30.0,
}


@pytest.mark.long
@pytest.mark.parametrize("what", OUTAGES)
@pytest.mark.timeout(3000)
def test_who_is_away_is_no_impostor(lab: Lab, road: Road, what: str) -> None:
    """Nobody is kept out at any moment, and Ray goes on."""
    before = lab.daemon_log(EDGE).read_text().count("PeerNotWhoItSays")
    raylet = processes(lab, EDGE)["raylet"]
    for _ in range(10 if SOAK else 1):
        if what == "an outage":
            with cut(lab, EDGE):
                time.sleep(OUTAGES[what])
        elif what == "the head's daemon stands still":
            head = lab.daemon(CLOUD)
            assert head is not None
            os.kill(head.pid, signal.SIGSTOP)
            time.sleep(OUTAGES[what])
            os.kill(head.pid, signal.SIGCONT)
        else:
            lab.kill(CLOUD)
            if "echo" in what:
                responder = json.loads((lab.host_path(CLOUD, Paths().processes) / "echo.json").read_text())["pid"]
                os.kill(responder, signal.SIGKILL)
            time.sleep(OUTAGES[what])
            lab.start(CLOUD)
        for node in (CLOUD, EDGE):
            road.wait_ready(node)
    assert lab.daemon_log(EDGE).read_text().count("PeerNotWhoItSays") == before
    assert processes(lab, EDGE)["raylet"] == raylet
