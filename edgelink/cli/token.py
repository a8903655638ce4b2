"""``edgelink token``: on the relay, make and manage the tokens with which machines join."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import click

from edgelink.cli.options import Duration, Group, KeyValue, json_option
from edgelink.cli.relay_request import ask_registry


@click.group("token", cls=Group)
def command() -> None:
    """Create, list and revoke the tokens with which machines join (on the relay)."""


@command.command("create")
@click.option("--role", type=click.Choice(["edge", "head", "relay"]), default="edge", show_default=True)
@click.option("--ttl", "ttl_s", type=Duration(), default="1h", show_default=True, help="how long it may be used")
@click.option("--uses", type=click.IntRange(min=1), default=1, show_default=True, help="by how many machines")
@click.option("--hostname", help="the hostname that the machine gets  [default: its own]")
@click.option("--ip", help="the overlay IP that the machine gets  [default: the next free]")
@click.option("--rank", type=click.IntRange(min=0), help="the preferred node rank  [default: the next free]")
@click.option("--label", "labels", type=KeyValue(), multiple=True, help="key=value; may be repeated")
@click.option("--replaces", metavar="NODE", help="the machine takes the place of NODE: all of its lease, for good")
@click.option("--force", is_flag=True, help="also where NODE is online")
@json_option
def create(*, as_json: bool, labels: tuple[tuple[str, str], ...], **asked: Any) -> None:
    """Make a token; it is printed on stdout, once.

    With --replaces a machine that was re-imaged, or that is put in another one's place, gets the hostname, address,
    rank and labels of NODE. NODE's old key is put out of the network at that moment, for good.
    """
    answer = ask_registry("POST", "/tokens", {**asked, "labels": dict(labels)})
    if as_json:
        click.echo(json.dumps(answer, indent=2))
        return
    click.echo(answer["token"])
    verb = "bootstrap --join" if answer["role"] == "relay" else "join"
    click.echo(f"on the new machine:  edgelink {verb} <token>   (until {answer['expires_at']})", err=True)


@command.command("list")
@json_option
def show(*, as_json: bool) -> None:
    """List the tokens that were made, without their secrets."""
    tokens = ask_registry("GET", "/tokens")["tokens"]
    if as_json:
        click.echo(json.dumps(tokens, indent=2))
        return
    for token in tokens:
        click.echo(
            f"{token['token_id']}  {token['role']:<5} {token['state']:<8} uses left {token['uses_left']}  "
            f"until {token['expires_at']}"
        )


@command.command("revoke")
@click.argument("token_id")
def revoke(*, token_id: str) -> None:
    """Make a token useless; machines that joined with it stay."""
    ask_registry("DELETE", f"/tokens/{quote(token_id, safe='')}")
    click.echo(f"token {token_id} revoked")
