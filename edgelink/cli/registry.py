"""``edgelink registry``: on the relay, who holds which lease, and freeing that of a node that is gone."""

from __future__ import annotations

import json
from typing import Any

import click

from edgelink.api.client import call
from edgelink.cli.options import json_option
from edgelink.config.paths import Paths


@click.group("registry")
def command() -> None:
    """Show leases, and free those of nodes that are gone (on the relay)."""


@command.command("list")
@json_option
def show(*, as_json: bool) -> None:
    """Every node that holds a lease, whether it is there or not."""
    leases = _ask("GET", "/leases")["leases"]
    if as_json:
        click.echo(json.dumps(leases, indent=2))
        return
    for lease in leases:
        rank = "-" if lease["preferred_rank"] is None else str(lease["preferred_rank"])
        seen = lease["phase"] if lease["online"] else "offline"
        click.echo(
            f"{lease['hostname']:<32} {lease['role']:<5} {lease['overlay_ip']:<15} rank {rank:<3} {seen:<9} "
            f"{lease['node_id']}"
        )


@command.command("release")
@click.argument("node")
def release(*, node: str) -> None:
    """Free the hostname, address and rank of NODE (hostname or node id), for good; it is put off the broker."""
    freed = _ask("DELETE", f"/leases/{node}")
    click.echo(f"{freed['hostname']} ({freed['node_id']}) has left the network; {freed['overlay_ip']} is free")


def _ask(method: str, path: str) -> Any:
    return call(Paths.from_environment().bootstrap_socket, method, path)
