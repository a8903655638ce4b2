"""``edgelink registry``: on the relay, who holds which lease, the operator's changes of that, and backups."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import click

from edgelink.cli.layout import columns, table, tell, told_as_json
from edgelink.cli.node_argument import NodeName
from edgelink.cli.options import DURATION, KEY_VALUE, Group, json_option, text_of
from edgelink.cli.relay_request import ask_registry
from edgelink.config.paths import Paths
from edgelink.errors import ExitCode
from edgelink.wording import presence_in_words


@click.group("registry", cls=Group)
def command() -> None:
    """Show and change leases, check the registry, back it up and restore it (on the relay)."""


@command.command("list")
@json_option
def list_(*, as_json: bool) -> None:
    """List every node that holds a lease, also those that are away.

    Below them: what rests of nodes that were released.
    """
    answer = ask_registry("GET", "/leases")
    if told_as_json(answer, as_json=as_json):
        return
    rows = [
        [
            lease["hostname"],
            lease["role"],
            lease["overlay_ip"],
            f"rank {'-' if lease['preferred_rank'] is None else lease['preferred_rank']}",
            presence_in_words(lease),
            lease["node_id"],
        ]
        for lease in answer["leases"]
    ]
    for line in table(rows, columns(), yielding=(0, 5)) if rows else ():
        click.echo(line)
    for rest in answer["resting"]:
        click.echo(f"{_rest_in_words(rest)}, of {rest['hostname']} ({rest['node_id']})")


def lease_path(node: str) -> str:
    """Its path: a name is that name, and no part of an address."""
    return f"/leases/{quote(node, safe='')}"


@command.command("show")
@click.argument("node", type=NodeName())
@json_option
def show(*, node: str, as_json: bool) -> None:
    """Show all that is known of NODE, also of one that was released.

    NODE is a hostname or node id.
    """
    known = ask_registry("GET", lease_path(node))
    if told_as_json(known, as_json=as_json):
        return
    lease = known["lease"]
    if lease is None:
        click.echo(f"{known['node_id']} holds no lease")
    else:
        rank = "no rank" if lease["preferred_rank"] is None else f"rank {lease['preferred_rank']}"
        click.echo(f"{lease['hostname']} {lease['role']} {lease['overlay_ip']} {rank}: {presence_in_words(known)}")
        labels = ", ".join(
            f"{name}={text}" + ("" if name in lease.get("given_labels", lease["labels"]) else " (its own word)")
            for name, text in sorted(lease["labels"].items())
        )
        click.echo(f"  node id {known['node_id']}   since {lease['granted_at']}   labels {labels or '-'}")
    if known["revoked"]:
        tell(f"  its key was put out at {known['revoked']['revoked_at']}: {known['revoked']['why']}")
    for rest in known["resting"]:
        click.echo(f"  {_rest_in_words(rest)}")
    for token in known["tokens"]:
        click.echo(f"  token {token['token_id']} ({token['state']})")
    for entry in known["history"]:
        caller = f" by {entry['caller']}" if entry["caller"] else ""
        click.echo(f"  {entry['at'][:19]}  {entry['action']}{caller}: {entry['detail']}")


@command.command("set")
@click.argument("node", type=NodeName())
@click.option("--hostname", help="its new hostname")
@click.option("--ip", help="its new overlay IP")
@click.option("--rank", type=click.IntRange(min=0), help="its new preferred node rank")
@click.option("--label", "labels", type=KEY_VALUE, multiple=True, help="key=value; may be repeated")
@click.option("--unlabel", multiple=True, metavar="KEY", help="take a label away; may be repeated")
@click.option("--force", is_flag=True, help="also while a run may use NODE")
@json_option
def set_(*, node: str, as_json: bool, labels: tuple[tuple[str, str], ...], **asked: Any) -> None:
    """Change the lease of NODE (hostname or node id).

    It is signed anew and recorded. NODE takes it up at once when it is online, else when it is back: its EasyTier and
    its Ray are started anew for another address or hostname. What it no longer holds rests before others get it.
    Exit status 75: a run may have workers on NODE. With --force NODE itself waits until nobody works on it.
    """
    if not labels and not any(asked[name] not in (None, ()) for name in ("hostname", "ip", "rank", "unlabel")):
        raise click.UsageError("nothing to change: give --hostname, --ip, --rank, --label or --unlabel")
    answer = ask_registry("PATCH", lease_path(node), {**asked, "labels": dict(labels)})
    if told_as_json(answer, as_json=as_json):
        return
    lease = answer["lease"]
    rank = "no rank" if lease["preferred_rank"] is None else f"rank {lease['preferred_rank']}"
    click.echo(f"{lease['hostname']} ({lease['node_id']}) holds {lease['overlay_ip']} and {rank}")


@command.command("release")
@click.argument("node", type=NodeName())
@click.option("--now", is_flag=True, help="free what it held at once: it is off for good, or its disk is wiped")
@json_option
def release(*, node: str, now: bool, as_json: bool) -> None:
    """Take the lease of NODE (hostname or node id) away for good.

    NODE is put off the broker. Its hostname, address and rank are given to others only after a rest
    (`relay.quarantine`, a day by default): a machine that was only away would share them. With --now they are free at
    once, also those of a node that was released before. NODE itself gets them back when it joins again.
    """
    freed = ask_registry("DELETE", lease_path(node), {"now": now})
    if told_as_json(freed, as_json=as_json):
        return
    until = f"rests until {freed['rests_until']}" if freed["rests_until"] else "is free"
    what = freed["overlay_ip"] or "what it held"
    click.echo(f"{freed['hostname']} ({freed['node_id']}) has left the network; {what} {until}")


@command.command("check")
@json_option
def check(*, as_json: bool) -> None:
    """Check whether the registry is whole; works without a daemon.

    Changes nothing. Exit status 1: it is not whole.
    """
    from edgelink.relay.database_check import check_registry

    checked = check_registry(Paths.from_environment())
    if as_json:
        answer = {"version": 1, "ok": not checked.problems, "leases": checked.leases, "problems": checked.problems}
        click.echo(json.dumps(answer, indent=2))
    else:
        for problem in checked.problems:
            tell(problem)
        if not checked.problems:
            click.echo(f"{checked.leases} leases, each signed and alone on its hostname, address and rank")
    if checked.problems:
        raise click.exceptions.Exit(ExitCode.FAILED)


@command.command("export")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    default="-",
    show_default=True,
    help="file to write; - is stdout",
)
def export(*, output: Path) -> None:
    """Write who holds what as JSON, for `import` or to document it.

    No secret is in it.
    """
    from edgelink.files import write_named

    text = json.dumps(ask_registry("GET", "/registry"), indent=2) + "\n"
    if str(output) == "-":
        click.echo(text, nl=False)
    else:
        write_named(output, text)


@command.command("import")
@click.argument("file", type=click.File("rb"))
@click.option("--ttl", "ttl_s", type=DURATION, default="24h", show_default=True, help="how long the tokens may be used")
@click.option("--dry-run", is_flag=True, help="only look whether all of it can be")
@json_option
def import_(*, file: BinaryIO, ttl_s: float, dry_run: bool, as_json: bool) -> None:
    """Make a token for each machine in FILE that holds no lease yet.

    FILE (- is stdin) is what `export` writes, of this network or another one, or a list made by hand: {"version": 1,
    "leases": [{"hostname": "franka-1", "role": "edge", "overlay_ip": "10.10.0.11", "preferred_rank": 1, "labels":
    {}}]}; only the hostname is needed. Each token fixes what its machine is to be. All of them are made, or none.
    """
    body = {"file": text_of(file.read(), "FILE"), "ttl_s": ttl_s, "dry_run": dry_run}
    answer = ask_registry("POST", "/registry", body, timeout_s=600.0)
    if told_as_json(answer, as_json=as_json):
        return
    states = {"token": "can join", "held": "holds that lease already", "relay": "a relay: use `edgelink relay --join`"}
    for machine in answer["machines"]:
        click.echo(f"{machine['hostname']:<32} {machine['token'] or states[machine['state']]}")


@command.command("backup")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
def backup(*, file: Path) -> None:
    """Write the registry, keys and CA to FILE while the daemon runs.

    FILE gets mode 0600; - is stdout. Whoever has the file can be this network's registry: keep it as you would keep the
    relay's state directory.
    """
    from edgelink.clock import SystemClock
    from edgelink.files import write_named
    from edgelink.relay import backup as backups

    if str(file) == "-":
        if sys.stdout.isatty():
            raise click.UsageError("a backup is no text: pipe it into a file, or into a program that encrypts it")
        sys.stdout.buffer.write(backups.backup(Paths.from_environment(), SystemClock()))
        return
    write_named(file, backups.backup(Paths.from_environment(), SystemClock()))
    tell(f"{file} holds this network's registry and its secrets: keep it off this machine, and safe", err=True)


@command.command("restore")
@click.argument("file", type=click.File("rb"))
@click.option("--replace", is_flag=True, help="also where a registry is: it is set aside, and nothing of it is deleted")
def restore(*, file: BinaryIO, replace: bool) -> None:
    """Put the registry of a backup on this machine.

    FILE - is stdin. Start `edgelink relay` afterwards.
    A new machine becomes the relay that the backup was made on; an additional relay of the network stays what it is,
    and gets the registry besides. A machine that holds a registry is refused; with --replace it goes back to the
    backup, while no daemon runs. What the registry has granted since then is not known any more.
    """
    from edgelink.api.server import only_one
    from edgelink.clock import SystemClock
    from edgelink.relay import backup as backups

    paths = Paths.from_environment()
    with ExitStack() as held:
        if replace and backups.has_registry(paths):  # an additional relay's daemon has none open, and may run
            held.enter_context(only_one(paths.lock_of("bootstrap")))
        restored = backups.restore(file.read(), paths, SystemClock(), replace=replace)
    lease = restored.relay
    tell(f"network {restored.network_id} is restored; this machine is its relay {lease.hostname}")
    if restored.set_aside:
        click.echo(f"the registry that was here lies in {restored.set_aside}", err=True)
    if restored.is_moved:
        click.echo("now restart:  edgelink relay   (nodes find it at the address they know)", err=True)
    else:
        click.echo("now run:  edgelink relay --advertise ADDRESS", err=True)
    click.echo("never start the old relay again with its old state directory", err=True)


def _rest_in_words(rest: dict[str, Any]) -> str:
    until = f"until {rest['until']}" if rest["until"] else "for good"
    return f"{rest['kind'].replace('_', ' ')} {rest['value']} rests {until}"
