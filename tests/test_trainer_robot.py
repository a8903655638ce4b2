"""The robot cell: a clock of its own, safe when nobody commands it, gone when its driver is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgelink.training.trainer.experience.environment import RobotEnvironment, load_driver
from edgelink.training.trainer.robot.cart_pole_cell import Cell, TickClock
from edgelink.training.trainer.robot.cell_driver import CellDriver
from edgelink.training.trainer.robot.interface import RobotSettings

LEFT = np.zeros(2, dtype=np.int64)
DRIVER = "edgelink.training.trainer.robot.cell_driver:CellDriver"


def eventually(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


@pytest.fixture
def settings(tmp_path: Path) -> RobotSettings:
    return RobotSettings(rank=0, rigs=2, tick_hz=100, seed=1, tick_file=str(tmp_path / "ticks.json"))


@pytest.fixture
def driver(settings: RobotSettings) -> Iterator[CellDriver]:
    driver = CellDriver(settings)
    yield driver
    driver.close()


def ticks(settings: RobotSettings) -> int:
    assert settings.tick_file is not None
    value: int = json.loads(Path(settings.tick_file).read_text())["ticks"]
    return value


def test_a_command_is_answered_after_one_control_period() -> None:
    """20 ms of ticks, whatever the clock's rate."""
    for tick_hz, period in ((100, 2), (500, 10), (20, 1)):
        cell = Cell(rigs=1, tick_hz=tick_hz, seed=0)
        cell.command([1])
        answers = [cell.tick() for _ in range(period + 1)]
        assert [answer is not None for answer in answers] == [False] * (period - 1) + [True, False]


def test_a_rig_moves_as_commanded() -> None:
    """Pushed right, the cart goes right."""
    cell = Cell(rigs=2, tick_hz=100, seed=0)
    cell.command([1, 0])
    for _ in range(5):
        cell.tick()

    right, left = (state[1] for state in cell.observation()["states"])
    assert right > 0.2
    assert left < -0.2


def test_stale_commands_lead_to_the_safe_action_while_the_clock_goes_on() -> None:
    """After half a second without commands the rigs are put back and held; the attempt counts as cut."""
    cell = Cell(rigs=1, tick_hz=100, seed=0)
    cell.command([1])
    cell.tick()
    assert not cell.is_held
    for _ in range(100):
        cell.tick()
    held = cell.observation()
    for _ in range(100):
        cell.tick()

    assert cell.is_held
    assert cell.ticks == 201
    assert cell.safe_holds == 1
    assert held["cut"] == [True] or held["failed"] == [True]
    assert cell.observation()["states"] == held["states"]  # held still, ended once


def test_a_fallen_rig_begins_anew_and_says_how_it_ended() -> None:
    """The observation carries the fallen state and the fresh one, once."""
    cell = Cell(rigs=1, tick_hz=100, seed=0)
    seen = []
    while not seen or not seen[-1]["failed"][0]:
        cell.command([1])
        seen += [answer for answer in (cell.tick(), cell.tick()) if answer]

    assert abs(seen[-1]["final_states"][0][2]) > 0.2
    assert abs(seen[-1]["states"][0][2]) < 0.2
    assert cell.observation()["failed"] == [False]


def test_late_ticks_are_made_up_for_up_to_a_limit() -> None:
    """The count follows the clock; a long gap is reported, not replayed."""
    clock = TickClock(100, now_s=0.0)

    assert clock.take_due(0.009) == 0
    assert clock.take_due(0.0105) == 1
    assert clock.take_due(0.0405) == 3
    assert clock.take_due(10.0) == 5
    assert clock.dropped > 900
    assert clock.max_gap_s == pytest.approx(9.9595)


def test_the_cell_ticks_in_real_time_with_nobody_commanding(settings: RobotSettings, driver: CellDriver) -> None:
    """Its process counts on, as its tick file shows."""
    driver.connect()
    assert settings.tick_file is not None
    eventually(Path(settings.tick_file).exists)
    first, begun_s = ticks(settings), time.monotonic()
    time.sleep(0.6)
    counted, elapsed_s = ticks(settings) - first, time.monotonic() - begun_s

    assert 0.5 * elapsed_s <= counted / 100 <= elapsed_s + 0.3


def test_commanding_takes_the_robots_own_time(driver: CellDriver) -> None:
    """Ten control periods of 20 ms take 0.2 s, and the figures say what happened."""
    driver.connect()
    begun_s = time.monotonic()
    last = 0
    for _ in range(10):
        driver.command(LEFT)
        seen = driver.observe()
        assert seen.tick > last
        last = seen.tick
    elapsed_s = time.monotonic() - begun_s

    assert elapsed_s > 0.15
    report = driver.report()
    assert report["commands"] == 10
    assert report["ticks"] >= 20
    assert report["max_tick_gap_s"] > 0
    assert report["pid"] == driver.pid != os.getpid()


def test_the_cell_ends_when_its_driver_is_killed(settings: RobotSettings) -> None:
    """Even by SIGKILL: no robot process is left behind."""
    code = (
        "import sys; from edgelink.training.trainer.robot.cell_driver import *; "
        f"driver = CellDriver(RobotSettings(rank=0, rigs=2, tick_file={settings.tick_file!r})); driver.connect(); "
        "print(driver.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    assert parent.stdout is not None
    cell = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    eventually(lambda: not Path(f"/proc/{cell}/cmdline").exists() or Path(f"/proc/{cell}/cmdline").read_bytes() == b"")


def test_a_dead_cell_is_an_error_not_a_hang(driver: CellDriver) -> None:
    """The driver says that it ended, and how."""
    driver.connect()
    assert driver.pid is not None
    os.kill(driver.pid, signal.SIGKILL)

    with pytest.raises(OSError, match="robot cell has ended with status -9"):
        for _ in range(3):
            driver.command(LEFT)
            driver.observe()


def test_a_tick_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """Before the robot moves."""
    with pytest.raises(OSError, match=r"tick file .* cannot be written"):
        CellDriver(RobotSettings(rank=0, tick_file=str(tmp_path / "none" / "ticks"))).connect()


def test_the_robot_as_environment(driver: CellDriver) -> None:
    """A step is one control period; a reset goes on from what was seen last."""
    environment = RobotEnvironment(driver)
    assert environment.reset().shape == (2, 4)
    step = environment.step(LEFT)

    assert step.rewards.tolist() == [1, 1]
    assert (environment.reset() == step.observations).all()


@pytest.mark.parametrize("name", ["nowhere:X", "json:nothing", "json", ":X"])
def test_a_robot_driver_that_is_not_there_is_named(name: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match="cannot be loaded here"):
        load_driver(name)
