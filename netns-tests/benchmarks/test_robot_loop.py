"""The control process of a robot under load and under faults: is it on time, and does the deadman fire in time?"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
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
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.robot.settings import ControlSettings

pytestmark = pytest.mark.timeout(900)

RATE_HZ = 100.0
WINDOW_S = 30.0
TRIALS = 100
TIMEOUT_S = 0.2
P99_BAR_MS = 2.0
# Of the link, where the loop is to go on acting for a window while that is cut. It may be a fifth of this old by then.
LONG_TIMEOUT_S = 2 * WINDOW_S

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


def in_window(tick_file: Path, state: str, window_s: float = WINDOW_S) -> Counter[str]:
    """What the figures grew by in ``window_s`` seconds, throughout which the robot was in ``state``."""
    before = told(tick_file)
    time.sleep(window_s)  # the bar's own time, not a synchronisation
    after = told(tick_file)
    assert [found["state"] for found in (before, after)] == [state] * 2
    assert [after[name] for name in ("holds", "stops", "resumes")] == [
        before[name] for name in ("holds", "stops", "resumes")
    ]
    counts = ("missed", "ticks", "steps", "later_than_2_ms")
    return Counter({name: after[name] - before[name] for name in counts})


def test_the_loop_is_on_time_whatever_happens_beside_it(figures: Figures, tmp_path: Path) -> None:
    """A training over the overlay with the simulated arm, two cores busy: without faults, then with all of them, first
    while it acts by its policy all the same, then once its deadman has stopped it."""
    lab = bench_lab("robot")
    ticks, events = tmp_path / "ticks", tmp_path / "robots"
    try:
        road = Road(lab, SystemClock(), lambda line: None)
        road.bring_up(1)
        cluster = write_demo_cluster(tmp_path / "cluster.yaml", 1)
        train = ["edgelink", "train", "run.iterations=100000", "env.kinds=robot", "robot.type=arm"]
        train += ["env.per_worker=1", f"robot.rate_hz={RATE_HZ:g}", f"control.tick_file={ticks}"]
        train += [f"control.directory={events}", f"deadman.link_timeout_s={LONG_TIMEOUT_S:g}"]
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
                quiet = in_window(ticks, "running")
            with busy(_TRAIN, _BURN, _BURN), cut(lab, EDGE):
                lab.kill(EDGE)
                acting = in_window(ticks, "running")
                wait_until("the deadman fires", lambda: told(ticks), wanted=lambda found: found["state"] == "stopped")
                stopped = in_window(ticks, "stopped")
                loop = told(ticks)
                assert loop["notes"][0] == "SCHED_FIFO 50"
        finally:
            run.terminate()
            run.wait(120)
    finally:
        lab.down()
    windows = {"two busy cores": quiet, "link cut, daemon dead, training": acting, "and the robot stopped": stopped}
    for name, window in windows.items():
        bar = "" if window is quiet else "<= the first"
        figures.add(Figure(f"missed of {window['ticks']}: {name}", "", [window["missed"]], bar=bar))
        late = 100 * window["later_than_2_ms"] / window["ticks"]
        figures.add(Figure(f"later than {P99_BAR_MS:g} ms: {name}", "%", [late], bar="<= 1"))
    figures.add(Figure("lateness of the loop, p99 of all", "ms", [loop["lateness_p99_us"] / 1000]))
    figures.add(Figure("lateness of the loop, greatest", "ms", [loop["lateness_max_us"] / 1000]))
    assert acting["steps"] >= 0.5 * quiet["steps"], "it went on by its policy"
    assert stopped["steps"] == 0
    for window in windows.values():
        assert window["missed"] <= quiet["missed"]
        assert window["ticks"] >= 0.95 * RATE_HZ * WINDOW_S
        assert window["later_than_2_ms"] <= 0.01 * window["ticks"]


@pytest.mark.parametrize("rate_hz", [50, 200, 500])
def test_every_rate_is_kept(rate_hz: int, figures: Figures, tmp_path: Path) -> None:
    """The slowest, a usual one and the quickest, in SCHED_FIFO, with two cores busy."""
    ticks = tmp_path / "ticks"
    settings = replace(arm(tmp_path, rate_hz, link_timeout_s=LONG_TIMEOUT_S), tick_file=str(ticks))
    with talking(settings), busy(_TRAIN, _BURN, _BURN):
        wait_until(
            "the robot runs",
            lambda: ticks.exists() and told(ticks),
            wanted=lambda found: found and found["state"] == "running",
        )
        window = in_window(ticks, "running", WINDOW_S / 3)
    loop = told(ticks)
    late = 100 * window["later_than_2_ms"] / window["ticks"]
    figures.add(Figure(f"{rate_hz} Hz: missed of {window['ticks']}", "", [window["missed"]]))
    figures.add(Figure(f"{rate_hz} Hz: later than {P99_BAR_MS:g} ms", "%", [late], bar="<= 1"))
    assert loop["notes"][0] == "SCHED_FIFO 50"
    assert window["ticks"] == pytest.approx(rate_hz * WINDOW_S / 3, rel=0.05)
    assert late <= 1
    assert window["missed"] <= 0.01 * window["ticks"]


def test_the_deadman_fires_in_time(figures: Figures, tmp_path: Path) -> None:
    """The driver, or the env worker, stopped at any moment: hold within the timeout and one period, 100 of 100."""
    settings = arm(tmp_path, link_timeout_s=TIMEOUT_S)
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
            late_ms.append((hold["at_ns"] - stopped_ns) / 1e6 - TIMEOUT_S * 1000)
            wait_until(
                "it runs again", lambda seen=before: resumed(tmp_path), wanted=lambda n, seen=before: n > seen + 1
            )
    assert_in_time(figures, "driver or worker stopped: deadman after its timeout", late_ms)


def test_a_policy_that_grows_too_old_is_held_in_time(figures: Figures, tmp_path: Path) -> None:
    """Hold within the timeout and one period after the last one came, 100 of 100."""
    chance = random.Random(7)
    late_ms = []
    # It comes at a control instant. After a whole number of them, microseconds of lateness would say which one is late.
    timeout_s = TIMEOUT_S + 0.5 / RATE_HZ
    with busy(_BURN, _BURN), talking(arm(tmp_path, link_timeout_s=0.0, policy_timeout_s=timeout_s)) as (_, worker):
        wait_until("the first policy grows too old", lambda: holds(tmp_path))
        for _ in range(TRIALS):
            before = len(holds(tmp_path))
            time.sleep(chance.uniform(0.0, 0.05))
            came_ns = publish(worker)
            (hold, *others) = wait_until("a hold", lambda seen=before: holds(tmp_path)[seen:])
            assert not others
            assert hold["cause"] == "policy"
            late_ms.append((hold["at_ns"] - came_ns) / 1e6 - timeout_s * 1000)
    assert_in_time(figures, "no newer policy: deadman after its timeout", late_ms)


def arm(directory: Path, rate_hz: float = RATE_HZ, **deadman: float) -> ControlSettings:
    return ControlSettings(
        "arm",
        settings=RobotSettings(rate_hz=rate_hz),
        deadman=DeadmanSettings(worker_timeout_s=0.0, stop_after_s=60.0, resume_after_s=0.05, **deadman),
        directory=str(directory),
        name="arm",
    )


def assert_in_time(figures: Figures, name: str, late_ms: list[float]) -> None:
    period_ms = 1000 / RATE_HZ
    in_time = sum(late <= period_ms for late in late_ms)
    figures.add(Figure(name, "ms", late_ms, bar=f"<= {period_ms:g}, {in_time} of {TRIALS}"))
    assert in_time == len(late_ms) == TRIALS


def publish(worker: subprocess.Popen[str]) -> int:
    """One more version; the control instant at which the robot had it."""
    worker.stdin.write("\n")
    worker.stdin.flush()
    return int(worker.stdout.readline())


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
