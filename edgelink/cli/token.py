"""``edgelink token``: on the relay, make and manage the tokens with which machines join."""

from __future__ import annotations

import sys
from datetime import datetime
from typing import Any
from urllib.parse import quote

import click

from edgelink.cli.layout import say, tell, told_as_json
from edgelink.cli.options import DURATION, KEY_VALUE, Group, json_option
from edgelink.cli.relay_request import ask_registry
from edgelink.duration import in_words


@click.group("token", cls=Group)
def command() -> None:
    """Create, list and revoke the tokens with which machines join (on the relay)."""


@command.command("create")
@click.option("--role", type=click.Choice(["edge", "head", "relay"]), default="edge", show_default=True)
@click.option("--ttl", "ttl_s", type=DURATION, default="1h", show_default=True, help="how long the token is good")
@click.option("--uses", type=click.IntRange(min=1), default=1, show_default=True, help="for how many machines")
@click.option("--hostname", help="the hostname that the machine gets  [default: its own]")
@click.option("--ip", help="the overlay IP that the machine gets  [default: the next free]")
@click.option("--rank", type=click.IntRange(min=0), help="the preferred node rank  [default: the next free]")
@click.option("--label", "labels", type=KEY_VALUE, multiple=True, help="key=value; may be repeated")
@click.option("--replaces", metavar="NODE", help="give the machine NODE's whole lease, for good")
@click.option("--force", is_flag=True, help="replace NODE even if it is online")
@click.option("--reissue", is_flag=True, help="replace a lost token for the same hostname, IP or rank")
@json_option
def create(*, as_json: bool, labels: tuple[tuple[str, str], ...], **asked: Any) -> None:
    """Make a token and print the command to paste on the new machine. The token is shown only once.

    Into a file or a pipe it writes the token alone.

    --replaces is for a machine that was re-imaged, or that takes another one's place: it gets the hostname, address,
    rank and labels of NODE. The relay puts NODE's old key out of the network at that moment, for good.

    --reissue is for a token that was lost before it was used. Name its --hostname, --ip or --rank: the relay revokes
    the lost token, and the new one promises the same.
    """
    answer = ask_registry("POST", "/tokens", {**asked, "labels": dict(labels)})
    if answer["role"] == "head" and answer["replaces"] is None:
        _warn_of_head()
    if told_as_json(answer, as_json=as_json):
        return
    tell(validity(answer), err=True)
    click.echo(f"on that machine:\n\n{command_to_paste(answer)}\n" if sys.stdout.isatty() else answer["token"])


def validity(token: dict[str, Any]) -> str:
    """For whom and until when, by this machine's time zone."""
    until = datetime.fromisoformat(token["expires_at"])
    left_s = (until - datetime.fromisoformat(token["created_at"])).total_seconds()
    who = token["hostname"] or ("one machine" if token["uses"] == 1 else f"{token['uses']} machines")
    return f"for {who} ({token['role']}), good for {in_words(left_s)}, until {until.astimezone():%Y-%m-%d %H:%M}"


def command_to_paste(token: dict[str, Any]) -> str:
    """The whole command for the machine that is to join."""
    return f"sudo edgelink up {'--relay ' if token['role'] == 'relay' else ''}{token['token']}"


def _warn_of_head() -> None:
    leases = ask_registry("GET", "/leases")["leases"]
    if (head := next((lease["hostname"] for lease in leases if lease["role"] == "head"), None)) is not None:
        told = (
            f"{head} is this network's head already: no other machine can join with this token; "
            f"`edgelink token create --replaces {head}` is for one that takes its place"
        )
        say(told)


@command.command("list")
@json_option
def show(*, as_json: bool) -> None:
    """List the tokens that were made, without their secrets."""
    tokens = ask_registry("GET", "/tokens")["tokens"]
    if told_as_json(tokens, as_json=as_json):
        return
    for token in tokens:
        click.echo(
            f"{token['token_id']}  {token['role']:<5} {token['state']:<8} uses left {token['uses_left']}  "
            f"until {datetime.fromisoformat(token['expires_at']).astimezone():%Y-%m-%d %H:%M}"
        )


@command.command("revoke")
@click.argument("token_id")
def revoke(*, token_id: str) -> None:
    """Make a token useless; machines that joined with it stay."""
    ask_registry("DELETE", f"/tokens/{quote(token_id, safe='')}")
    click.echo(f"token {token_id} revoked")
