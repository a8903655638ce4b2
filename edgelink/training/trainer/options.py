"""What the user asked for: a configuration file, settings on the command line, and options of this run.

``edgelink train [--config FILE] [options] [section.key=value …]``. The file has the sections below; it may be the very
file that has the ``cluster:`` section, which is not for us, as whatever else frameworks keep there. What stands on the
command line wins.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import os
import re
import secrets
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from edgelink.training.trainer.experience.environment import ROBOT, SIMULATOR
from edgelink.training.trainer.experience.simulator import TASK
from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.robot.deadman import DeadmanSettings
from edgelink.training.trainer.robot.settings import ControlSettings
from edgelink.training.trainer.setting import open_fields, setting, values
from edgelink.training.trainer.training import ElasticSettings

PLACEMENT_VARIABLE = "EDGELINK_PLACEMENT"
TICK_FILE_VARIABLE = "EDGELINK_ROBOT_TICK_FILE"
RESUME, RESUME_AUTO = "always", "auto"
RUN_VARIABLE = "EDGELINK_RUN_ID"  # the same in every attempt of one run
RIDE_THROUGH_VARIABLE = "EDGELINK_RIDE_THROUGH_S"  # how long an outage may be that the cluster rides through
_STALL_TIMEOUT_S = 900.0
_STALL_AFTER_OUTAGE_S = 600.0  # until TCP tries again (120 s at most), and what was to be done anyway
METRICS_FILE_VARIABLE = "EDGELINK_METRICS_FILE"  # where it may say what its steps were like
STEP_FILE_VARIABLE = "EDGELINK_STEP_FILE"  # where the driver may write how far it is
ATTEMPT_VARIABLE = "EDGELINK_ATTEMPT"  # 1, 2, … as `edgelink run` starts the driver again
_CLUSTER = "cluster"
_LARGEST_SEED = 2**63 - 1  # what torch takes
_SETTING = re.compile(r"[a-z_]+\.[\w.]+=")


@dataclass(frozen=True)
class RunSettings:
    """Section ``run``: how long, how often, from which seed."""

    iterations: int = setting(20, "updates of the policy, in all, also with --resume", at_least=1)
    seed: int = setting(0, "of networks, environments and sampling", at_least=0, at_most=_LARGEST_SEED)
    eval_episodes: int = setting(16, "episodes of each evaluation", at_least=1)
    eval_every: int = setting(0, "updates between two evaluations; 0: before and after only", at_least=0)
    checkpoint_every: int = setting(5, "updates between two checkpoints", at_least=1)
    keep_checkpoints: int = setting(5, "so many of this run are kept; 0: all", at_least=0)
    stall_timeout_s: float | None = setting(
        None, "give up after so many seconds without progress; default 900, more with a long ride_through", above=0
    )

    @property
    def patience_s(self) -> float:
        """``stall_timeout_s``, or what the network's own patience makes of it."""
        if self.stall_timeout_s is not None:
            return self.stall_timeout_s
        return max(_STALL_TIMEOUT_S, float(os.environ.get(RIDE_THROUGH_VARIABLE, "0")) + _STALL_AFTER_OUTAGE_S)


@dataclass(frozen=True)
class EnvOptions:
    """Section ``env``: what the env workers own."""

    task: str = setting(TASK, "gymnasium's name of what is simulated; package.module:Name-v0 imports the module first")
    options: dict[str, Any] = setting({}, "keyword arguments of gymnasium.make")
    modules: tuple[str, ...] = setting(
        (), "files and packages of yours with tasks or robots, on the head; workers get a copy to import"
    )
    kinds: tuple[str, ...] = setting(
        (SIMULATOR, ROBOT), "of env workers 0, 1, …, repeated when there are more", choices=(SIMULATOR, ROBOT)
    )
    per_worker: int = setting(8, "simulators, or rigs of a robot, of one env worker", at_least=1)


@dataclass(frozen=True)
class RobotOptions:
    """Section ``robot``: which robot env workers of kind robot have."""

    type: str = setting("cart-pole", "cart-pole, arm, an entry point of edgelink.robots, or package.module:factory")
    rate_hz: float | None = setting(None, "control instants per second; default: the robot's own", above=0)
    options: dict[str, str] = setting({}, "for the robot's code")


