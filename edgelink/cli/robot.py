"""``edgelink robot``: look at, stop and resume the robots of this machine. Needs neither Ray nor the head."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from edgelink.cli.layout import told_as_json
from edgelink.cli.options import Group, json_option, timeout_option
from edgelink.clock import SystemClock
from edgelink.errors import EdgelinkError, ExitCode
from edgelink.training.trainer.robot.directory import LOCK, SOCKET, is_commanded, known_directories
from edgelink.training.trainer.robot.latch import SUFFIX, read_latch
from edgelink.wording import printable

_ANSWER_TIMEOUT_S = 5.0
_LOOK_S = 0.1  # between two looks at whether a robot has stopped
_MOST_BYTES = 1024 * 1024  # with all the events that are told, in whatever script their messages are
_name_argument = click.argument("name", required=False)


@click.group("robot", cls=Group)
def command() -> None:
    """Show, stop and resume this machine's robots, which a training commands."""


@command.command("status")
@_name_argument
@json_option
def status(*, name: str | None, as_json: bool) -> int:
    """Show what each robot does now, and why it does not run.

    Exit status 0: all run.
    """
    robots = [_look_at(robot) for robot in _robots(name)]
    if not told_as_json(robots, as_json=as_json):
        for robot in robots:
            click.echo(_told(robot))
    return ExitCode.OK if all(robot["state"] == "running" for robot in robots) else ExitCode.FAILED


@command.command("stop")
@_name_argument
@timeout_option("how long to wait for the robot to confirm that it has stopped", "10s")
def stop(*, name: str | None, timeout_s: float) -> None:
    """Bring a robot to its safe stop; only `robot resume` lets it go on.

    Exit status 0: it has stopped; 1: it has not confirmed that in time, and may be moving.
    """
    found = _one(name, prefers_commanded=True)
    click.echo(_told(_stopped(found, timeout_s) if _is_commanded(found) else _look_at(found)))


@command.command("resume")
@_name_argument
def resume(*, name: str | None) -> int:
    """Let a robot go on that was held or stopped. What is still wrong, such as the link, is not overruled.

    Exit status 0: it goes on, or may in the next training; 75: it does not run yet.
    """
    found = _one(name)
    if not _is_commanded(found):
        (found.parent / f"{found.name}{SUFFIX}").unlink(missing_ok=True)
        click.echo(f"robot {found.name}: the next training that has it may command it")
        return ExitCode.OK
    click.echo(_told(robot := _tell(found, "resume")))
    for other in sorted(_stopped_and_away(found.parent)):  # which would hold it at its next start
        click.echo(_told(_look_at(other)))
    return ExitCode.OK if robot["state"] == "running" else ExitCode.TRY_AGAIN


@command.command("export")
@click.argument("recordings", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "target", required=True, type=click.Path(path_type=Path), help="directory of the new dataset")
@click.option("--task", default="", help="what the robot was to do, in words")
@click.option("--video", "as_video", is_flag=True, help="pictures as a video, which is smaller and loses detail")
@click.option("--python", default=sys.executable, help="the interpreter that has lerobot")
def export(*, recordings: tuple[Path, ...], target: Path, task: str, as_video: bool, python: str) -> None:
    """Write recordings as a LeRobot dataset, by LeRobot's own library."""
    options = ["--video"] if as_video else []
    sources = [str(path.absolute()) for path in recordings]
    _become(python, "robot-export", *options, "--", str(target.absolute()), task, *sources)


@command.command("replay")
@click.argument("source", type=click.Path(exists=True, path_type=Path))
@click.argument("settings", nargs=-1, metavar="[section.key=value]...")
@click.option("--episode", type=click.IntRange(min=0), default=0, show_default=True, help="which, counted from 0")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML with sections as for `edgelink train`",
)
@click.option("--python", default=sys.executable, help="the interpreter that has the robot's code, and lerobot")
@json_option
def replay(
    *, source: Path, settings: tuple[str, ...], episode: int, config: Path | None, python: str, as_json: bool
) -> None:
    """Command a robot again as in an episode of a recording or dataset.

    Limits and deadman are as in a training: of robot.*, control.* and deadman.*; robot.type, where it is another one
    than SOURCE says. Ends with a safe stop. Exit status 0: all of the episode was commanded.
    """
    options = [f"--config={config.absolute()}"] if config else []
    options += ["--json"] if as_json else []
    _become(python, "robot-replay", *options, "--", str(source.absolute()), str(episode), *settings)


def _become(python: str, *arguments: str) -> NoReturn:
    """A program of the trainer's, by an interpreter that need not have EdgeLink, in this process' place."""
    from edgelink.cli.train import TRAINER

    try:
        os.execvp(python, [python, str(TRAINER), *arguments])  # noqa: S606
    except OSError as error:
        raise EdgelinkError(f"{python} cannot be run: {error.strerror}", hint="correct --python") from error


