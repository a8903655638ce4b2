"""``edgelink leave``: take this machine out of its network."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from edgelink.cli.layout import tell
from edgelink.cli.options import config_option, timeout_option


@click.command("leave")
@click.option("--yes", is_flag=True, help="do not ask")
@timeout_option("how long to wait for its processes")
@config_option
def command(*, yes: bool, timeout_s: float, config_path: Path | None) -> None:
    """Remove this machine from its network.

    Ends its daemon, Ray and EasyTier, puts back what was changed on the host, removes key and credentials. Logs and
    configuration stay. Refused (75) while a run is in progress. The relay is told, and keeps the lease until the
    operator frees it.
    """
    from edgelink.cli.foreground import show_warnings
    from edgelink.cli.patience import waiting_for
    from edgelink.cli.stopping import config_to_end_by, stop_node
    from edgelink.clock import SystemClock
    from edgelink.config import Paths
    from edgelink.daemon.leave import (
        forget_network,
        holder_elsewhere,
        lease_of,
        refuse_beside_container,
        refuse_to_leave,
        say_goodbye,
    )

    show_warnings()
    config, paths = config_to_end_by(config_path), Paths.from_environment()
    refuse_to_leave(config, paths, SystemClock())
    refuse_beside_container()
    lease, elsewhere = lease_of(paths), holder_elsewhere(paths)
    who = f"{lease.hostname} ({lease.overlay_ip})" if lease else "this machine"
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: give --yes")
        tell(f"{who} leaves its network, and its key and credentials in {paths.state} are removed.")
        click.confirm("Go on?", abort=True)
    for line in stop_node(config, paths, timeout_s):
        click.echo(line)
    with waiting_for("telling the relay"):
        is_known = say_goodbye(paths)
    forget_network(paths)
    tell(f"{who} has left; its logs are still in {paths.logs}")
    if elsewhere:
        tell(f"do not free its lease: {elsewhere}")
    elif lease is not None:
        free = f"`edgelink registry release {lease.hostname} --now` on the relay"
        if is_known:
            tell(f"its lease is kept for it until the operator frees it: {free}")
        else:  # it is away, or has revoked this machine
            tell(
                f"the relay could not be told: if it still keeps the lease, {free} frees it, and the head shows this "
                "machine as away until then",
                err=True,
            )