@dataclass(frozen=True)
class Config:
    """All sections."""

    run: RunSettings
    env: EnvOptions
    algorithm: Mapping[str, Any]  # of learning.settings.Settings, what was given; the rest is the run's
    flow: FlowSettings
    elastic: ElasticSettings
    robot: RobotOptions
    control: Mapping[str, Any]  # of robot.settings.ControlSettings, likewise
    deadman: DeadmanSettings


# What each section's keys are checked against.
SECTIONS: dict[str, type] = {
    "run": RunSettings,
    "env": EnvOptions,
    "algorithm": Settings,
    "flow": FlowSettings,
    "elastic": ElasticSettings,
    "robot": RobotOptions,
    "control": ControlSettings,
    "deadman": DeadmanSettings,
}


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    config: Config
    placement: Path | None
    checkpoint_dir: Path | None
    resume: str | None
    policy: Path | None
    report: Path | None
    progress: Path | None
    tensorboard: Path | None
    run_id: str
    attempt: int

    @property
    def how_to_go_on(self) -> str:
        """What to do after the run was stopped."""
        if self.checkpoint_dir is None:
            return "It saved nothing: with --checkpoint-dir DIR a run can go on with --resume"
        return f"The same command with --resume auto goes on from the newest checkpoint in {self.checkpoint_dir}"


def parse(arguments: Sequence[str]) -> Options:
    """Parse ``arguments``; ends the process with status 2 on mistakes, as argparse does, after naming all of them."""
    parser = argparse.ArgumentParser(
        prog="edgelink train",
        description="Train a policy on simulators and robots.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_settings_help(),
    )
    parser.add_argument("settings", nargs="*", metavar="section.key=value", help="see below")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML with these sections; a cluster: may be beside"
    )
    parser.add_argument("--placement", type=Path, help=f"resolved placement (default: ${PLACEMENT_VARIABLE})")
    parser.add_argument("--checkpoint-dir", type=Path)
    parser.add_argument(
        "--resume",
        nargs="?",
        const=RESUME,
        choices=(RESUME, RESUME_AUTO),
        help="go on from the newest checkpoint; auto: begin anew where there is none, end where nothing is left to do",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="begin with the networks of this checkpoint; the training is a new one",
    )
    parser.add_argument("--report", type=Path, help="write a JSON report about what ran")
    parser.add_argument("--progress", type=Path, help="append a JSON line an update")
    parser.add_argument("--tensorboard", type=Path, metavar="DIRECTORY", help="write TensorBoard's files there")
    # Taken out first: `--resume`, whose value may be left out, would take what follows it.
    known, unknown = parser.parse_known_args([argument for argument in arguments if not _SETTING.match(argument)])
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}\n  a setting is section.key=value, such as run.iterations=400")
    given = vars(known)
    given["settings"] += [argument for argument in arguments if _SETTING.match(argument)]
    if given["resume"] and given["checkpoint_dir"] is None:
        parser.error("--resume needs --checkpoint-dir")
    if given["policy"] is not None and not given["policy"].is_file():
        parser.error(f"--policy {given['policy']}: there is no such file; name a checkpoint-NUMBER-RUN.npz")
    if given["placement"] is None and os.environ.get(PLACEMENT_VARIABLE):
        given["placement"] = Path(os.environ[PLACEMENT_VARIABLE])
    file, settings = given.pop("config"), given.pop("settings")
    try:
        config = configuration(sections_of(file) if file else {}, settings)
    except TrainerError as error:
        _refuse(parser, error)
    run_id, attempt = os.environ.get(RUN_VARIABLE) or secrets.token_hex(8), int(os.environ.get(ATTEMPT_VARIABLE, "1"))
    return Options(config=config, run_id=run_id, attempt=attempt, **given)


