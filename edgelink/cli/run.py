"""``edgelink run -- CMD``: wait for the nodes, then run CMD as the caller."""

from __future__ import annotations

from pathlib import Path

import click

from edgelink.cli.options import FILE, RunWishes, run_options


@click.command("run", context_settings={"ignore_unknown_options": True})
@run_options
@click.option(
    "--apps",
    "apps_file",
    type=FILE,
    help="run the programs that FILE names, each on its node, instead of CMD; needs no Ray",
    metavar="FILE",
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def command(*, wishes: RunWishes, apps_file: Path | None, argv: tuple[str, ...]) -> int:
    """Wait for the nodes, resolve the placement, run CMD here, exit with its code.

    CMD runs as the caller, in this directory and terminal, with the environment of a driver of this cluster, which
    `edgelink env --show -- CMD` lists. Exit
    status 69: a node was lost; 75: the nodes were not there in time, or do not reach each other over the overlay; 78:
    the cluster file cannot be resolved, or workers would miss a device or a path.

    With --apps, the programs of FILE run on the nodes that it names, supervised together; the exit status is that of
    the first that could not go on.
    """
    if apps_file is not None:
        from edgelink.cli.run_apps import run_apps

        if argv or wishes.cluster_file is not None or wishes.gang.nodes:
            raise click.UsageError("--apps goes without CMD, --cluster and --nodes: FILE names programs and nodes")
        if wishes.supervision.is_any:
            raise click.UsageError("--apps goes without --retries and --on-node-loss: FILE has `retries` and `restart`")
        return run_apps(apps_file, wishes.gang.timeout_s)
    if not argv:
        raise click.UsageError("Missing argument 'ARGV...'.")
    from edgelink.cli.driver_run import read_cluster_file, run_driver_here
    from edgelink.cli.step_down import step_down
    from edgelink.config.paths import Paths

    paths, cluster = Paths.from_environment(), read_cluster_file(wishes.cluster_file, argv)
    step_down(paths)
    return run_driver_here(paths, cluster, argv, wishes)
