"""``edgelink exec -- CMD``: run CMD where Ray's own commands work."""

from __future__ import annotations

import os
import shutil
import signal

import click

from edgelink.cli.env import command_environment

_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # which a command, and a shell's every child, would inherit


@click.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def command(*, argv: tuple[str, ...]) -> None:
    """Run a command in the environment that `edgelink env` prints, for example `edgelink exec -- ray status`."""
    environment = {**os.environ, **command_environment()}
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise click.UsageError(f"{argv[0]}: not found on PATH ({environment.get('PATH')})")
    former = {number: signal.signal(number, signal.SIG_DFL) for number in _IGNORED_BY_PYTHON}
    try:
        os.execvpe(program, list(argv), environment)  # noqa: S606 - becomes the command, by purpose
    except OSError as error:
        for number, handler in former.items():
            signal.signal(number, handler)
        raise click.UsageError(f"{program} cannot be run: {error.strerror}; has a script its #! line?") from error
