"""The control process of a robot under load and under faults: is it on time, and does the deadman fire in time?"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contenders import EDGE, bench_lab
from faults import cut
from figures import Figure, Figures
from machines import wait_until

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD
from edgelink.lab.road import Road, write_demo_cluster
from edgelink.training.trainer.robot.deadman import DeadmanSettings
from edgelink.training.trainer.robot.settings import ControlSettings

pytestmark = pytest.mark.timeout(900)

RATE_HZ = 100.0
WINDOW_S = 30.0
TRIALS = 100
LINK_TIMEOUT_S = 0.2
P99_BAR_MS = 2.0

_BURN = "while True: pass"
# What a training on the robot's own machine would do with the core that the control loop does not need.
_TRAIN = """
import torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 512), torch.nn.Linear(512, 8))
optimiser = torch.optim.Adam(net.parameters())
batch = torch.randn(2048, 64)
while True:
    loss = net(batch).pow(2).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""


@contextmanager
def busy(*scripts: str) -> Iterator[None]:
    """A process for each of ``scripts``."""
    burning = [subprocess.Popen([sys.executable, "-c", script]) for script in scripts]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def told(tick_file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tick_file.read_text())
    return found


def missed_in_window(tick_file: Path) -> tuple[int, int]:
    """Missed deadlines and control instants of :data:`WINDOW_S`."""
    before = told(tick_file)
    time.sleep(WINDOW_S)  # the bar's own time, not a synchronisation
    after = told(tick_file)
    return after["missed"] - before["missed"], after["ticks"] - before["ticks"]


def test_the_loop_is_on_time_whatever_happens_beside_it(figures: Figures, tmp_path: Path) -> None:
    """A training over the overlay with the simulated arm, two cores busy: without faults, then with all of them."""
    lab = bench_lab("robot")
    ticks, events = tmp_path / "ticks", tmp_path / "robots"
    try:
        road = Road(lab, SystemClock(), lambda line: None)
        road.bring_up(1)
        cluster = write_demo_cluster(tmp_path / "cluster.yaml", 1)
        train = ["edgelink", "train", "run.iterations=100000", "env.kinds=robot", "robot.type=arm"]
        train += ["env.per_worker=1", f"robot.rate_hz={RATE_HZ:g}", f"control.tick_file={ticks}"]
        train += [f"control.directory={events}"]
        log = tmp_path / "train.log"
        run = lab.popen(CLOUD, ["edgelink", "run", "--no-preflight", "--cluster", str(cluster), "--", *train], log)
        try:
            wait_until(
                "the robot runs",
                lambda: ticks.exists() and run.poll() is None and told(ticks),
                180,
                wanted=lambda found: found and found["state"] == "running",
            )
            with busy(_BURN, _BURN):
                quiet, instants = missed_in_window(ticks)
            with busy(_TRAIN, _BURN, _BURN), cut(lab, EDGE):
                lab.kill(EDGE)
                faulty, faulty_instants = missed_in_window(ticks)
                assert told(ticks)["state"] == "stopped", "the deadman fired"
                loop = told(ticks)
        finally:
            run.terminate()
            run.wait(120)
    finally:
        lab.down()
    figures.add(Figure(f"missed of {instants} instants, two busy cores", "", [quiet]))
    figures.add(Figure(f"missed of {faulty_instants}, link cut, daemon dead, training", "", [faulty], bar="<= above"))
    figures.add(Figure("lateness of the loop, p99", "ms", [loop["lateness_p99_us"] / 1000], bar=f"{P99_BAR_MS:g}"))
    figures.add(Figure("lateness of the loop, greatest", "ms", [loop["lateness_max_us"] / 1000]))
    assert faulty <= quiet
    assert faulty_instants >= 0.95 * RATE_HZ * WINDOW_S
    assert loop["lateness_p99_us"] <= P99_BAR_MS * 1000


def test_the_deadman_fires_in_time(figures: Figures, tmp_path: Path) -> None:
    """The driver, or the env worker, stopped at any moment: hold within the timeout and one period, 100 of 100."""
    settings = ControlSettings(
        "arm",
        deadman=DeadmanSettings(link_timeout_s=LINK_TIMEOUT_S, stop_after_s=60.0, resume_after_s=0.05),
        directory=str(tmp_path),
        name="arm",
    )
    settings = replace(settings, settings=replace(settings.settings, rate_hz=RATE_HZ))
    chance = random.Random(7)
    late_ms = []
    with busy(_BURN, _BURN), talking(settings) as (echo, worker), at_once(echo.pid, worker.pid):
        for trial in range(TRIALS):
            victim = (echo, worker)[trial % 2]
            before = len(holds(tmp_path))
            time.sleep(chance.uniform(0.0, 0.05))  # any moment of a period, and of the echo's interval
            stopped_ns = stop_now(victim)
            (hold, *others) = wait_until("a hold", lambda seen=before: holds(tmp_path)[seen:])
            victim.send_signal(signal.SIGCONT)
            assert not others
            late_ms.append((hold["at_ns"] - stopped_ns) / 1e6 - LINK_TIMEOUT_S * 1000)
            wait_until(
                "it runs again", lambda seen=before: resumed(tmp_path), wanted=lambda n, seen=before: n > seen + 1
            )
    period_ms = 1000 / RATE_HZ
    in_time = sum(late <= period_ms for late in late_ms)
    figures.add(Figure("deadman after its timeout", "ms", late_ms, bar=f"<= {period_ms:g}, {in_time} of {TRIALS}"))
    assert in_time == TRIALS


def stop_now(victim: subprocess.Popen[str]) -> int:
    """SIGSTOP, and when it was sent; nobody comes between the two."""
    with at_once(os.getpid()):
        at_ns = time.monotonic_ns()
        victim.send_signal(signal.SIGSTOP)
    return at_ns


@contextmanager
def at_once(*pids: int) -> Iterator[None]:
    """All threads of ``pids`` go before what makes the cores busy: a stop takes effect when a thread next runs."""

    def schedule(policy: int, priority: int) -> None:
        for pid in pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))

    schedule(os.SCHED_FIFO, 40)
    try:
        yield
    finally:
        schedule(os.SCHED_OTHER, 0)


def events_of(directory: Path) -> list[dict[str, Any]]:
    path = directory / "arm.events.jsonl"
    lines = (path.read_text() if path.exists() else "").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def holds(directory: Path) -> list[dict[str, Any]]:
    return [event for event in events_of(directory) if event["event"] == "holding"]


def resumed(directory: Path) -> int:
    return sum(event["event"] == "running" for event in events_of(directory))


@contextmanager
def talking(settings: ControlSettings) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """An echo server and an env worker with the robot, both processes of their own."""
    here = Path(__file__).parent
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": {**os.environ}}
    echo = subprocess.Popen([sys.executable, str(here / "robot_echo.py")], **pipes)
    worker: subprocess.Popen[str] | None = None
    try:
        where = echo.stdout.readline().split()
        worker = subprocess.Popen([sys.executable, str(here / "robot_worker.py"), settings.to_json(), *where], **pipes)
        assert worker.stdout.readline() == "ready\n"
        wait_until("it runs", lambda: resumed(Path(settings.directory)))
        yield echo, worker
    finally:
        for process in (worker, echo):
            if process is not None:
                process.send_signal(signal.SIGCONT)
                process.communicate(timeout=60)
