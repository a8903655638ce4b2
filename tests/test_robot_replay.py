"""`edgelink robot replay`: what a robot was commanded, commanded once more, in real processes."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from click.testing import CliRunner, Result
from obedient_robot import SPACES, ObedientRobot, weights

from edgelink.cli import robot as robot_commands
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.options import configuration
from edgelink.training.trainer.robot import replay as replay_module
from edgelink.training.trainer.robot.acting import read_commands
from edgelink.training.trainer.robot.cart_pole import CartPoleCell
from edgelink.training.trainer.robot.deadman import Cause, DeadmanSettings, State
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.interface import Robot, RobotSettings
from edgelink.training.trainer.robot.recording import episodes, read_recording
from edgelink.training.trainer.robot.replay import Replayed, Script
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.robot.shared import Layout

pytestmark = pytest.mark.processes

EDGELINK = Path(sys.executable).with_name("edgelink")
OBEDIENT = "obedient_robot:ObedientRobot"
CART_POLE = {"policy/head/weight": np.zeros((2, 4), np.float32), "policy/head/bias": np.zeros(2, np.float32)}

_POLL_S = 0.02

Replay = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGELINK_ROBOT_DIR", str(tmp_path / "robots"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return tmp_path


@pytest.fixture
def replay(directory: Path) -> Replay:
    """The command as it is typed, for a machine on which everything may stand still for a second."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        argv = [EDGELINK, "robot", "replay", *arguments, "deadman.link_timeout_s=5", "control.watchdog_s=5"]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory)

    return start


def robot_command(word: str, *arguments: str) -> Result:
    """`edgelink robot WORD replay …`."""
    return CliRunner().invoke(robot_commands.command, [word, "replay", *arguments])


def record(robot: str, policy: Any, directory: Path, steps: int, seed: int = 0) -> Path:
    """A robot's run by ``policy``, as it was recorded beside it."""
    about, patient = RobotSettings(seed=seed), DeadmanSettings(link_timeout_s=5)
    taken = RobotEnvironment(
        ControlSettings(robot, settings=about, deadman=patient, watchdog_s=5, record=str(directory / "recorded"))
    )
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
    assert read_recording(recorded).names.action == CartPoleCell.action_names
    first = next(episodes(read_recording(recorded)))
    command = replay(str(recorded), "run.seed=7", f"control.record={directory}/again", "--json")
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
    assert " at most 0." in told
    assert command.returncode == (1 if "broken off" in told else 0)


def test_who_stops_it_stops_the_robot(directory: Path, replay: Replay) -> None:
    """By `edgelink robot stop replay`, whose stop lasts; then by a signal, before it was resumed: nothing moves."""
    recorded = record(OBEDIENT, weights(0.5), directory, 300)
    command = replay(str(recorded))
    deadline_s = time.monotonic() + 30
    while robot_command("stop").exit_code and time.monotonic() < deadline_s:
        assert command.poll() is None
        time.sleep(_POLL_S)
    told, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    assert ": person" in told

    refused = replay(str(recorded))
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "robot replay is stopped since" in errors

    assert robot_command("resume").exit_code == 0
    stopped = replay(str(recorded))
    while '"running"' not in robot_command("status", "--json").stdout:
        assert stopped.poll() is None
        time.sleep(_POLL_S)
    stopped.send_signal(signal.SIGTERM)
    _, errors = stopped.communicate(timeout=60)
    assert (stopped.returncode, errors.count("\n")) == (130, 1)
    assert errors.startswith("edgelink robot replay: stopped; ")
    assert robot_command("status").exit_code, "no robot is there any more"


@pytest.fixture(scope="module")
def short_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGELINK_ROBOT_DIR", str(directory / "robots"))
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        return record(OBEDIENT, weights(0.5), directory, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{recording}", "--episode=99"], "has no episode 99: it has 1, counted from 0"),
        (["{recording}", "--python=/nowhere/python"], "/nowhere/python cannot be run"),
        (["{recording}", "robot.rate_hz=50"], "100 steps a second"),
        (["{recording}", "robot.typo=arm"], "robot.typo: "),
        (["{other}"], "{other}"),
        (["."], "LeRobot"),
        (["{nowhere}"], "does not exist"),
    ],
)
def test_mistakes_are_told_before_anything_moves(
    directory: Path, short_recording: Path, replay: Replay, arguments: list[str], message: str
) -> None:
    """With the status of a failure."""
    (directory / "other").write_text("{}\n")
    names = {"recording": short_recording, "other": directory / "other", "nowhere": directory / "nowhere"}
    command = replay(*(argument.format(**names) for argument in arguments))
    _, errors = command.communicate(timeout=60)
    assert command.returncode in (1, 2)
    assert message.format(**names) in errors
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
        (ObedientRobot, [[[0.1]]], 30, r"\b30 .* 100\b"),
    ],
)
def test_commands_of_another_robot_are_refused(
    robot: Callable[[RobotSettings], Robot], commands: Any, steps_per_s: float, message: str, tmp_path: Path
) -> None:
    """In the control process, before its loop begins."""
    with pytest.raises(ValueError, match=message):
        read_by(robot(RobotSettings()), commands, steps_per_s, tmp_path)


