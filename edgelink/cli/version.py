"""``edgelink version``."""

from __future__ import annotations

import click

from edgelink import __version__


@click.command("version")
def command() -> None:
    """Print EdgeLink's version."""
    click.echo(__version__)
