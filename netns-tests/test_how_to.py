"""The how-to pages, word for word, on one network with a relay, a cloud machine and two robots: the commands taken from
the pages, what they show compared with what is seen.

Each page has a directory of its own with the files of whoever reads it. Commands that other tests run are named in
`how_to_pages.py`.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import MakeLab
from framework_python import FrameworkPython
from how_to_pages import HOW_TO, STATUS, TYPED, run_elsewhere
from machines import Result, overlay_ip, revive, road, start_relay, wait_until
from test_direct_paths import wait_for_path
from typed_page import DOCS, Desk, missing, steps

from edgelink.lab import CLOUD, RELAY, Lab
from edgelink.lab.road import Road, write_demo_cluster

HOST = "host"  # this machine, which has the lab
MACHINES = {"relay": RELAY, "cloud": CLOUD, "robot": "edge-1"}
HOSTNAMES = {"edge-1": "franka-1", "edge-2": "franka-2"}
LOOKS = re.compile(r"\bedgelink (nodes|ping|status)\b")
ENDLESS = re.compile(r"^(?!.*\|)[^#]* (-f|--watch|-c 0)( |$)")
DIRECT_S = 60.0
TRAIN = "import sys\nprint('trained with', *sys.argv[1:])\n"
LOGIN = "export SSH_CONNECTION='192.0.2.9 50000 198.51.100.7 22'"
PROGRAMS = {"sudo": 'SUDO_USER=alice exec "$@"', "age": "exec cat"}  # one that asks nothing; what encrypts
CHECKOUT = {"rlinf/__init__.py": "", "examples/embodiment/run_embodiment.sh": "exec python train.py"}
COMMAND_S = 300.0  # a job of Ray's took 109 s on two cores with 35 processes that wanted to run
ACCESS_S = 2.0
_SERVE = """
import socket
server = socket.create_server(("", 7878))
print("serving", flush=True)
while True:
    server.accept()[0].close()
"""
_TRY = """
import socket, sys, time
while True:
    try:
        socket.create_connection((sys.argv[1], 7878), timeout=1).close()
        told = "open"
    except ConnectionRefusedError:
        told = "refused"
    except OSError as error:
        told = type(error).__name__
    print(time.time(), told, flush=True)
    time.sleep(0.05)
"""
# What somebody types into a notebook on the head, a cell at a time. Each prints its number, and what it found.
_CELLS = (
    """
import os, socket, ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On
ray.init(address="auto")
on = {node["NodeManagerHostname"]: On(node["NodeID"], soft=False) for node in ray.nodes() if node["Alive"]}

@ray.remote
class Robot:
    def __init__(self):
        self.steps = 0
    def step(self, weights):
        self.steps += 1
        return socket.gethostname(), os.getpid(), self.steps, weights, bytes(3_000_000)

robots = [Robot.options(scheduling_strategy=on[name]).remote() for name in sorted(on)]
def step_all(weights):
    return [(where, pid, steps, len(weights), len(pixels)) for where, pid, steps, weights, pixels
            in ray.get([robot.step.remote(weights) for robot in robots])]

print("cell 1:", step_all(ray.put(bytes(5_000_000))))
""",
    """
read = ray.remote(lambda found: (socket.gethostname(), len(found[4])))
seen = [read.options(scheduling_strategy=on[name]).remote(robot.step.remote(b""))
        for name, robot in zip(sorted(on), robots[1:] + robots[:1])]

print("cell 2:", ray.get(seen))
""",
    """
