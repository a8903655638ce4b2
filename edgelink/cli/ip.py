"""``edgelink ip [NODE]``: the overlay address of a node."""

from __future__ import annotations

import click

from edgelink.api.find_node import find
from edgelink.cli.members import members_here
from edgelink.cli.node_argument import NodeName
from edgelink.errors import OverlayError


@click.command("ip")
@click.argument("node", type=NodeName(), required=False)
def command(*, node: str | None) -> None:
    """Print the overlay address of NODE (hostname or rank), by default of this machine.

    Every member of the network knows it. In a large network an edge knows the relays, the head, and the nodes that its
    EasyTier lists.
    """
    own, *others = members_here()
    if node is None and own["overlay_ip"] is None:
        raise OverlayError("this machine has no overlay address yet", hint="`edgelink status` says what it waits for")
    click.echo((own if node is None else find(node, [own, *others]))["overlay_ip"])
