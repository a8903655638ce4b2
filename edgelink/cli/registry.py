"""``edgelink registry``: on the relay, who holds which lease, freeing that of a node that is gone, and backups."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import click

from edgelink.api.client import call
from edgelink.cli.options import json_option
from edgelink.config.paths import Paths


@click.group("registry")
def command() -> None:
    """Show leases, free those of nodes that are gone, back the registry up and restore it (on the relay)."""


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
@click.option("--now", is_flag=True, help="free what it held at once: it is off for good, or its disk is wiped")
@json_option
def release(*, node: str, now: bool, as_json: bool) -> None:
    """Take the lease of NODE (hostname or node id) away for good; it is put off the broker.

    Its hostname, address and rank are given to others only after a rest (`relay.quarantine`, a day by default): a
    machine that was only away would share them. With --now they are free at once, also those of a node that was
    released before. NODE itself gets them back when it joins again.
    """
    freed = _ask("DELETE", f"/leases/{node}", {"now": now})
    if as_json:
        click.echo(json.dumps(freed, indent=2))
        return
    until = f"rests until {freed['rests_until']}" if freed["rests_until"] else "is free"
    what = freed["overlay_ip"] or "what it held"
    click.echo(f"{freed['hostname']} ({freed['node_id']}) has left the network; {what} {until}")


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
def backup(*, file: Path) -> None:
    """Write the registry, the network's keys and CA to FILE (0600; - is stdout), while the daemon runs.

    Whoever has the file can be this network's registry: keep it as you would keep the relay's state directory.
    """
    from edgelink.clock import SystemClock
    from edgelink.files import write_atomic
    from edgelink.registry import backup as backups

    if str(file) == "-":
        if sys.stdout.isatty():
            raise click.UsageError("a backup is no text: pipe it into a file, or into a program that encrypts it")
        sys.stdout.buffer.write(backups.backup(Paths.from_environment(), SystemClock()))
        return
    write_atomic(file, backups.backup(Paths.from_environment(), SystemClock()))
    click.echo(f"{file} holds this network's registry and its secrets: keep it off this machine, and safe", err=True)


@command.command("restore")
@click.argument("file", type=click.File("rb"))
def restore(*, file: BinaryIO) -> None:
    """Put the registry of a backup (- reads it from stdin) on this machine, then start `edgelink bootstrap`.

    A new machine becomes the relay that the backup was made on; an additional relay of the network stays what it is,
    and gets the registry besides. A machine that holds a registry is refused.
    """
    from edgelink.clock import SystemClock
    from edgelink.registry import backup as backups

    restored = backups.restore(file.read(), Paths.from_environment(), SystemClock())
    lease = restored.relay
    click.echo(f"network {restored.network_id} is restored; this machine is its relay {lease.hostname}")
    if restored.is_moved:
        click.echo("now restart:  edgelink bootstrap   (nodes find it at the address they know)", err=True)
    else:
        click.echo("now run:  edgelink bootstrap --advertise ADDRESS", err=True)
    click.echo("never start the old relay again with its old state directory", err=True)


def _ask(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    return call(Paths.from_environment().bootstrap_socket, method, path, body)