print("cell 3:", step_all(b"again"))
""",
)

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]


class Operator(Desk):
    """Who reads the pages, at the machines of a lab; root, with a sudo that asks nothing."""

    def __init__(self, lab: Lab, home: Path) -> None:
        super().__init__(list(MACHINES))
        self._lab, self._home = lab, home

    def type(self, machine: str, command: str, shown: list[str]) -> str:
        """Also commands that do not end by themselves: by Ctrl-C, once all is seen."""
        path = f"{LOGIN}; PATH={self._home}/bin:$PATH"
        if machine == HOST:
            return self._on_host(f"PATH={self._home}/bin:{Path(sys.executable).parent}:$PATH", command, shown)
        node = MACHINES[machine]
        if ENDLESS.search(command):
            return self._until_seen(node, f"{path}; exec {command}", shown)
        script = ["sh", "-c", f"{path}; {{ {command}\n}} 2>&1"]
        return self._checked(
            f"{machine}$ {command}",
            lambda: self._lab.exec(node, script, cwd=self._home, capture=True, timeout_s=COMMAND_S),
            shown,
        )

    def _on_host(self, path: str, command: str, shown: list[str]) -> str:
        named = re.sub(r"edgelink lab (\w+)", rf"edgelink lab \1 --name {self._lab.name}", command)
        script = f"{path}; {{ {named}\n}} 2>&1"
        return self._checked(
            f"{HOST}$ {command}",
            lambda: subprocess.run(
                ["sh", "-c", script], cwd=self._home, capture_output=True, text=True, timeout=COMMAND_S, check=False
            ),
            shown,
        )

    def _checked(self, line: str, run: Callable[[], Result], shown: list[str]) -> str:
        """What a command says. One that only looks is typed again: what nodes hear of each other comes in its time."""
        wanted = next((status for words, status in STATUS.items() if words in line), 0)
        if LOOKS.search(line):
            return wait_until(
                line, run, wanted=lambda seen: seen.returncode == wanted and not missing(shown, seen.stdout)
            ).stdout
        result = run()
        assert result.returncode == wanted, f"{line}\n{result.stdout}"
        return result.stdout

    def _until_seen(self, node: str, script: str, shown: list[str]) -> str:
        log = self._home / "endless.log"
        log.unlink(missing_ok=True)
        process = self._lab.popen(node, ["sh", "-c", script], log, cwd=self._home)
        try:
            wait_until(script, log.read_text, wanted=lambda seen: seen and not missing(shown, seen))
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(COMMAND_S) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return log.read_text()


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Road:
    """Every node Ready, the edges under the names of the pages; the head's Ray has its dashboard."""
    lab = make_shared_lab()
    walk = road(lab)
    lab.up(edges=len(HOSTNAMES), nat=dict.fromkeys(HOSTNAMES, "cone"))
    ray = FrameworkPython(tmp_path_factory.mktemp("ray") / "venv")
    ray.install(Path(__file__).with_name("ray_dashboard.lock"))
    file = lab.host_path(CLOUD, Path("/etc/edgelink/edgelink.yaml"))
    config = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**config, "ray": {**config["ray"], "python": str(ray.python)}}))
    start_relay(lab)
    walk.enrol(CLOUD)
    for node, hostname in HOSTNAMES.items():
        lab.exec(node, ["hostname", hostname], check=True)
        walk.enrol(node, "--hostname", hostname)
    revive(walk, (CLOUD, *HOSTNAMES))
    wait_for_path(lab, "direct", DIRECT_S, node="edge-1", other="franka-2")
    return walk


@pytest.fixture
def operator(brought_up: Road, tmp_path: Path) -> Operator:
    """With the files that a page takes for granted: cluster files, a program, a checkout of RLinf."""
    shutil.copy(DOCS / "examples/cluster.yaml", tmp_path / "cluster.yaml")
    write_demo_cluster(tmp_path / "pair.yaml", 1)
    (tmp_path / "train.py").write_text(TRAIN)
    for name, text in CHECKOUT.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, text in PROGRAMS.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    revive(brought_up, (RELAY, CLOUD, *HOSTNAMES))
    return Operator(brought_up.lab, tmp_path)


