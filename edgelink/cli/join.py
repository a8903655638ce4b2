"""``edgelink join``: enrol this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from edgelink.cli.options import (
    config_option,
    hostname_option,
    labels_option,
    read_token,
    token_file_option,
    verbose_option,
)


@click.command("join")
@click.argument("token", required=False)
@token_file_option
@hostname_option
@labels_option
@config_option
@verbose_option
def command(
    *,
    token: str | None,
    token_file: str | None,
    hostname: str | None,
    labels: tuple[tuple[str, str], ...],
    config_path: Path | None,
    verbose: bool,
) -> None:
    """Enrol this machine with TOKEN (- reads it from stdin): it gets its address, rank and secrets.

    Doing it again with the same token gives the same lease.
    """
    from edgelink import log
    from edgelink.cli import daemon
    from edgelink.clock import SystemClock
    from edgelink.config import Paths, load_config
    from edgelink.roles.join import join

    log.configure(verbose=verbose, quiet=True)
    config = load_config(config_path)
    daemon.require_network_administrator(config)
    enrolment = daemon.enrolment(read_token(token, token_file), hostname, labels, config)
    assert enrolment is not None  # read_token does not return without a token
    lease = asyncio.run(join(enrolment, config, Paths.from_environment(), SystemClock()))
    rank = "none" if lease.preferred_rank is None else str(lease.preferred_rank)
    click.echo(f"joined as {lease.hostname}: overlay IP {lease.overlay_ip}, preferred node rank {rank}")
    click.echo(f"now run:  edgelink {lease.role.value}", err=True)
