"""``edgelink rotate-secret``: change the network's secret."""

from __future__ import annotations

from typing import Any

import click

from edgelink.cli.options import hold_option, json_option, timeout_option


@click.command("rotate-secret")
@hold_option
@timeout_option("how long to wait for the nodes that are online", "60s")
@click.option("--force", is_flag=True, help="then change it without those that have not answered, else give up")
@json_option
def command(*, as_json: bool, **body: Any) -> None:
    """Change the network's secret on all nodes, which costs each a pause of some seconds.

    Run again while it is under way, it shows the change that is. Exit status 75: given up, because a node that is
    online did not answer, or somebody is not on the new secret yet.
    """
    from edgelink.cli.rotation_request import raise_for, rotation_request

    done = rotation_request("/rotate-secret", body, as_json=as_json)
    if not as_json:
        click.echo(f"the secret was changed within {done['after_s']:.1f} s")
    raise_for(done["behind"], "the secret was changed")