def test_an_access_rule_opens_a_port_for_whom_it_names(brought_up: Road, tmp_path: Path) -> None:
    """Within two seconds of the command's end, and `deny` closes it as fast; what is closed refuses at once."""
    lab = brought_up.lab
    head = overlay_ip(lab, CLOUD)
    serving = lab.popen(CLOUD, ["python3", "-c", _SERVE], tmp_path / "served")
    wait_until("it serves", (tmp_path / "served").read_text)
    logs = {node: tmp_path / node for node in HOSTNAMES}
    trying = [lab.popen(node, ["python3", "-c", _TRY, head], log) for node, log in logs.items()]

    def told(node: str) -> list[tuple[float, str]]:
        lines = logs[node].read_text().rpartition("\n")[0].splitlines()
        return [(float(at), what) for at, _, what in (line.partition(" ") for line in lines)]

    def access(verb: str) -> float:
        argv = ["edgelink", "access", verb, "head", "tcp/7878", "--from", "franka-1"]
        lab.exec(RELAY, argv, capture=True, check=True)
        return time.time()

    def comes(node: str, what: str, since_s: float) -> float:
        """How long after that moment the first try tells this."""

        def found() -> float | None:
            return next((at_s - since_s for at_s, seen in told(node) if at_s > since_s and seen == what), None)

        return wait_until(f"{node}: {what}", found, wanted=lambda _: True)

    try:
        for node in HOSTNAMES:
            comes(node, "refused", 0)
        assert comes("edge-1", "open", access("allow")) < ACCESS_S
        denied_s = access("deny")
        assert comes("edge-1", "refused", denied_s) < ACCESS_S
        wait_until("tries after it", lambda: told("edge-1"), wanted=lambda seen: seen[-1][0] > denied_s + ACCESS_S + 1)
        assert {what for at_s, what in told("edge-1") if at_s > denied_s + ACCESS_S} <= {"refused"}
        assert {what for _, what in told("edge-2")} == {"refused"}, "it was not named"
    finally:
        for process in (serving, *trying):
            process.kill()
            process.wait()


def test_a_notebook_works_on_every_node_for_as_long_as_it_is_open(brought_up: Road, tmp_path: Path) -> None:
    """`edgelink exec -- jupyter`, for which Python's own prompt stands in. Actors on all nodes, objects from each to
    each. Between two cells the daemons of head and edges are killed and come back: the actors are the same."""
    lab, cells, log = brought_up.lab, tmp_path / "cells", tmp_path / "notebook.log"
    os.mkfifo(cells)
    kernel = lab.popen(CLOUD, ["sh", "-c", f"exec edgelink exec -- python -iq <{cells}"], log)
    nodes = sorted((CLOUD, *HOSTNAMES.values()))
    try:
        with cells.open("w") as prompt:

            def run(number: int) -> list[tuple[Any, ...]]:
                prompt.write(f"exec({_CELLS[number - 1]!r})\n")
                prompt.flush()

                def printed() -> list[str]:
                    assert kernel.poll() is None, log.read_text()
                    return re.findall(rf"^(?:>>> )*cell {number}: (.+)$", log.read_text(), re.MULTILINE)

                return list(ast.literal_eval(wait_until(f"cell {number}", printed)[0]))

            first = run(1)
            assert [(*found[:1], *found[2:]) for found in first] == [(name, 1, 5_000_000, 3_000_000) for name in nodes]
            assert run(2) == [(name, 3_000_000) for name in nodes], "an object goes from one edge to the other, too"
            for node in (CLOUD, *HOSTNAMES):
                lab.kill(node)
            revive(brought_up, (CLOUD, *HOSTNAMES))
            assert run(3) == [(name, pid, 3, len("again"), 3_000_000) for name, pid, *_ in first]
        assert kernel.wait(60) == 0, log.read_text()
    finally:
        kernel.kill()
        kernel.wait()


@pytest.mark.parametrize("page", TYPED)
def test_what_a_page_says_is_what_is_seen(operator: Operator, page: str) -> None:
    """All of its commands, in their order."""
    for step in steps(HOW_TO / f"{page}.md"):
        if not run_elsewhere(page, step):
            operator.do(step)
