"""``edgelink exec [NODE …] -- CMD``: run CMD where Ray's own commands work, here or on other nodes."""

from __future__ import annotations

import os
import shutil

import click

from edgelink.cli.env import command_environment
from edgelink.cli.step_down import step_down
from edgelink.config.paths import Paths
from edgelink.errors import UsageError
from edgelink.process.becoming import become

_ARGV = "edgelink.argv"


class _AfterDashes(click.Command):
    """Takes all words behind the first ``--`` as the command, options included."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            begin = args.index("--")
            ctx.meta[_ARGV], args = args[begin + 1 :], args[:begin]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "--", "CMD..."]


@click.command("exec", cls=_AfterDashes)
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@click.option("-i", "--interactive", "has_input", is_flag=True, help="give CMD on NODE what is typed or piped here")
@click.option("--cwd", help="the directory on NODE in which CMD runs; default: its user's home")
@click.pass_context
def command(ctx: click.Context, *, nodes: tuple[str, ...], has_input: bool, cwd: str | None) -> int:
    """Run a command in the environment that `edgelink env` prints, for example `edgelink exec -- ray status`.

    With NODE it runs on that node, as its Ray's user, and ends with this command: `edgelink exec edge-1 -- nvidia-smi`.
    Of several nodes each line begins with the node's name, and the exit status is the first that is not 0.
    """
    argv: list[str] = ctx.meta.get(_ARGV, [])
    if not argv:
        raise UsageError("there is no CMD", hint="write `edgelink exec -- CMD`, or `edgelink exec NODE -- CMD`")
    if nodes:
        from edgelink.cli.exec_remote import run_on

        step_down(Paths.from_environment())
        return run_on(nodes, argv, cwd=cwd, has_input=has_input)
    if has_input or cwd:
        raise UsageError("-i and --cwd go with NODE", hint="name a node, or leave them out")
    return _here(argv)


def _here(argv: list[str]) -> int:
    step_down(Paths.from_environment())
    environment = {**os.environ, **command_environment()}
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        raise click.UsageError(f"{argv[0]}: not found on PATH ({environment.get('PATH')})")
    try:
        become(program, argv, environment)
    except OSError as error:
        raise click.UsageError(f"{program} cannot be run: {error.strerror}; has a script its #! line?") from error
