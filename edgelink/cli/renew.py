"""``edgelink renew``: a new password of this node at the broker."""

from __future__ import annotations

import json

import click

from edgelink.cli.options import Duration, json_option


@click.command("renew")
@click.option(
    "--timeout", "timeout_s", type=Duration(), default="30s", show_default=True, help="how long to wait for the relay"
)
@json_option
def command(*, timeout_s: float, as_json: bool) -> None:
    """Give this node a new password at the relay's broker; the former one opens nothing any more.

    No token is needed, EasyTier and Ray are not touched. What was begun is finished by the daemon, also over restarts.
    Exit status 75: the relay has not answered in time.
    """
    from edgelink.api.client import DaemonNotRunningError
    from edgelink.cli.patience import call
    from edgelink.config.paths import Paths

    paths = Paths.from_environment()
    body = {"timeout_s": timeout_s}
    what = f"waiting for the relay to renew this node's password (at most {timeout_s:g} s)"
    try:
        renewed = call(paths.node_socket, "POST", "/renew", body, timeout_s=timeout_s + 10, what=what)
    except DaemonNotRunningError:
        if not paths.bootstrap_socket.exists():
            raise
        renewed = call(paths.bootstrap_socket, "POST", "/renew", body, timeout_s=timeout_s + 10, what=what)
    if as_json:
        click.echo(json.dumps(renewed, indent=2))
    else:
        click.echo(f"{renewed['hostname']} has a new password at the broker ({renewed['broker']})")