def _robots(name: str | None) -> list[Path]:
    """Each as its directory and its name: those that are commanded, and those that a person has stopped."""
    found = []
    for directory in known_directories():
        try:
            here = {_robot(path, suffix) for suffix in (LOCK, SUFFIX) for path in directory.glob(f"*{suffix}")}
        except PermissionError:  # another user's, whose robots these are
            continue
        found += sorted(here)
    # Who names one does not wait for what other users may have put there.
    chosen = [robot for robot in found if name in (None, robot.name) and _is_there(robot)]
    if chosen:
        return chosen
    names = ", ".join(dict.fromkeys(printable(robot.name) for robot in found if _is_there(robot)))
    wanted = f"no robot {name} of yours" if name else "no robot of yours"
    raise EdgelinkError(
        f"{wanted} is on this machine; there is {names or 'none'}",
        hint="a robot is there while a training has it; those of another user are seen with sudo",
    )


def _is_there(robot: Path) -> bool:
    return _is_commanded(robot) or _latched(robot) is not None


def _stopped_and_away(directory: Path) -> list[Path]:
    """Robots that no training has, and that a person has stopped."""
    here = [_robot(path, SUFFIX) for path in directory.glob(f"*{SUFFIX}")]
    return [robot for robot in here if not _is_commanded(robot) and _latched(robot)]


def _robot(path: Path, suffix: str) -> Path:
    return path.with_name(path.name.removesuffix(suffix))


def _is_commanded(robot: Path) -> bool:
    return is_commanded(robot.parent, robot.name)


def _latched(robot: Path) -> dict[str, str] | None:
    """The stop that holds whatever training comes, if there is one."""
    return read_latch(robot.parent / f"{robot.name}{SUFFIX}")


def _one(name: str | None, *, prefers_commanded: bool = False) -> Path:
    found = _robots(name)
    if name is None and prefers_commanded:  # who has no time to name it does not mean one that no training has
        found = list(filter(_is_commanded, found)) or found
    if len(found) == 1:
        return found[0]
    names = {robot.name for robot in found}
    if len(names) == len(found):
        raise click.UsageError(f"which one? {', '.join(printable(robot.name) for robot in found)}")
    from edgelink.api.server import user_name

    whose = ", ".join(f"{printable(robot.name)} of {user_name(robot.parent.stat().st_uid)}" for robot in found)
    raise click.UsageError(f"several users have a robot of that name: {whose}; say it as its user (sudo -u USER)")


def _stopped(robot: Path, timeout_s: float) -> dict[str, Any]:
    """A robot that is told to stop, once it has. Says at once, and at each change, what it does instead.

    Raises:
        EdgelinkError: it has not confirmed that in time, or nobody is left who could.
    """
    clock, word, said = SystemClock(), "stop", ""
    ends_s = clock.monotonic_s() + timeout_s
    while True:
        try:
            found, word = _tell(robot, word), "status"
        except EdgelinkError as error:  # of a stop: it is said again, for it may not have been heard
            found = {"name": robot.name, "state": "unknown", "error": error.message}
        if _has_stopped(found):
            return found
        if not (is_there := _is_commanded(robot)):
            if word == "status" and _has_ended_stopped(robot):
                return _look_at(robot)
            found = {"name": robot.name, "state": "unknown", "error": f"robot {robot.name}: its processes have ended"}
        if found["state"] != said:
            said = found["state"]
            click.echo(_told(found), err=True)
        if not is_there or said == "dead" or clock.monotonic_s() >= ends_s:
            why = found.get("error") or ("its stop() fails" if found.get("stop_fails") else f"it is {said}")
            raise EdgelinkError(
                printable(f"robot {robot.name} has not confirmed that it has stopped: {why}"),
                hint="it may be moving: use the robot's own stop; then look at `edgelink robot status`",
            )
        clock.block(_LOOK_S)


def _has_stopped(robot: dict[str, Any]) -> bool:
    """And goes on only when a person says so, or never."""
    lasts = robot.get("needs_a_person", True) or robot.get("cause") in ("closing", "worker")
    return robot["state"] == "stopped" and not robot.get("stop_fails") and bool(lasts)


def _has_ended_stopped(robot: Path) -> bool:
    """Of one that had heard the stop: its run ended in order meanwhile, which removes its socket last, and what was
    written down is no worse than that stop."""
    is_in_order = not (robot.parent / f"{robot.name}{SOCKET}").exists()
    return is_in_order and (_latched(robot) or {}).get("cause") == "person"


