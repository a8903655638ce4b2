"""`edgelink robot replay`: what a robot was commanded, commanded once more, in real processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obedient_robot import ObedientRobot, weights

from edgelink.training.trainer.robot.acting import read_commands
from edgelink.training.trainer.robot.cart_pole import CartPoleCell
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.interface import Robot, RobotSettings
from edgelink.training.trainer.robot.recording import episodes, read_recording
from edgelink.training.trainer.robot.replay import Script
from edgelink.training.trainer.robot.settings import ControlSettings

EDGELINK = Path(sys.executable).with_name("edgelink")
OBEDIENT = "obedient_robot:ObedientRobot"
CART_POLE = {"policy/head/weight": np.zeros((2, 4), np.float32), "policy/head/bias": np.zeros(2, np.float32)}

Replay = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGELINK_ROBOT_DIR", str(tmp_path / "robots"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return tmp_path


@pytest.fixture
def replay(directory: Path) -> Replay:
    """The command as it is typed."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        argv = [EDGELINK, "robot", "replay", *arguments]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory)

    return start


def record(robot: str, policy: Any, directory: Path, steps: int, seed: int = 0) -> Path:
    """A robot's run by ``policy``, as it was recorded beside it."""
    about = RobotSettings(seed=seed)
    taken = RobotEnvironment(ControlSettings(robot, settings=about, record=str(directory / "recorded")))
    try:
        taken.load_policy(1, policy)
        assert taken.take(steps, 30.0) is not None
    finally:
        taken.close()
    (path,) = (directory / "recorded").iterdir()
    return path


def test_the_cell_does_the_same_again(directory: Path, replay: Replay) -> None:
    """From the same seed the same start: each observation is the recorded one, and recorded once more."""
    recorded = record("cart-pole", CART_POLE, directory, 60, seed=7)
    first = next(episodes(read_recording(recorded)))
    command = replay(str(recorded), "run.seed=7", "control.record=again", "--json")
    told, errors = command.communicate(timeout=60)
    assert (command.returncode, errors) == (0, "")
    done = json.loads(told)
    assert (done["steps"], done["commanded"]) == (len(first.actions), len(first.actions))
    assert (done["changed"], done["broken_by"]) == (0, "")
    assert (done["start_off"], done["off"]) == (0.0, 0.0)
    (again,) = (directory / "again").iterdir()
    repeated = next(episodes(read_recording(again)))
    assert repeated.actions.tolist() == first.actions.tolist()
    assert repeated.rewards.tolist() == first.rewards.tolist()


def test_another_start_is_told(directory: Path, replay: Replay) -> None:
    """In words, for who stands beside the robot: an open loop does not lead where it led from elsewhere."""
    recorded = record("cart-pole", CART_POLE, directory, 60, seed=7)
    command = replay(str(recorded), "run.seed=8", "--episode=1")
    told, errors = command.communicate(timeout=60)
    assert errors == ""
    assert "observations off by at most 0." in told
    assert command.returncode == (1 if "broken off, because of: the robot ended the attempt" in told else 0)


def test_who_stops_it_stops_the_robot(directory: Path, replay: Replay) -> None:
    """By `edgelink robot stop replay`, whose stop lasts; then by a signal, before it was resumed: nothing moves."""
    recorded = record(OBEDIENT, weights(0.5), directory, 300)
    command = replay(str(recorded))
    stop = [EDGELINK, "robot", "stop", "replay"]
    deadline_s = time.monotonic() + 30
    while subprocess.run(stop, check=False, capture_output=True).returncode and time.monotonic() < deadline_s:
        assert command.poll() is None
    told, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    assert "broken off, because of: person" in told

    refused = replay(str(recorded))
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "robot replay is stopped since" in errors

    subprocess.run([EDGELINK, "robot", "resume", "replay"], check=True, capture_output=True)
    stopped = replay(str(recorded))
    status = [EDGELINK, "robot", "status", "replay", "--json"]
    while '"running"' not in subprocess.run(status, check=False, capture_output=True, text=True).stdout:
        assert stopped.poll() is None
    stopped.send_signal(signal.SIGTERM)
    _, errors = stopped.communicate(timeout=60)
    assert (stopped.returncode, errors) == (130, "edgelink robot replay: stopped, and the robot with it\n")
    assert subprocess.run(status, check=False, capture_output=True).returncode, "no robot is there any more"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{recording}", "--episode=99"], "has no episode 99: it has 1, counted from 0"),
        (["{recording}", "--python=/nowhere/python"], "/nowhere/python cannot be run"),
        (["{recording}", "robot.rate_hz=50"], "the episode has 100 steps a second, this robot makes 50"),
        (["{recording}", "robot.typo=arm"], "robot.typo: there is no such setting"),
        (["{other}"], "is no recording of a robot"),
        (["."], "is no dataset of LeRobot's"),
        (["{nowhere}"], "does not exist"),
    ],
)
def test_mistakes_are_told_before_anything_moves(
    directory: Path, replay: Replay, arguments: list[str], message: str
) -> None:
    """With the status of a failure."""
    recording = record(OBEDIENT, weights(), directory, 5)
    (directory / "other").write_text("{}\n")
    names = {"recording": recording, "other": directory / "other", "nowhere": directory / "nowhere"}
    command = replay(*(argument.format(**names) for argument in arguments))
    _, errors = command.communicate(timeout=60)
    assert command.returncode in (1, 2)
    assert message in errors
    assert "Traceback" not in errors


def read_by(robot: Robot, commands: Any, steps_per_s: float, directory: Path) -> Any:
    path = directory / "commands.npz"
    Script("", steps_per_s, np.asarray(commands), None).write(path)
    return read_commands(path, robot)


def test_a_datasets_one_action_a_step_is_repeated(tmp_path: Path) -> None:
    """Others' datasets have no command of each instant; a robot with two instants a step gets each twice."""
    cell = CartPoleCell(RobotSettings())
    assert cell.action_repeat == 2
    assert read_by(cell, [[1], [0], [1]], 50, tmp_path).tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("robot", "commands", "steps_per_s", "message"),
    [
        (CartPoleCell, [[1, 2]], 50, "actions beyond 0 to 1"),
        (CartPoleCell, [[-1, 1]], 50, "actions beyond 0 to 1"),
        (CartPoleCell, [[1, 0, 1]], 50, r"of shape \(3,\), this robot's of \(2,\)"),
        (CartPoleCell, np.zeros((0, 2)), 50, "no steps"),
        (ObedientRobot, [[[0.1, 0.2]]], 100, r"of shape \(1, 2\), this robot's of \(1, 1\)"),
        (ObedientRobot, [[[np.nan]]], 100, "no numbers"),
        (ObedientRobot, [[[0.1]]], 30, "30 steps a second, this robot makes 100"),
    ],
)
def test_commands_of_another_robot_are_refused(
    robot: type[Robot], commands: Any, steps_per_s: float, message: str, tmp_path: Path
) -> None:
    """In the control process, before its loop begins."""
    with pytest.raises(ValueError, match=message):
        read_by(robot(RobotSettings()), commands, steps_per_s, tmp_path)


def test_several_rigs_replay_nothing(tmp_path: Path) -> None:
    """An episode is one rig's."""
    with pytest.raises(ValueError, match="this robot has 3"):
        read_by(CartPoleCell(RobotSettings(rigs=3)), [[1]], 50, tmp_path)
