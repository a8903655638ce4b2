"""``edgelink lab``: relay, cloud and NAT'd edges on one machine, in namespaces."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from edgelink.cli.layout import UNLIMITED, columns, table, tell, told_as_json, wrapped
from edgelink.cli.options import FILE, Group, json_option, options

_DEFAULT_NAME = "lab"
_name_option = click.option("--name", default=_DEFAULT_NAME, show_default=True, help="which lab; several can exist")
_edges_option = click.option(
    "--edges", type=click.IntRange(1, 60), default=2, show_default=True, help="number of edges"
)
_accelerators_option = click.option(
    "--accelerators", is_flag=True, help="let the nodes see this machine's accelerators"
)


_wan_options = options(
    click.option("--rtt", metavar="TIME", help="that the way to the internet adds to the round trip: 80ms"),
    click.option("--jitter", metavar="TIME", help="by which the round trip varies, up and down: 10ms"),
    click.option("--loss", metavar="PERCENT", help="of the packets, in each direction: 1%"),
    click.option(
        "--rate",
        metavar="RATE",
        help="of the way to the internet, in each direction: 20mbit, or none for as fast as it can",
    ),
)


@click.group("lab", cls=Group)
def command() -> None:
    """Run relay, cloud and NAT'd edges on this machine, in namespaces without a route out."""


@command.command("up")
@_name_option
@_edges_option
@_accelerators_option
@click.option("--direct", is_flag=True, help="one routed network without NAT, on which direct paths are found")
@click.option(
    "--nat",
    multiple=True,
    metavar="SITE=KIND",
    help="cone or symmetric NAT for cloud, edge-1 …; the named sites reach each other, so holes can be punched",
)
@_wan_options
@click.option("--no-daemons", is_flag=True, help="build the network only; start nothing in it")
def up(
    *,
    name: str,
    edges: int,
    accelerators: bool,
    direct: bool,
    nat: tuple[str, ...],
    no_daemons: bool,
    **wan: str | None,
) -> None:
    """Build the lab and bring every node to Ready.

    --rtt, --jitter, --loss and --rate make the way of every edge to the internet like a WAN; `edgelink lab set` later.
    """
    kinds = dict(entry.partition("=")[::2] for entry in nat)
    asked: dict[str, Any] = {"accelerators": accelerators, "direct": direct, "nat": kinds, "wan_conditions": wan}
    road = _road(name)
    if no_daemons:
        road.lab.up(edges, **asked)
    else:
        _require_easytier()
        road.bring_up(edges, **asked)
    click.echo(f"lab {name} is up:  {next_command(name, has_daemons=not no_daemons)}", err=True)


def next_command(name: str, *, has_daemons: bool) -> str:
    """Return what a person may run in the lab that is up."""
    words = ["edgelink", "lab", "exec", *([] if name == _DEFAULT_NAME else ["--name", name])]
    words += ["cloud", "--", "edgelink", "status"] if has_daemons else ["relay", "--", "bash"]
    return " ".join(words)


@command.command("run")
@_name_option
@_edges_option
@_accelerators_option
@click.option("--report", type=FILE, help="write what happened as JSON")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--keep", is_flag=True, help="leave the lab up afterwards")
def run(*, name: str, edges: int, accelerators: bool, report: Path | None, seed: int, keep: bool) -> int:
    """Build the lab, train a policy, show what happened, remove the lab."""
    from edgelink.cli.lab_run import run_whole_road

    _require_easytier()
    return run_whole_road(_road(name), edges=edges, accelerators=accelerators, seed=seed, report_file=report, keep=keep)


@command.command("exec", context_settings={"ignore_unknown_options": True})
@_name_option
@click.argument("node")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(*, name: str, node: str, argv: tuple[str, ...]) -> None:
    """Run a command on NODE as if logged in there.

    NODE is relay, cloud, edge-1 …, cloud-nat … or internet.
    """
    _lab(name).enter(node, argv)


@command.command("start")
@_name_option
@click.argument("node")
def start(*, name: str, node: str) -> None:
    """Start NODE's daemon."""
    process = _lab(name).start(node)
    click.echo(f"{node}: daemon started, pid {process.pid}")


@command.command("stop")
@_name_option
@click.argument("node")
def stop(*, name: str, node: str) -> None:
    """Stop NODE's daemon, with its EasyTier and Ray."""
    _lab(name).stop(node)
    click.echo(f"{node}: stopped")


@command.command("reboot")
@_name_option
@click.argument("node")
def reboot(*, name: str, node: str) -> None:
    """Cut NODE's power, switch it on again and start its daemon."""
    lab = _lab(name)
    lab.reboot(node)
    process = lab.start(node)
    click.echo(f"{node}: rebooted, daemon started, pid {process.pid}")


@command.command("set")
@_name_option
@_wan_options
@click.option("--clear", is_flag=True, help="nothing of it any more")
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
def set_(*, name: str, clear: bool, nodes: tuple[str, ...], **wan: str | None) -> None:
    """Change delay, loss or rate of NODE's way to the internet.

    NODE is relay, cloud, edge-1 …. The way is changed while it is used. What is not named stays as it is. Two machines
    that both have a long way are apart by the sum.
    """
    if clear:
        wan = {name: text or ("none" if name == "rate" else "0") for name, text in wan.items()}
    lab = _lab(name)
    for node, told in lab.set_wan(nodes, wan).items():
        click.echo(f"{node}: {told or 'as fast as the machine'}")


@command.command("status")
@_name_option
@json_option
def status(*, name: str, as_json: bool) -> None:
    """Show the lab's nodes, their addresses and daemons."""
    road = _road(name)
    rows = [_row(road, row) for row in road.lab.status()]
    if told_as_json(rows, as_json=as_json):
        return
    cells = [["NODE", "DAEMON", "OVERLAY IP", "ADDRESSES, LINK"]]
    for row in rows:
        addresses = " ".join(address for found in row["addresses"].values() for address in found)
        cells.append([row["node"], row["phase"] or "-", row["overlay_ip"] or "-", f"{addresses}  {row['wan']}"])
    width = columns()
    indent = len(table(cells, UNLIMITED, ())[0]) - len(cells[0][-1])
    for line in table(cells, UNLIMITED, ()):
        click.echo("\n".join(wrapped("", line, width, indent=indent)))


@command.command("down")
@_name_option
def down(*, name: str) -> None:
    """End every process of the lab and remove all that it made."""
    _lab(name).down()


def _row(road: Any, row: dict[str, Any]) -> dict[str, Any]:
    daemon = road.status(row["node"]) if row["daemon_pid"] else None
    return {**row, "phase": daemon and daemon["phase"], "overlay_ip": daemon and daemon["overlay_ip"]}


def _require_easytier() -> None:
    """Before anything is built; says so where it is no release. Raises EasyTierNotFoundError."""
    from edgelink.overlay.acquisition import default_cache_dir, find_easytier

    easytier = find_easytier(None, default_cache_dir())
    if easytier.build:
        tell(f"EasyTier {easytier.full_version}", err=True)


def _lab(name: str) -> Any:
    from edgelink.errors import EasyTierNotFoundError
    from edgelink.lab.lab import Lab
    from edgelink.overlay.acquisition import default_cache_dir, find_easytier

    with contextlib.suppress(EasyTierNotFoundError):  # those who need it say so; a lab can be removed without
        return Lab(name, extra_path=(find_easytier(None, default_cache_dir()).core.parent,))
    return Lab(name)


def _road(name: str) -> Any:
    from edgelink.clock import SystemClock
    from edgelink.lab.road import Road

    return Road(_lab(name), SystemClock(), lambda line: tell(line, err=True))
