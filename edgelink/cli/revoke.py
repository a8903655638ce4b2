"""``edgelink revoke``: put one node out of the network."""

from __future__ import annotations

import sys

import click

from edgelink.cli.layout import tell
from edgelink.cli.node_argument import NodeName
from edgelink.cli.options import hold_option, json_option


@click.command("revoke")
@click.argument("node", type=NodeName())
@hold_option
@click.option("--now", is_flag=True, help="no patience: the same as --hold 0")
@click.option("--all-tokens", is_flag=True, help="revoke every token that was made and not used, too")
@click.option("--yes", is_flag=True, help="do not ask")
@json_option
def command(*, node: str, hold_s: float, now: bool, all_tokens: bool, yes: bool, as_json: bool) -> None:
    """Put NODE (hostname or node id) out, for ever: off the broker at once, out of the overlay by a new secret.

    All other nodes get the new secret, and change to it together two seconds later, which costs each a pause of some
    seconds. A robot in motion may hold that up for as long as --hold says. Who is offline follows when it is back. Exit
    status 75: somebody is not on the new secret yet.
    """
    from edgelink.cli.registry import lease_path
    from edgelink.cli.relay_request import ask_registry
    from edgelink.cli.rotation_request import raise_for, rotation_request

    if not yes and sys.stdin.isatty():
        lease = ask_registry("GET", lease_path(node))["lease"]  # a mistyped name is told before the question
        who = f"{lease['hostname']} ({lease['role']}, {lease['overlay_ip']})" if lease else node
        tell(f"{who} is put out of the network for good: its key can never come back.", err=True)
        click.confirm("Go on?", abort=True, err=True)
    body = {"node": node, "hold_s": 0.0 if now else hold_s, "all_tokens": all_tokens}
    done = rotation_request("/revoke", body, as_json=as_json)
    if not as_json:
        click.echo(f"{node} is out of the network after {done['after_s']:.1f} s")
        tell("now make a backup: `edgelink registry backup`; the older ones still know that node", err=True)
    raise_for(done["behind"], f"{node} is out")
