"""``edgelink completion SHELL``: the script by which a shell completes commands, options and the names of nodes."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command("completion")
@click.argument("shell", type=click.Choice(_SHELLS))
def command(*, shell: str) -> None:
    """Print the completion script for SHELL. In bash: source <(edgelink completion bash)"""
    click.echo(script(shell))


def script(shell: str) -> str:
    """For ``bash``, ``zsh`` or ``fish``."""
    from edgelink.cli.main import edgelink

    found = get_completion_class(shell)
    assert found is not None
    return found(edgelink, {}, "edgelink", "_EDGELINK_COMPLETE").source()
