"""Command line of the trainer."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from edgelink.training.trainer.experience.environment import ROBOT, SIMULATOR
from edgelink.training.trainer.experience.simulator import TASK, Task
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.robot.settings import ControlSettings, with_values
from edgelink.training.trainer.training import ElasticSettings

T = TypeVar("T")

PLACEMENT_VARIABLE = "EDGELINK_PLACEMENT"
TICK_FILE_VARIABLE = "EDGELINK_ROBOT_TICK_FILE"
RESUME, RESUME_AUTO = "always", "auto"
RUN_VARIABLE = "EDGELINK_RUN_ID"  # the same in every attempt of one run
RIDE_THROUGH_VARIABLE = "EDGELINK_RIDE_THROUGH_S"  # how long an outage may be that the cluster rides through
_STALL_TIMEOUT_S = 900.0
_STALL_AFTER_OUTAGE_S = 600.0  # until TCP tries again (120 s at most), and what was to be done anyway
STEP_FILE_VARIABLE = "EDGELINK_STEP_FILE"  # where the driver may write how far it is
ATTEMPT_VARIABLE = "EDGELINK_ATTEMPT"  # 1, 2, … as `edgelink run` starts the driver again


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    placement: Path | None
    seed: int
    iterations: int
    env_kinds: tuple[str, ...]
    envs_per_worker: int
    robot_rate_hz: float | None
    robot: str
    robot_settings: dict[str, str]
    robot_options: dict[str, str]
    robot_tick_file: str | None
    eval_episodes: int
    eval_every: int
    task: Task
    flow: FlowSettings
    elastic: ElasticSettings
    tensorboard: Path | None
    keep_checkpoints: int
    checkpoint_dir: Path | None
    checkpoint_every: int
    resume: str | None
    report: Path | None
    progress: Path | None
    stall_timeout_s: float
    run_id: str
    attempt: int


def parse(arguments: Sequence[str]) -> Options:
    """Parse ``arguments``; ends the process with status 2 on mistakes, as argparse does."""
    parser = argparse.ArgumentParser(prog="edgelink train", description="Train a policy on simulators and robots.")
    parser.add_argument("--placement", type=Path, help=f"resolved placement (default: ${PLACEMENT_VARIABLE})")
    parser.add_argument("--seed", type=_natural, default=0)
    parser.add_argument("--iterations", type=_positive, default=20, help="in all, also with --resume (default 20)")
    parser.add_argument(
        "--env-kinds", type=_kinds, default=(SIMULATOR, ROBOT), help="kinds of env workers 0, 1, …, repeated: sim,robot"
    )
    parser.add_argument("--envs-per-worker", type=_positive, default=8, help="simulators, or rigs of a robot")
    parser.add_argument("--task", default=TASK, help=f"gymnasium's name of what is simulated (default {TASK})")
    parser.add_argument(
        "--robot",
        default="cart-pole",
        help="cart-pole, arm, an entry point of edgelink.robots, or package.module:factory",
    )
    parser.add_argument("--robot-rate-hz", type=_rate, help="control instants per second (default: the robot's own)")
    parser.add_argument(
        "--robot-option", action="append", default=[], metavar="NAME=VALUE", help="for the robot's code"
    )
    parser.add_argument(
        "--robot-set", action="append", default=[], metavar="NAME=VALUE", help="as deadman.link_timeout_s=0.3"
    )
    parser.add_argument(
        "--robot-tick-file",
        default=os.environ.get(TICK_FILE_VARIABLE),
        help="file on the robot's node for its tick counter; {rank} is the worker's",
    )
    parser.add_argument("--eval-episodes", type=_positive, default=16)
    parser.add_argument("--eval-every", type=_natural, default=0, metavar="ITERATIONS", help="0: before and after only")
    parser.add_argument("--checkpoint-dir", type=Path)
    parser.add_argument("--checkpoint-every", type=_positive, default=5, metavar="ITERATIONS")
    parser.add_argument("--keep-checkpoints", type=_natural, default=0, help="so many of this run; 0: all")
    parser.add_argument("--tensorboard", type=Path, metavar="DIRECTORY", help="write TensorBoard's files there")
    for settings in (FlowSettings, ElasticSettings):
        _add_fields(parser, settings)
    parser.add_argument(
        "--resume",
        nargs="?",
        const=RESUME,
        choices=(RESUME, RESUME_AUTO),
        help="go on from the newest checkpoint; auto: begin anew where there is none, end where nothing is left to do",
    )
    parser.add_argument("--report", type=Path, help="write a JSON report about what ran")
    parser.add_argument("--progress", type=Path, help="append a JSON line an iteration")
    parser.add_argument(
        "--stall-timeout-s",
        type=_rate,
        default=_stall_timeout_s(),
        help="give up after so long without progress (default 900, more where the network rides through long outages)",
    )
    values = vars(parser.parse_args(arguments))
    if values["resume"] and values["checkpoint_dir"] is None:
        parser.error("--resume needs --checkpoint-dir")
    if values["placement"] is None and os.environ.get(PLACEMENT_VARIABLE):
        values["placement"] = Path(os.environ[PLACEMENT_VARIABLE])
    values["run_id"] = os.environ.get(RUN_VARIABLE, "")
    values["attempt"] = int(os.environ.get(ATTEMPT_VARIABLE, "1"))
    values["robot_settings"] = _pairs(parser, "--robot-set", values.pop("robot_set"))
    values["robot_options"] = _pairs(parser, "--robot-option", values.pop("robot_option"))
    try:
        with_values(ControlSettings(values["robot"]), values["robot_settings"])
        values["task"] = Task(values["task"])
        values["flow"] = _taken(values, FlowSettings)
        values["elastic"] = _taken(values, ElasticSettings)
    except ValueError as error:
        parser.error(str(error))
    return Options(**values)


def _pairs(parser: argparse.ArgumentParser, option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    if any(not separator for _, separator, _ in pairs):
        parser.error(f"{option} wants NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _add_fields(parser: argparse.ArgumentParser, settings: Any) -> None:
    """An option for each field of a dataclass of settings."""
    for item in fields(settings):
        name = "--" + item.name.replace("_", "-")
        if isinstance(item.default, bool):
            parser.add_argument(name, action="store_true", help=item.metadata["help"])
        else:
            parser.add_argument(
                name, type=type(item.default), default=item.default, help=f"{item.metadata['help']} ({item.default})"
            )


def _taken(values: dict[str, Any], settings: type[T]) -> T:
    return settings(**{item.name: values.pop(item.name) for item in fields(settings)})  # type: ignore[arg-type]


def _stall_timeout_s() -> float:
    return max(_STALL_TIMEOUT_S, float(os.environ.get(RIDE_THROUGH_VARIABLE, "0")) + _STALL_AFTER_OUTAGE_S)


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in text.split(","))
    if unknown := [kind for kind in kinds if kind not in (SIMULATOR, ROBOT)]:
        raise argparse.ArgumentTypeError(f"unknown kind {unknown[0]!r}; known are {SIMULATOR} and {ROBOT}")
    return kinds
