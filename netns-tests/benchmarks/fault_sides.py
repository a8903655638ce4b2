"""The two roads under faults: each a lab with two edges, its Ray cluster, and a driver that notices outages."""

from __future__ import annotations

import re
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path

from by_hand.road import ByHandRoad
from contenders import bench_lab
from faults import Fault, kill, kill_relay
from outages import OutageDriver, Seen

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD, RELAY
from edgelink.lab.road import Road

EDGES = ("edge-1", "edge-2")
_REPLY = re.compile(r"^\[(?P<at_s>\d+\.\d+)\] \d+ bytes from", re.MULTILINE)


class Side(ABC):
    """One road; built anew for the next fault when a fault was its end."""

    name: str

    def __init__(self) -> None:
        self.lab = bench_lab(self.name.replace(" ", "-").lower())
        self._scratch = tempfile.TemporaryDirectory(prefix="edgelink-bench-")
        self.directory = Path(self._scratch.name)
        self.bring_up()
        self.driver = self.start_driver(self.directory)
        self.driver.wait_ready()

    @abstractmethod
    def bring_up(self) -> None:
        """Relay, head and two edges, all of them in Ray."""

    @abstractmethod
    def start_driver(self, directory: Path) -> OutageDriver: ...

    @abstractmethod
    def kill_relay(self) -> Fault:
        """EasyTier, and whatever watches it, killed; mended, it runs again."""

    @abstractmethod
    def overlay_ip(self, node: str) -> str: ...

    @property
    def is_whole(self) -> bool:
        """Both actors answer now."""
        return self.driver.wait_answers(time.monotonic(), 5)

    def close(self) -> None:
        self.driver.stop()
        self.lab.down()
        self._scratch.cleanup()


class EdgeLinkSide(Side):
    name = "EdgeLink"

    def bring_up(self) -> None:
        self.road = Road(self.lab, SystemClock(), lambda _line: None)
        self.road.bring_up(len(EDGES))

    def start_driver(self, directory: Path) -> OutageDriver:
        return OutageDriver(self.lab, ["edgelink", "run", "--", "python"], directory)

    def kill_relay(self) -> Fault:
        return kill_relay(self.lab)

    def overlay_ip(self, node: str) -> str:
        status = self.road.status(node)
        assert status is not None
        return str(status["overlay_ip"])


class ByHandSide(Side):
    name = "by hand"

    def bring_up(self) -> None:
        self.lab.up(edges=len(EDGES))
        # Nothing can be punched in this lab, and no STUN name resolves: attempts would cost what they do not elsewhere.
        self.road = ByHandRoad(self.lab, easytier_flags="--disable-p2p")
        self.road.overlay(RELAY, CLOUD, *EDGES)
        self.road.head()
        for number in range(1, len(EDGES) + 1):
            self.road.edge(number)

    def start_driver(self, directory: Path) -> OutageDriver:
        environ = {
            "RAY_ADDRESS": f"{self.overlay_ip(CLOUD)}:6379",
            "RAY_AUTH_MODE": "disabled",
            "RLINF_COMM_NET_DEVICES": "et0",
        }
        return OutageDriver(self.lab, ["python"], directory, env=environ)

    def kill_relay(self) -> Fault:
        kill(self.lab, RELAY, "easytier-core")
        return Fault(lambda: self.road.overlay(RELAY))

    def overlay_ip(self, node: str) -> str:
        return self.road.overlay_ip(node)


class Pings:
    """Pings from the cloud to a node over the overlay, twenty a second; ``gap_s`` is the longest silence."""

    def __init__(self, side: Side, node: str) -> None:
        self._log = side.directory / "ping.log"
        self._log.write_text("")
        command = ["ping", "-D", "-n", "-i", "0.05", side.overlay_ip(node)]
        self._process = side.lab.popen(CLOUD, command, self._log)

    def wait_flowing(self) -> None:
        deadline_s = time.monotonic() + 10
        while not _REPLY.search(self._log.read_text()):
            assert time.monotonic() < deadline_s, self._log.read_text()
            time.sleep(0.05)

    def stop(self) -> float | None:
        """The longest time between two replies; None when none came any more at the end."""
        stopped_s = time.time()
        self._process.send_signal(signal.SIGINT)
        self._process.wait(10)
        times = [float(reply["at_s"]) for reply in _REPLY.finditer(self._log.read_text())]
        if stopped_s - times[-1] > 1.0:
            return None
        return max(later - earlier for earlier, later in pairwise(times))


def in_words(seen: Seen, *, answers: bool) -> str:
    """A table's cell: how long the driver's calls paused, and what was lost."""
    pause = f"pause {seen.longest_gap_s:.1f} s" if answers else "driver's calls never came back"
    lost = [f"{len(seen.lost_nodes)} Ray node(s) dead"] if seen.lost_nodes else []
    restarted = [actor for actor, pids in seen.pids.items() if len(pids) > 1]
    lost += ["actor state lost"] if restarted else []
    kinds = sorted({error.split(": ")[1] for error in seen.errors})
    lost += [", ".join(kinds)] if kinds else []
    return "; ".join([pause, *(lost or ["nothing lost"])])
