"""``edgelink env``: the environment in which Ray's own commands work on this node."""

from __future__ import annotations

import json
import shlex
from typing import Any

import click

from edgelink.api.client import call
from edgelink.cli.options import json_option
from edgelink.config.paths import Paths


@click.command("env")
@json_option
def command(*, as_json: bool) -> None:
    """Print the environment in which plain `ray status` and friends work here.

    Use it as:  eval "$(edgelink env)"
    """
    variables = command_environment()
    if as_json:
        click.echo(json.dumps(variables, indent=2))
        return
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")


def command_environment() -> dict[str, str]:
    """The variables, from the daemon that knows them; names a token's file, never a secret."""
    answer: Any = call(Paths.from_environment().node_socket, "GET", "/environment")
    return dict(answer["environment"])
