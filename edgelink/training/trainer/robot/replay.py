"""An episode once more, on a robot: the recorded commands, through its control loop, limits and deadman.

Run by the interpreter that has the robot's code, and LeRobot, if the episode is of a dataset of its.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.options import Config, configuration, sections_of
from edgelink.training.trainer.robot.deadman import Cause, State
from edgelink.training.trainer.robot.environment import RobotEnvironment
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.robot.lerobot_export import COMMANDED, STATE
from edgelink.training.trainer.robot.recording import episodes, read_recording
from edgelink.training.trainer.robot.settings import ControlSettings

NAME = "replay"  # of the robot, for `edgelink robot stop`
_LOOK_S = 0.1
_MOST = 256  # steps looked at together


@dataclass(frozen=True)
class Script:
    """What one rig was commanded, step by step, and what it saw."""

    robot: str  # what the recording, or the dataset, says
    steps_per_s: float
    commands: Any  # (steps, 1 or action_repeat, …)
    observations: Any | None  # (steps, features); None: pixels, which are not compared

    def write(self, path: Path) -> None:
        """For the control process, which reads it with ``read_commands`` before the robot is given power."""
        np.savez(path, commands=self.commands, steps_per_s=self.steps_per_s)


@dataclass(frozen=True)
class Replayed:
    """What became of it."""

    steps: int
    commanded: int
    changed: int  # steps whose commands the limits have changed
    start_off: float | None  # how far the robot's first observation was from the recorded one: the largest difference
    off: float | None  # and the largest of all
    broken_by: str  # "": it was replayed to its end

    def told(self, number: int) -> str:
        lines = [f"episode {number}: {self.commanded} of {self.steps} steps, {self.changed} changed by limits"]
        if self.off is not None:
            lines.append(f"observations off by at most {self.off:.3g}, {self.start_off:.3g} at the start")
        if self.broken_by:
            lines.append(f"broken off, because of: {self.broken_by}")
        return "\n".join(lines)


def read_script(source: Path, number: int) -> Script:
    """Episode ``number``, from 0, of a recording (a file) or of a LeRobot dataset (a directory).

    Raises:
        OSError, ImportError: it, or LeRobot, is not there.
        ValueError: it is neither, or has no such episode, or not all of it.
    """
    if source.is_dir():
        return _from_dataset(source, number)
    recording = read_recording(source)
    found = list(episodes(recording))
    _check(number, len(found), source)
    episode = found[number]
    if episode.has_gap:
        raise ValueError(f"steps of episode {number} of {source} were not recorded in time: it cannot be replayed")
    seen = None if recording.spaces.is_pixels else episode.observations
    return Script(recording.robot, recording.steps_per_s, episode.actions, seen)


def _from_dataset(source: Path, number: int) -> Script:
    if not (source / "meta" / "info.json").is_file():  # LeRobot would look for it on the Internet
        raise ValueError(f"{source} is no dataset of LeRobot's: it has no meta/info.json")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset(f"edgelink/{source.name}", root=source)
    _check(number, dataset.num_episodes, source)
    table = dataset.hf_dataset.with_format("numpy")
    frames = table.select(np.flatnonzero(np.asarray(table["episode_index"]) == number))
    one = tuple(dataset.features["action"]["shape"])
    is_discrete = dataset.features["action"]["dtype"].startswith("int")
    actions = np.asarray(frames[COMMANDED if COMMANDED in dataset.features else "action"])
    commands = actions.reshape(len(frames), -1, *(() if is_discrete and one == (1,) else one))
    seen = np.asarray(frames[STATE]) if STATE in dataset.features else None
    return Script(str(dataset.meta.robot_type or ""), float(dataset.fps), commands, seen)


def _check(number: int, count: int, source: Path) -> None:
    if not 0 <= number < count:
        raise ValueError(f"{source} has no episode {number}: it has {count}, counted from 0")


def replay(script: Script, kind: str, config: Config) -> Replayed:
    """On this machine's robot of that kind, as ``load_robot`` knows it.

    Raises:
        OSError: the robot is not there, is another training's, or is not one for this script.
        TrainerError: a person has stopped it.
    """
    with tempfile.TemporaryDirectory(prefix="edgelink-replay-") as directory:
        commands = Path(directory) / "commands.npz"
        script.write(commands)
        about = RobotSettings(0, 1, config.robot.rate_hz, config.run.seed, config.robot.options)
        control = dict(config.control)
        control["tick_file"] = str(control.get("tick_file", "")).replace("{rank}", "0")
        settings = ControlSettings(
            kind, name=NAME, settings=about, deadman=config.deadman, replay=str(commands), **control
        )
        robot = RobotEnvironment(settings)
        try:
            if robot.notice:
                raise TrainerError(robot.notice)
            return _follow(robot, script)
        finally:
            robot.close()


def _follow(robot: RobotEnvironment, script: Script) -> Replayed:
    steps = len(script.commands)
    robot.begin()
    parts: list[Any] = []
    broken_by = ""
    while (have := sum(map(len, parts))) < steps:
        # Before the rows: those that were written until then are all that come, if it is over.
        state, cause = robot.state
        is_over = state is State.STOPPED or (state is State.HOLDING and cause is Cause.NO_POLICY)
        part = robot.rows(min(_MOST, steps - have), time.monotonic() + (0.0 if is_over else _LOOK_S))
        if len(part):
            parts.append(part)
        elif is_over:
            broken_by = _why(robot, parts)
            break
    rows = np.concatenate(parts) if parts else None
    return _compared(script, rows, broken_by)


def _why(robot: RobotEnvironment, parts: list[Any]) -> str:
    """What came first; for it is over in any case then."""
    if parts and (parts[-1]["terminated"][-1, 0] or parts[-1]["truncated"][-1, 0]):
        return "the robot ended the attempt"
    events = robot.report()["events"]
    causes = [event["cause"] for event in events if event.get("event") in ("holding", "stopped")]
    return next((cause for cause in causes if cause != Cause.NO_POLICY.name.lower()), "the robot was not ready")


def _compared(script: Script, rows: Any, broken_by: str) -> Replayed:
    if rows is None:
        return Replayed(len(script.commands), 0, 0, None, None, broken_by)
    count = len(rows)
    executed = rows["executed"][:, 0]
    wanted = np.broadcast_to(script.commands[:count], executed.shape)
    changed = (executed != wanted.astype(executed.dtype)).reshape(count, -1).any(axis=1)
    start_off = off = None
    if script.observations is not None and script.observations.shape[1:] == rows["observations"].shape[2:]:
        difference = np.abs(rows["observations"][:, 0] - script.observations[:count]).reshape(count, -1).max(axis=1)
        start_off, off = float(difference[0]), float(difference.max())
    return Replayed(len(script.commands), count, int(changed.sum()), start_off, off, broken_by)


def main(arguments: Sequence[str]) -> int:
    """``SOURCE EPISODE [--config FILE] [--json] [section.key=value …]``; exit status 0: replayed to its end; 1: not;
    2: a mistake."""
    parser = argparse.ArgumentParser(prog="edgelink robot replay")
    parser.add_argument("source", type=Path)
    parser.add_argument("episode", type=int)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl+C: the robot is brought to its safe stop
        signal.signal(number, signal.default_int_handler)
    try:
        content = sections_of(options.config) if options.config else {}
        config = configuration(content, options.settings)
        # A robot's code is found where the user is, and where a training would have taken it from.
        modules = [Path(module).expanduser().absolute().parent for module in config.env.modules]
        sys.path += [str(path) for path in (Path.cwd(), *modules)]
        script = read_script(options.source, options.episode)
        is_chosen = "type" in (content.get("robot") or {}) or any(s.startswith("robot.type=") for s in options.settings)
        kind = config.robot.type if is_chosen else script.robot
        if not kind:
            raise TrainerError(f"{options.source} does not say which robot", "give robot.type=NAME", exit_status=USAGE)
        done = replay(script, kind, config)
    except TrainerError as error:
        print(f"edgelink robot replay: {error}", file=sys.stderr)
        return error.exit_status
    except (ImportError, OSError, ValueError) as error:
        print(f"edgelink robot replay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("edgelink robot replay: stopped, and the robot with it", file=sys.stderr)
        return 130
    print(json.dumps(vars(done)) if options.json else done.told(options.episode))
    return 1 if done.broken_by else 0
