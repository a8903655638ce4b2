"""``edgelink join``: enrol this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from edgelink.cli.layout import say, tell
from edgelink.cli.options import (
    config_option,
    hostname_option,
    labels_option,
    read_token,
    timeout_option,
    token_file_option,
    verbose_option,
)

if TYPE_CHECKING:
    from edgelink.protocol.payloads import Lease


@click.command("join")
@click.argument("token", required=False)
@token_file_option
@hostname_option
@labels_option
@click.option(
    "--service",
    is_flag=True,
    help="have systemd run its daemon from now on: install the unit, start it, wait until this node is Ready",
)
@timeout_option("how long --service waits")
@config_option
@verbose_option
def command(
    *,
    token: str | None,
    token_file: str | None,
    hostname: str | None,
    labels: tuple[tuple[str, str], ...],
    service: bool,
    timeout_s: float,
    config_path: Path | None,
    verbose: bool,
) -> None:
    """Enrol this machine with TOKEN: it gets its address, rank and secrets.

    TOKEN is asked for on a terminal; - reads it from stdin. The same token again gives the same lease. With --service,
    exit status 75 says that the node is not Ready yet; its service goes on trying.
    """
    from edgelink.cli import daemon
    from edgelink.cli.foreground import show_warnings
    from edgelink.cli.patience import waiting_for
    from edgelink.clock import SystemClock
    from edgelink.config import Paths, load_config
    from edgelink.member.join import join
    from edgelink.service.installation import VERBS

    machine = None
    if service:
        from edgelink.cli import service_steps

        machine = service_steps.require_systemd()
        service_steps.require_startable(machine, ("head", "edge"))
    show_warnings(verbose=verbose)
    config = load_config(config_path)
    daemon.require_network_administrator(config)
    enrolment = daemon.enrolment(read_token(token, token_file), hostname, labels, config)
    assert enrolment is not None  # read_token does not return without a token
    try:
        with waiting_for(f"asking the relay at {', '.join(enrolment.token.addresses)} for this machine's place"):
            lease = asyncio.run(join(enrolment, config, Paths.from_environment(), SystemClock()))
    except KeyboardInterrupt:  # the registry gives a machine the same lease for the same token
        say("stopped; the token is still good: run the same command again")
        raise
    tell(f"joined as {described(lease)}")
    if machine is None:
        click.echo(f"now run:  edgelink {lease.role.value}", err=True)
        return
    roles, steps = service_steps.installing(machine, VERBS[lease.role], config_path, force=False)
    service_steps.apply(steps, machine, roles)
    service_steps.start(machine, roles, timeout_s)


def described(lease: Lease) -> str:
    """Return this machine's place in words."""
    rank = "none" if lease.preferred_rank is None else str(lease.preferred_rank)
    return f"{lease.hostname}: overlay IP {lease.overlay_ip}, preferred node rank {rank}"
