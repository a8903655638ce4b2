"""How the registry and its broker grow with the fleet: real MQTT clients, a real Mosquitto, one machine.

`make bench-fleet` measures 100, 300, 1,000 and 3,000 nodes; EDGELINK_FLEET names other sizes. The clients take most of
this machine's processors, so that the figures are below what a relay of the same make reaches with a fleet elsewhere.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest
from figures import Figure, Figures

from edgelink.testing import reserved_port

SIZES = [int(size) for size in os.environ.get("EDGELINK_FLEET", "100,300,1000,3000").split(",")]
PER_PROCESS = 500
AT_ONCE = 50  # enrolments under way
ROUNDS = 5  # statuses a node sends one after the other
TIMEOUT_S = 600.0
pytestmark = pytest.mark.timeout(2400)


class Process:
    """One side, see `fleet_processes.py`; `ask` waits for the answer."""

    def __init__(self, what: str, **arguments: Any) -> None:
        command = [sys.executable, str(Path(__file__).with_name("fleet_processes.py")), what, json.dumps(arguments)]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    def ask(self, do: str, **arguments: Any) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(json.dumps({"do": do, **arguments}), file=self._child.stdin, flush=True)
        ready, _, _ = select.select([self._child.stdout], [], [], TIMEOUT_S)
        line = self._child.stdout.readline() if ready else ""
        assert line, f"no answer to {do!r} within {TIMEOUT_S:g} s (exit status {self._child.poll()})"
        return json.loads(line)

    def end(self) -> None:
        self._child.kill()
        self._child.wait()


class Fleet:
    """A registry, and so many nodes."""

    def __init__(self, directory: Path, size: int, port: int) -> None:
        self.registry = Process("registry", directory=str(directory), port=port)
        self.processes: list[Process] = []
        try:
            token = self.registry.ask("token", uses=size)
            for start in range(0, size, PER_PROCESS):
                count = min(PER_PROCESS, size - start)
                self.processes.append(Process("nodes", prefix=f"edge-{start}", count=count, **token))
            self.every("connected")  # all have started
        except BaseException:
            self.end()
            raise

    def every(self, do: str, **arguments: Any) -> list[Any]:
        with ThreadPoolExecutor(len(self.processes)) as threads:
            return list(threads.map(lambda process: process.ask(do, **arguments), self.processes))

    def state(self) -> dict[str, Any]:
        answer: dict[str, Any] = self.registry.ask("state")
        return answer

    def until(self, what: Callable[[dict[str, Any]], bool], timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        started_s = time.monotonic()
        while not what(state := self.state()):
            assert time.monotonic() - started_s < timeout_s, state
            time.sleep(0.2)
        return state

    def end(self) -> None:
        for process in self.processes:
            process.end()
        try:
            self.registry.ask("stop")
        finally:
            self.registry.end()


@contextmanager
def fleet_of(size: int) -> Iterator[Fleet]:
    directory = Path(tempfile.mkdtemp(prefix="edgelink-fleet-"))
    directory.chmod(0o755)  # the broker's own user has to get through, as it does through /run
    try:
        with reserved_port() as port:
            fleet = Fleet(directory, size, port)
            try:
                yield fleet
            finally:
                fleet.end()
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("size", SIZES)
def test_a_fleet(size: int, figures: Figures) -> None:
    """`size` machines enrol with one token, report, and come back after the broker was killed.

    At up to 1,000: 50 enrolments a second or more, all back within 30 s, daemon of 250 MB or less.
    """
    is_bound = size <= 1000

    def add(name: str, unit: str, values: list[float], bar: str = "") -> Figure:
        return figures.add(Figure(f"{size} nodes: {name}", unit, values, bar=bar if is_bound else ""))

    with fleet_of(size) as fleet:
        empty, clients_s = fleet.state(), sum(fleet.every("cpu_s"))
        started_s = time.monotonic()
        at_once = max(1, AT_ONCE // len(fleet.processes))
        latencies = [taken_s for each in fleet.every("enrol", at_once=at_once) for taken_s in each]
        enrolled_s = time.monotonic() - started_s
        assert fleet.state()["leases"] == size + 1
        rate = add("enrolments", "1/s", [size / enrolled_s], "50")
        add(f"enrolment, median with {AT_ONCE} at once", "s", [median(latencies)])
        add(f"enrolment, p99 with {AT_ONCE} at once", "s", [quantiles(latencies, n=100)[98]])
        state = fleet.until(lambda state: state["relay_sees"] == size and state["online"] == size)
        add("first byte to all connected and seen", "s", [time.monotonic() - started_s])
        for name, taken_s in (
            ("daemon", state["daemon_cpu_s"] - empty["daemon_cpu_s"]),
            ("broker", state["broker_cpu_s"] - empty["broker_cpu_s"]),
            ("clients", sum(fleet.every("cpu_s")) - clients_s),
        ):
            add(f"processor time of one enrolment, {name}", "ms", [taken_s / size * 1000])

        started_s = time.monotonic()
        sent = sum(fleet.every("report", phase="Told", rounds=ROUNDS))
        fleet.until(lambda state: state["phases"] == {"Told": size})
        add("statuses through to the registry", "1/s", [sent / (time.monotonic() - started_s)])

        os.kill(state["broker_pid"], signal.SIGKILL)
        started_s = time.monotonic()
        while (back := sum(fleet.every("sessions"))) < size:
            assert time.monotonic() - started_s < TIMEOUT_S, f"{back} of {size} came back"
            time.sleep(0.2)
        returned = add("all back after the broker was killed", "s", [time.monotonic() - started_s], "30")
        fleet.until(lambda state: state["phases"] == {"Ready": size})
        add("all back, and seen by the registry", "s", [time.monotonic() - started_s])
        state = fleet.state()
        memory = add("daemon's memory, at most", "MB", [state["daemon_peak_mb"]], "250")
        add("broker's memory", "MB", [state["broker_mb"]])
    if is_bound:
        assert rate.edgelink[0] >= 50
        assert returned.edgelink[0] <= 30
        assert memory.edgelink[0] <= 250
