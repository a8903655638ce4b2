"""``edgelink renew``: a new password of this node at the broker."""

from __future__ import annotations

import click

from edgelink.cli.layout import told_as_json
from edgelink.cli.options import json_option, timeout_option


@click.command("renew")
@timeout_option("how long to wait for the relay", "30s")
@json_option
def command(*, timeout_s: float, as_json: bool) -> None:
    """Give this node a new password at the relay's broker; the former one opens nothing any more.

    No token is needed, EasyTier and Ray are not touched. What was begun is finished by the daemon, also over restarts.
    Exit status 75: the relay has not answered in time.
    """
    from edgelink.cli.patience import call_here

    what = f"waiting for the relay to renew this node's password (at most {timeout_s:g} s)"
    renewed = call_here("POST", "/renew", {"timeout_s": timeout_s}, timeout_s=timeout_s + 10, what=what)
    if not told_as_json(renewed, as_json=as_json):
        click.echo(f"{renewed['hostname']} has a new password at the broker ({renewed['broker']})")
