"""``edgelink run -- CMD``: wait for the nodes, then run CMD as the caller."""

from __future__ import annotations

import click

from edgelink.cli.options import RunWishes, run_options


@click.command("run", context_settings={"ignore_unknown_options": True})
@run_options
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def command(*, wishes: RunWishes, argv: tuple[str, ...]) -> int:
    """Wait for the nodes, resolve the placement, run CMD here, exit with its code.

    CMD runs as the caller, in this directory and terminal, with the environment of a driver of this cluster, which
    `edgelink env --show -- CMD` lists. Exit
    status 69: a node was lost; 75: the nodes were not there in time, or do not reach each other over the overlay; 78:
    the cluster file cannot be resolved, or workers would miss a device or a path.
    """
    from edgelink.cli.driver_run import read_cluster_file, run_driver_here
    from edgelink.cli.step_down import step_down
    from edgelink.config.paths import Paths

    paths, cluster = Paths.from_environment(), read_cluster_file(wishes.cluster_file, argv)
    step_down(paths)
    return run_driver_here(paths, cluster, wishes.gang, argv, wishes.supervision, wishes.environment, wishes.preflight)