def configuration(content: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """The configuration of ``content``, the sections of a file, with ``section.key=value`` on top.

    Raises:
        TrainerError: naming all mistakes.
    """
    problems: list[str] = []
    raw: dict[str, dict[str, Any]] = {}
    for name in SECTIONS:
        part = content.get(name) or {}
        if isinstance(part, Mapping):
            raw[name] = dict(part)
        else:
            problems.append(f"{name}: must be a section with keys, not {part!r}")
            raw[name] = {}
    for override in overrides:
        _override(raw, override, problems)
    checked = {name: values(kind, raw[name], name, problems) for name, kind in SECTIONS.items()}
    if not problems:
        try:
            # These two are completed later; what is wrong about them is told now.
            Settings(seed=0, total_iterations=1, **checked["algorithm"])
            ControlSettings("", **checked["control"])
            config = Config(
                run=RunSettings(**checked["run"]),
                env=EnvOptions(**checked["env"]),
                algorithm=checked["algorithm"],
                flow=FlowSettings(**checked["flow"]),
                elastic=ElasticSettings(**checked["elastic"]),
                robot=RobotOptions(**checked["robot"]),
                control=checked["control"],
                deadman=DeadmanSettings(**checked["deadman"]),
            )
            if config.flow.frame_stack == 1 or ROBOT not in config.env.kinds:
                return config
            problems.append(
                "flow.frame_stack: a robot's observations are not stacked; leave it at 1, or env.kinds at sim"
            )
        except ValueError as error:  # what only makes sense, or not, together
            problems.append(str(error))
    raise TrainerError("\n  ".join(["mistakes in the settings, which --help lists:", *problems]), exit_status=USAGE)


def _override(raw: dict[str, dict[str, Any]], override: str, problems: list[str]) -> None:
    from edgelink.training.trainer import strict_yaml

    path, separator, text = override.partition("=")
    name, _, key = path.partition(".")
    if not separator or not key:
        problems.append(f"{override!r} is not of the form section.key=value")
    elif name not in SECTIONS:
        problems.append(f"{path}: there is no section {name}; known are {', '.join(SECTIONS)}")
    else:
        try:
            value = strict_yaml.parse(text)
        except ValueError:  # also of 2025-13-01, which looks like a date
            value = text
        key, _, inner = key.partition(".")  # robot.options.name=value
        _, hint = open_fields(SECTIONS[name]).get(key, (None, None))
        # A text is what was typed, not what YAML makes of 0123, 1.10 or on. Nothing at all is left to be refused.
        if (hint == dict[str, str] and inner) or (hint is str and value is not None):
            value = text
        if inner:
            present = raw[name].get(key)
            raw[name][key] = {**(present if isinstance(present, Mapping) else {}), inner: value}
        else:
            raw[name][key] = value


def sections_of(path: Path) -> Mapping[str, Any]:
    """What the configuration file has.

    Raises:
        TrainerError: it cannot be read, or has a section that nobody knows.
    """
    from edgelink.training.trainer import strict_yaml

    try:
        content = strict_yaml.parse(path.read_text())
    except OSError as error:
        what = f"the configuration {path.absolute()} cannot be read: {error.strerror}"
        raise TrainerError(what, "--config takes the path of a file on this machine", exit_status=USAGE) from error
    except ValueError as error:
        raise TrainerError(f"the configuration {path} cannot be read: {error}", exit_status=USAGE) from error
    if not isinstance(content, Mapping):
        raise TrainerError(f"the configuration {path} has no sections", "see --help", exit_status=USAGE)
    unknown = [str(name) for name in content if name not in SECTIONS]
    if _CLUSTER in content:  # a framework keeps sections of its own beside it
        unknown = [
            name for name in unknown if name != _CLUSTER and difflib.get_close_matches(name, SECTIONS, cutoff=0.8)
        ]
    if unknown:
        what = f"{path}: there is no section {', '.join(unknown)}; known are {', '.join(SECTIONS)}"
        raise TrainerError(what, "see --help", exit_status=USAGE)
    return content


def _refuse(parser: argparse.ArgumentParser, error: TrainerError) -> NoReturn:
    parser.error(str(error))


def _settings_help() -> str:
    lines = ["settings, in FILE or as section.key=value:"]
    for name, kind in SECTIONS.items():
        lines += ["", f"{name}:"]
        for key, (one, _) in open_fields(kind).items():
            text = f"{key:<20} {one.metadata['meaning']} ({default_text(one)})"
            lines += textwrap.wrap(text, 78, initial_indent="  ", subsequent_indent=" " * 23)
    return "\n".join(lines)


def default_text(one: Any) -> str:
    """The default of a field, as one would write it in YAML."""
    default = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
    if default is None or default == "":
        return "not set"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return "[" + ", ".join(str(item) for item in default) + "]"
    return f"{default:g}" if isinstance(default, float) else str(default)
