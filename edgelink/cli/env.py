"""``edgelink env``: the environment in which Ray's own commands work on this node."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgelink.cli.layout import told_as_json
from edgelink.cli.options import framework_options, json_option
from edgelink.cli.patience import call
from edgelink.config.paths import Paths
from edgelink.process import import_hook

if TYPE_CHECKING:
    from edgelink.cli.driver_environment import EnvironmentWishes


@click.command("env", context_settings={"ignore_unknown_options": True})
@json_option
@click.option("--show", is_flag=True, help="on the head: what of this environment CMD would get, and why")
@click.option("--ros", is_flag=True, help="ROS 2's variables instead: rmw_zenoh over the overlay, by the head's router")
@framework_options
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    as_json: bool,
    show: bool,
    ros: bool,
    framework: str | None,
    given: tuple[tuple[str, str | None], ...],
    argv: tuple[str, ...],
) -> None:
    """Print the environment in which plain `ray status` and Ray's other tools work here.

    Use it as:  eval "$(edgelink env)".  With --show, list what `edgelink run -- CMD` would pass to CMD, drop and set.
    """
    if ros and (show or argv or framework or given):
        raise click.UsageError("--ros goes with --json only")
    if show:
        from edgelink.cli.driver_environment import EnvironmentWishes

        _show(EnvironmentWishes(framework, given), argv, as_json=as_json)
        return
    if argv or framework or given:
        raise click.UsageError("CMD, --framework and --env go with --show")
    variables = _ros_environment() if ros else command_environment()
    if told_as_json(variables, as_json=as_json):
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def command_environment() -> dict[str, str]:
    """The variables, from the daemon that knows them; names a token's file, never a secret.

    What the caller finds on its own PATH, and reaches without a proxy, stays so.
    """
    answer: Any = call(Paths.from_environment().node_socket, "GET", "/environment")
    variables = dict(answer["environment"])
    if (path := os.environ.get("PATH")) and (python := variables.get("EDGELINK_RAY_PYTHON")):  # else it has no Ray
        variables["PATH"] = _joined(":", str(Path(python).parent), path)
    if hook := variables.get(import_hook.HOOK):
        variables["PYTHONPATH"] = import_hook.in_front(hook, os.environ.get("PYTHONPATH", ""))
    if direct := variables.get("no_proxy"):
        own = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        for name in ("no_proxy", "NO_PROXY"):  # which of the two is read differs between libraries
            variables[name] = _joined(",", os.environ.get(name) or own, direct)
    return variables


def _ros_environment() -> dict[str, str]:
    from edgelink.cli.members import members_here
    from edgelink.cli.ros_environment import OVERRIDE, ros_environment

    return ros_environment(members_here(), os.environ.get(OVERRIDE, ""))


def _joined(separator: str, *lists: str) -> str:
    """Each entry once, the first of these lists first."""
    return separator.join(dict.fromkeys(entry for each in lists if each for entry in each.split(separator)))


def _show(wishes: EnvironmentWishes, argv: tuple[str, ...], *, as_json: bool) -> None:
    from edgelink.cli.driver_environment import driver_environment
    from edgelink.cli.run_directory import present_directory
    from edgelink.training.framework import framework_of

    detected = framework_of(wishes.framework, argv, present_directory())
    granted: Any = call(Paths.from_environment().node_socket, "GET", "/driver-environment")
    decisions = driver_environment(granted, detected.framework, wishes).decisions
    if as_json:
        answer = {"framework": detected.framework.name, "why": detected.why}
        click.echo(json.dumps({**answer, "variables": [each.to_dict() for each in decisions]}, indent=2))
        return
    click.echo(str(detected))
    for each in sorted(decisions, key=lambda each: each.fate):
        shown = each.to_dict()
        assigned = f"={shown['value']}" if "value" in shown else ""
        if "variables" in shown:
            assigned = f" of {', '.join(shown['variables']) or 'no variable'}"
        click.echo(f"{each.fate:8}{each.name}{assigned}  ({each.why})")
