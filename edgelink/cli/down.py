"""``edgelink down``: stop this machine's service, and keep its place in the network."""

from __future__ import annotations

from pathlib import Path

import click

from edgelink.cli.layout import tell
from edgelink.cli.options import config_option, timeout_option


@click.command("down")
@timeout_option("how long to wait until everything is gone")
@config_option
def command(*, timeout_s: float, config_path: Path | None) -> None:
    """Stop this machine's daemon, Ray and EasyTier, and do not start them at boot. Lease, keys and logs stay.

    `edgelink up`, without a token, brings it back. Refused (75) while a run is in progress.
    """
    from edgelink.cli import service_steps
    from edgelink.cli.foreground import show_warnings
    from edgelink.cli.patience import waiting_for
    from edgelink.cli.stopping import config_to_end_by, stop_node
    from edgelink.clock import SystemClock
    from edgelink.config import Paths
    from edgelink.daemon.leave import lease_of, refuse_during_run
    from edgelink.service.installation import to_disable
    from edgelink.service.steps import do

    show_warnings()
    service_steps.require_root()
    service_steps.require_the_machines_own_node()
    machine, paths, config = service_steps.this_machine(), Paths.from_environment(), config_to_end_by(config_path)
    if paths.state.exists():
        refuse_during_run(config, paths, SystemClock())
    steps = to_disable(machine)
    with waiting_for("stopping this machine's daemon, Ray and EasyTier"):
        do(steps, machine)
    told = stop_node(config, paths, timeout_s)  # of a daemon that was started by hand, and what a dead one left
    for line in told:
        click.echo(line)
    lease = lease_of(paths)
    if lease is None:
        click.echo("down; this machine is in no network")
        return
    tell(f"{lease.hostname} is down, and keeps its place in the network ({lease.overlay_ip})")
    click.echo("`sudo edgelink up` brings it back")
