"""``edgelink run -- CMD``: wait for the nodes, then run CMD as the caller."""

from __future__ import annotations

from pathlib import Path

import click

from edgelink.cli.options import cluster_option, framework_options, gang_options, supervision_options


@click.command("run", context_settings={"ignore_unknown_options": True})
@cluster_option
@gang_options
@framework_options
@supervision_options
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    *,
    cluster_file: Path | None,
    timeout_s: float,
    nodes: tuple[str, ...],
    as_json: bool,
    framework: str | None,
    given: tuple[tuple[str, str | None], ...],
    retries: int | None,
    on_node_loss: str,
    argv: tuple[str, ...],
) -> int:
    """Wait for the nodes, resolve the placement, run CMD here, exit with its code.

    CMD runs as the caller, in this directory and terminal, with the environment of a driver of this cluster, which
    `edgelink env --show -- CMD` lists. Exit
    status 69: a node was lost; 75: the nodes were not there in time; 78: the cluster file cannot be resolved.
    """
    from edgelink.cli.driver_environment import EnvironmentWishes
    from edgelink.cli.driver_run import run_driver_here
    from edgelink.cli.waiting import GangWishes
    from edgelink.config.paths import Paths
    from edgelink.training.supervision import Supervision

    supervision = Supervision.of(retries, on_node_loss)
    wishes = EnvironmentWishes(framework, given)
    gang = GangWishes(timeout_s, nodes, as_json)
    return run_driver_here(Paths.from_environment(), cluster_file, gang, argv, supervision, wishes)
