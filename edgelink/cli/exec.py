"""``edgelink exec -- CMD``: run CMD where Ray's own commands work."""

from __future__ import annotations

import os
import shutil

import click

from edgelink.cli.env import command_environment
from edgelink.cli.step_down import step_down
from edgelink.config.paths import Paths
from edgelink.process.becoming import become


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def command(*, argv: tuple[str, ...]) -> None:
    """Run a command in the environment that `edgelink env` prints, for example `edgelink exec -- ray status`."""
    step_down(Paths.from_environment())
    environment = {**os.environ, **command_environment()}
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise click.UsageError(f"{argv[0]}: not found on PATH ({environment.get('PATH')})")
    try:
        become(program, argv, environment)
    except OSError as error:
        raise click.UsageError(f"{program} cannot be run: {error.strerror}; has a script its #! line?") from error
