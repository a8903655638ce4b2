"""``edgelink edge``: the edge daemon."""

from __future__ import annotations

from pathlib import Path

import click

from edgelink.cli.options import (
    config_option,
    hostname_option,
    labels_option,
    no_ray_option,
    read_token,
    token_file_option,
    verbose_option,
)


@click.command("edge")
@token_file_option
@hostname_option
@labels_option
@no_ray_option
@config_option
@verbose_option
def command(
    *,
    token_file: str | None,
    hostname: str | None,
    labels: tuple[tuple[str, str], ...],
    no_ray: bool,
    config_path: Path | None,
    verbose: bool,
) -> None:
    """Run the edge daemon: overlay, then Ray, where it is not told to do without.

    With --token-file a machine that is not enrolled yet enrols first; one that is ignores it.
    """
    from edgelink.cli import daemon
    from edgelink.cli.daemon_threads import run_daemon
    from edgelink.clock import SystemClock
    from edgelink.config.load import override
    from edgelink.daemon.edge import run_edge

    config, paths = daemon.prepare(config_path, verbose=verbose)
    if no_ray:
        config = override(config, {"ray": {"enabled": False}})
    enrolment = None
    if not paths.membership.exists():
        enrolment = daemon.enrolment(read_token(None, token_file, required=False), hostname, labels, config)
    run_daemon(run_edge(config, paths, SystemClock(), enrolment))