def _look_at(robot: Path) -> dict[str, Any]:
    """A robot that does not answer hides no other."""
    if not _is_commanded(robot):
        stop = _latched(robot) or {"time": "?", "cause": "?"}  # resumed in this very moment
        told = (
            f"robot {robot.name}: stopped since {stop['time']}, because of: {stop['cause']}; no training has it, and "
            f"none moves it, whatever its name is then, before `edgelink robot resume {robot.name}`"
        )
        return {"name": robot.name, "state": "stopped", "needs_a_person": True, "stop": stop, "error": told}
    try:
        return _tell(robot, "status")
    except EdgelinkError as error:
        return {"name": robot.name, "state": "unknown", "error": f"{error}; {error.hint}"}


def _tell(robot: Path, word: str) -> dict[str, Any]:
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(_ANSWER_TIMEOUT_S)
            link.connect(str(robot.parent / f"{robot.name}{SOCKET}"))
            link.sendall(f"{word}\n".encode())
            answer = json.loads(_line(link))
            if not isinstance(answer, dict) or "state" not in answer:
                raise ValueError("that is no answer")
    except (OSError, ValueError) as error:
        raise EdgelinkError(
            f"robot {robot.name} does not answer: {error}",
            hint="it is being started, or its attendant has died and it comes to rest; use the robot's own stop",
        ) from error
    return {"name": robot.name, **answer}


def _line(link: socket.socket) -> bytes:
    """What comes until the end of a line. Raises TimeoutError, ValueError: too late, or too much."""
    clock, found = SystemClock(), b""
    deadline_s = clock.monotonic_s() + _ANSWER_TIMEOUT_S
    while not found.endswith(b"\n"):
        left_s = deadline_s - clock.monotonic_s()
        if left_s <= 0 or len(found) > _MOST_BYTES:
            raise TimeoutError("timed out")
        link.settimeout(left_s)
        if not (part := link.recv(4096)):
            break
        found += part
    return found


def _told(robot: dict[str, Any]) -> str:
    """For a terminal: what other users' files and processes say is in it."""
    try:
        return printable(_in_words(robot))
    except (LookupError, TypeError, ValueError):  # of an attendant of another version
        return printable(f"robot {robot['name']}: {robot['state']}; --json has what else it says")


def _in_words(robot: dict[str, Any]) -> str:
    if "error" in robot:
        return str(robot["error"])
    lines = [f"robot {robot['name']} ({robot['robot']}): {robot['state']}{_why(robot)}"]
    lines.append(
        f"  {robot['rate_hz']:g} Hz, {robot['ticks']} instants, {robot['missed']} missed, late by "
        f"{_us(robot['lateness_p99_us'])} (99 %), {_us(robot['lateness_max_us'])} at most; {robot['notes'][0]}"
    )
    newest = robot["newest_policy_version"]
    newer = f" ({newest} is here and being copied)" if newest > robot["policy_version"] else ""
    lines.append(
        f"  link heard {_s(robot['link_age_s'])} ago, policy {robot['policy_version']} came "
        f"{_s(robot['policy_age_s'])} ago{newer}; "
        f"{robot['holds']} holds, {robot['stops']} stops, {robot['resumes']} times resumed"
    )
    if stop := robot["stop"]:
        lines.append(f"  since {stop['time']}, because of: {stop['cause']}; it stays stopped in other trainings, too")
    if robot["stop_error"]:
        what = "but another" if robot["stop"] else "if it has to be stopped, another"
        lines.append(f"  {what} training would not know, for it cannot be written down: {robot['stop_error']}")
    if robot["recording_error"]:
        lines.append(f"  nothing is recorded any more: {robot['recording_error']}")
    if robot["stop_fails"]:
        lines.append(f"  it may be moving: {robot['message']}; use the robot's own stop")
    if lost := robot["lost_recorded_steps"]:
        lines.append(f"  {robot['recorded_steps']} steps recorded, {lost} lost: the recording is too slow")
    return "\n".join(lines)


def _why(robot: dict[str, Any]) -> str:
    own_stop = "it may be moving; use the robot's own stop"
    match robot["state"]:
        case "running":
            return ""
        case "stopping":
            return f": stop() has not returned for {_s(robot['stopping_for_s'])}: {own_stop}"
        case "stalled":
            return f": its code has not come back for {_s(robot['heartbeat_age_s'])}; stop() was called beside it"
        case "silent":
            return f": its process has stood still for {_s(robot['heartbeat_age_s'])}: {own_stop}"
        case "dead":
            return f": its control process has ended: {own_stop}"
    still = "" if robot["hindered_by"] in ("none", "person") else f"; still wrong: {robot['hindered_by']}"
    person = "; `edgelink robot resume` lets it go on" if robot["needs_a_person"] and not still else ""
    return f", because of: {robot['cause']}{still}{person}"


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:g} µs"


def _s(value: float | None) -> str:
    return "–" if value is None else f"{value:g} s"
