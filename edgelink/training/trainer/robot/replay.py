"""An episode once more, on a robot: the recorded commands, through its control loop, limits and deadman.

Run by the interpreter that has the robot's code, and LeRobot, if the episode is of a dataset of its.
"""

from __future__ import annotations

import argparse
import json
import os
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
_MOST = 64  # steps looked at together
_HINDERED_S = 10.0  # so long may something be wrong before it begins
_NO_CAUSES = ("none", "no_policy")


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

    def told_of_steps(self) -> str:
        return f"{self.commanded} of {self.steps} steps, {self.changed} changed by limits"

    def told(self, number: int) -> str:
        lines = [f"episode {number}: {self.told_of_steps()}"]
        if self.off is not None:
            start = "" if self.start_off is None else f", {self.start_off:.3g} at the start"
            lines.append(f"observations off by at most {self.off:.3g}{start}")
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
    if not episode.is_from_start:
        raise ValueError(
            f"episode {number} of {source} begins in the middle of an attempt, after a hold: a robot cannot be brought "
            "there"
        )
    seen = None if recording.spaces.is_pixels else episode.observations
    return Script(recording.robot, recording.steps_per_s, episode.actions, seen)


def _from_dataset(source: Path, number: int) -> Script:
    if not (source / "meta" / "info.json").is_file():  # LeRobot would look for it on the Internet
        raise ValueError(f"{source} is no dataset of LeRobot's: it has no meta/info.json")
    os.environ["HF_HUB_OFFLINE"] = "1"  # what is missing is not to be had from a stranger's dataset of that name
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    try:
        dataset = LeRobotDataset(f"edgelink/{source.name}", root=source)
        has_actions = "action" in dataset.features
    except Exception as error:
        raise ValueError(f"{source}: LeRobot cannot read it: {type(error).__name__}: {error}") from error
    if not has_actions:
        raise ValueError(f"{source} has no actions to replay")
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
        settings = ControlSettings(
            kind, name=NAME, settings=about, deadman=config.deadman, replay=str(commands), **config.control
        )
        robot = RobotEnvironment(settings)
        try:
            if robot.notice:
                raise TrainerError(robot.notice)
            done = _follow(robot, script)
        finally:
            robot.close()
    if not robot.came_to_rest:
        raise TrainerError(
            f"{done.told_of_steps()}, but the robot has not come to rest: {robot.report().get('message') or 'no word'}",
            "it may be moving; use the robot's own stop",
        )
    return done


def _follow(robot: RobotEnvironment, script: Script) -> Replayed:
    steps = len(script.commands)
    robot.begin()
    compared = _Comparison(script)
    hindered_s = 0.0
    while compared.commanded < steps:
        # Before the rows: those that were written until then are all that come, if it is over.
        (state, cause), is_over = robot.state, robot.replay_is_over
        is_over = is_over or state is State.STOPPED
        begun_s = time.monotonic()
        rows = robot.rows(_MOST, begun_s + (0.0 if is_over else _LOOK_S))
        compared.add(rows)
        if len(rows):
            continue
        if is_over:
            return compared.result(_why(robot, compared, cause))
        # Before it has begun: what is wrong may pass, as a link that is only just made.
        is_hindered = robot.hindered_by not in (Cause.NONE, Cause.NO_POLICY)
        hindered_s = hindered_s + time.monotonic() - begun_s if is_hindered else 0.0
        if hindered_s > _HINDERED_S:
            return compared.result(robot.hindered_by.name.lower())
    return compared.result("")


def _why(robot: RobotEnvironment, compared: _Comparison, now: Cause) -> str:
    """What came first; for it is over in any case then."""
    if compared.has_ended:
        return "the robot ended the attempt"
    causes = [event["cause"] for event in robot.report()["events"] if event.get("event") in ("holding", "stopped")]
    causes.append(now.name.lower())  # of which the attendant may not have heard yet
    return next((cause for cause in causes if cause not in _NO_CAUSES), "the robot was not ready")


class _Comparison:
    """What was commanded and seen, beside what was to be; keeps figures, no rows."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.commanded = 0  # steps, whose numbers the rows have
        self.has_ended = False  # the robot says that the attempt is over
        self._changed = 0
        self._start_off: float | None = None
        self._off: float | None = None

    def add(self, rows: Any) -> None:
        if not len(rows):
            return
        at = rows["number"] - 1
        self.commanded = int(rows["number"][-1])
        self.has_ended = bool(rows["terminated"][-1, 0] or rows["truncated"][-1, 0])
        executed = rows["executed"][:, 0]
        wanted = np.broadcast_to(self._script.commands[at], executed.shape)
        self._changed += int((executed != wanted.astype(executed.dtype)).reshape(len(rows), -1).any(axis=1).sum())
        seen, recorded = rows["observations"][:, 0], self._script.observations
        if recorded is None or recorded.shape[1:] != seen.shape[1:]:
            return
        off = np.abs(seen - recorded[at]).reshape(len(rows), -1).max(axis=1)
        if at[0] == 0:
            self._start_off = float(off[0])
        self._off = max(self._off or 0.0, float(off.max()))

    def result(self, broken_by: str) -> Replayed:
        steps = len(self._script.commands)
        return Replayed(steps, self.commanded, self._changed, self._start_off, self._off, broken_by)


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
        if not kind or (":" in kind and not is_chosen and options.source.is_dir()):  # others' datasets name no code
            what = f"{options.source} does not say which robot of this machine"
            raise TrainerError(what, "give robot.type=NAME", exit_status=USAGE)
        done = replay(script, kind, config)
    except TrainerError as error:
        print(f"edgelink robot replay: {error}", file=sys.stderr)
        return error.exit_status
    except (ImportError, OSError, ValueError) as error:
        print(f"edgelink robot replay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("edgelink robot replay: stopped; the robot comes to its safe stop", file=sys.stderr)
        return 130
    print(json.dumps(vars(done)) if options.json else done.told(options.episode))
    return 1 if done.broken_by else 0
