"""``edgelink up``: from an installed EdgeLink to a node, or a relay, that is Ready."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from edgelink.cli.layout import say
from edgelink.cli.options import (
    FILE,
    config_option,
    hostname_option,
    labels_option,
    no_ray_option,
    read_token,
    timeout_option,
    token_file_option,
)


@click.command("up")
@click.argument("token", required=False)
@token_file_option
@click.option("--relay", is_flag=True, help="make this machine the relay; with TOKEN: one more relay of that network")
@click.option(
    "--advertise",
    multiple=True,
    metavar="HOST",
    help="--relay: public address or DNS name that other machines dial; may be repeated  [default: found, or asked]",
)
@click.option(
    "--python",
    type=FILE,
    help="the interpreter that has Ray and your training code  [default: found, or asked]",
)
@click.option(
    "--user",
    help="account that Ray and programs of other nodes run under  [default: whose --python is, else who called sudo]",
)
@no_ray_option
@hostname_option
@labels_option
@timeout_option("how long to wait until Ready")
@config_option
def command(*, token: str | None, token_file: str | None, python: Path | None, timeout_s: float, **asked: Any) -> None:
    """Enrol this machine with TOKEN, write its configuration, install its service, and wait until it is Ready.

    TOKEN is asked for on a terminal; - reads it from stdin. A machine that is enrolled needs none. After a failure the
    same command goes on where it stopped. --relay makes the relay of a new network instead, and needs no token.

    Exit status 75: it is not Ready yet; its service goes on trying.
    """
    text = read_token(token, token_file, required=False)
    from edgelink.cli.foreground import show_warnings
    from edgelink.cli.up_steps import Wishes, bring_up

    show_warnings()
    can_ask = sys.stdin.isatty() and sys.stderr.isatty()
    wishes = Wishes(token=text, python=None if python is None else python.absolute(), can_ask=can_ask, **asked)
    try:
        bring_up(wishes, timeout_s)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted; the same command goes on where it stopped")
        raise
