"""``edgelink debug``: what a daemon knows, for its developers."""

from __future__ import annotations

import json
from typing import Any

import click

from edgelink.cli.layout import columns, wrapped
from edgelink.cli.options import Group, json_option
from edgelink.cli.patience import call_here


@click.group("debug", cls=Group)
def command() -> None:
    """Show what this machine's daemon knows and decided. It is for EdgeLink's developers. The output may change."""


@command.command("board")
@json_option
def board(*, as_json: bool) -> None:
    """Print every fact with its value, writer and readers.

    Also each part's last decision. Secrets are masked.
    """
    told = call_here("GET", "/board")
    click.echo(json.dumps(told, indent=2) if as_json else "\n".join(lines(told, columns())))


def lines(told: dict[str, Any], width: int) -> list[str]:
    """The board for people, no line wider than ``width``."""
    found: list[str] = []
    for fact in told["facts"]:
        durable = ", on disk before it is seen" if fact["durable"] else ""
        found += wrapped(f"{fact['fact']}: ", fact["value"], width)
        readers = ", ".join(fact["readers"]) or "nobody"
        found += wrapped("  ", f"written by {fact['writer'] or 'nobody'}{durable}; read by {readers}", width)
    for part in told["parts"]:
        found += wrapped(f"{part['part']} decided {part['ago_s']} s ago: ", part["decision"], width)
    return found
