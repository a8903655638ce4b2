"""``edgelink rotate-secret``: change the network's secret."""

from __future__ import annotations

import click

from edgelink.cli.options import hold_option, json_option


@click.command("rotate-secret")
@hold_option
@json_option
def command(*, hold_s: float, as_json: bool) -> None:
    """Change the network's secret on all nodes, which costs each a pause of some seconds.

    Nodes are told two seconds ahead; a robot in motion may hold the change up for as long as --hold says. Run again
    before the change, it shows the change that is to come. Exit status 75: somebody is not on the new secret yet.
    """
    from edgelink.cli.rotation_request import raise_for, rotation_request

    done = rotation_request("/rotate-secret", {"hold_s": hold_s}, as_json=as_json)
    if not as_json:
        click.echo(f"the secret was changed within {done['after_s']:.1f} s")
    raise_for(done["behind"], "the secret was changed")
