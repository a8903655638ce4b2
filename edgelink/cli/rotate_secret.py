"""``edgelink rotate-secret``: change the network's secret."""

from __future__ import annotations

import click

from edgelink.cli.options import Duration, json_option


@click.command("rotate-secret")
@click.option("--hold", "hold_s", type=Duration(), default="60s", show_default=True, help="patience with moving robots")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="60s",
    show_default=True,
    help="how long to wait for the nodes that are online",
)
@click.option("--force", is_flag=True, help="then change it without those that have not answered, else give up")
@json_option
def command(
    *,
    hold_s: float,
    timeout_s: float,
    force: bool,
    as_json: bool,
) -> None:
    """Change the network's secret on all nodes, which costs each a pause of some seconds.

    Run again while it is under way, it shows the change that is. Exit status 75: given up, because a node that is
    online did not answer, or somebody is not on the new secret yet.
    """
    from edgelink.cli.rotation_request import raise_for, rotation_request

    body = {
        "hold_s": hold_s,
        "timeout_s": timeout_s,
        "force": force,
    }
    done = rotation_request("/rotate-secret", body, as_json=as_json)
    if not as_json:
        click.echo(f"the secret was changed within {done['after_s']:.1f} s")
    raise_for(done["behind"], "the secret was changed")