def test_several_rigs_replay_nothing(tmp_path: Path) -> None:
    """An episode is one rig's."""
    with pytest.raises(ValueError, match="this robot has 3"):
        read_by(CartPoleCell(RobotSettings(rigs=3)), [[1]], 50, tmp_path)


class Robot500:
    """What a replay sees of a robot's processes, as told; each look of it takes a second."""

    notice = ""
    rows_there: ClassVar[list[list[int]]] = []
    state = (State.RUNNING, Cause.NONE)
    hindered_by = Cause.NONE
    replay_is_over = False
    came_to_rest = True
    events: ClassVar[list[dict[str, str]]] = []
    is_closed = False

    def __init__(self, _settings: ControlSettings) -> None:
        self._left = [list(numbers) for numbers in self.rows_there]

    def begin(self) -> None:
        pass

    def rows(self, _most: int, _ends_s: float) -> Any:
        numbers = self._left.pop(0) if self._left else []
        rows = np.zeros(len(numbers), Layout(SPACES, 1, 8).row)
        rows["number"] = numbers
        return rows

    def report(self) -> dict[str, Any]:
        return {"events": self.events, "message": "stop() fails: OSError: gripper"}

    def close(self) -> None:
        type(self).is_closed = True


SCRIPT = Script("x", 100, np.zeros((4, 1, 1), np.float32), np.zeros((4, 2), np.float32))


@pytest.fixture
def robot(monkeypatch: pytest.MonkeyPatch) -> type[Robot500]:
    class One(Robot500):
        pass

    clock = itertools.count(100)
    monkeypatch.setattr(replay_module, "RobotEnvironment", One)
    monkeypatch.setattr(replay_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    return One


def replayed() -> Replayed:
    return replay_module.replay(SCRIPT, "x", configuration({}))


def test_what_came_first_is_the_cause(robot: type[Robot500]) -> None:
    """Whether the attendant has heard of it yet, or not; a hold at which it ended, not the stop that followed."""
    robot.rows_there, robot.replay_is_over = [[1, 2]], True
    robot.state = (State.STOPPED, Cause.FAULT)
    assert (replayed().commanded, replayed().broken_by) == (2, "fault")
    robot.state = (State.STOPPED, Cause.NO_POLICY)
    robot.events = [{"event": "running", "cause": "no_policy"}, {"event": "holding", "cause": "link"}]
    assert replayed().broken_by == "link"
    robot.events = []
    assert "not ready" in replayed().broken_by
    assert robot.is_closed


def test_a_robot_that_may_not_begin_is_not_waited_for_for_ever(robot: type[Robot500]) -> None:
    """Such as one whose sensors give no numbers: the deadman waits, and who replays does not."""
    robot.state, robot.hindered_by = (State.WAITING, Cause.NO_POLICY), Cause.NOT_A_NUMBER
    assert replayed().broken_by == "not_a_number"


def test_lost_rows_move_no_others(robot: type[Robot500]) -> None:
    """Each is compared with the step whose number it has."""
    robot.rows_there = [[1, 4]]
    assert replayed() == Replayed(4, 4, 0, 0.0, 0.0, "")


def test_a_robot_that_may_be_moving_is_no_success(robot: type[Robot500]) -> None:
    """All of it was commanded, and stop() raised."""
    robot.rows_there, robot.came_to_rest = [[1, 2, 3, 4]], False
    with pytest.raises(TrainerError, match=r"4 of 4 .*stop\(\) fails: OSError: gripper.* moving"):
        replayed()


def test_the_middle_of_an_attempt_is_not_replayed(short_recording: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a hold: the robot would begin elsewhere."""
    (whole,) = episodes(read_recording(short_recording))
    assert whole.is_from_start
    monkeypatch.setattr(replay_module, "episodes", lambda _: [replace(whole, is_from_start=False)])
    with pytest.raises(ValueError, match="middle"):
        replay_module.read_script(short_recording, 0)
