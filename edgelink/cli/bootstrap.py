"""``edgelink relay``: the relay daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from edgelink.cli.options import config_option, hostname_option, read_token, token_file_option, verbose_option


@click.command("bootstrap")
@click.option("--network-name", help="EasyTier network name  [default: edgelink]")
@click.option("--cidr", help="overlay network, /16 to /28  [default: 10.10.0.0/24]")
@click.option("--overlay-ip", help="the relay's overlay IP  [default: the first of the network]")
@click.option("--device", help="name of the overlay device  [default: et0]")
@click.option("--listener", "listeners", multiple=True, help="EasyTier listener URL; may be repeated")
@click.option(
    "--advertise", multiple=True, metavar="HOST", help="public address or DNS name that nodes dial; may be repeated"
)
@click.option("--broker-port", type=click.IntRange(1, 65535), help="port of the MQTT broker  [default: 8883]")
@click.option(
    "--import-secret",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="take over a network that was set up by hand: FILE holds its EasyTier secret",
)
@click.option(
    "--join",
    is_flag=False,
    flag_value="",
    metavar="[TOKEN]",
    help="be an additional relay of the network that TOKEN is for; - reads it from stdin",
)
@token_file_option
@hostname_option
@config_option
@verbose_option
def command(
    *,
    config_path: Path | None,
    verbose: bool,
    import_secret: Path | None,
    join: str | None,
    token_file: str | None,
    hostname: str | None,
    device: str | None,
    **relay: Any,
) -> None:
    """Run the relay: the first start makes the network, later ones go on with it.

    A network's name, CIDR and relay IP are settled by the first start.

    With --join this machine becomes one more relay of a network that is there: it carries the overlay's traffic, too,
    and has no registry. Later starts need no token.
    """
    from edgelink.cli import daemon
    from edgelink.cli.daemon_threads import run_daemon
    from edgelink.clock import SystemClock
    from edgelink.config.load import override
    from edgelink.daemon.relays import is_additional_relay, run_relay
    from edgelink.errors import TokenError

    config, paths = daemon.prepare(config_path, verbose=verbose)
    relay["easytier_listeners"] = relay.pop("listeners")
    config = override(config, {"relay": relay, "overlay": {"device": device}})
    if hostname is not None:
        config = config.model_copy(update={"hostname": daemon.own_hostname(hostname, config)})
    enrolment = None
    if join is not None:
        if import_secret is not None:
            raise click.UsageError("--import-secret is for the first relay; an additional one gets its secrets")
        # A daemon that is started anew reads its token once more, and that may be gone: who has joined needs none.
        has_joined = is_additional_relay(paths)
        try:
            token = read_token(join or None, token_file, required=not has_joined)
            enrolment = daemon.enrolment(token, hostname, (), config)
        except (click.UsageError, TokenError):
            if not has_joined:
                raise
    run_daemon(run_relay(config, paths, SystemClock(), import_secret, enrolment))
