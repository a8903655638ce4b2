"""``edgelink run -- CMD``: wait for the nodes, then run CMD as the caller."""

from __future__ import annotations

from pathlib import Path

import click

from edgelink.cli.options import cluster_option, timeout_option


@click.command("run", context_settings={"ignore_unknown_options": True})
@cluster_option
@timeout_option
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def command(*, cluster_file: Path | None, timeout_s: float, argv: tuple[str, ...]) -> int:
    """Wait for the nodes, resolve the placement, run CMD here, exit with its code.

    CMD runs as the caller, in this directory and terminal, with the environment of a driver of this cluster. Exit
    status 75: the nodes were not there in time; 78: the cluster file cannot be resolved.
    """
    from edgelink.cli.driver_run import run_driver_here
    from edgelink.config.paths import Paths

    return run_driver_here(Paths.from_environment(), cluster_file, timeout_s, argv)
