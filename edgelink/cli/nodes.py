"""``edgelink nodes``: every node of the cluster, what Ray has of it, and what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import click

from edgelink.api.client import call
from edgelink.cli.options import json_option
from edgelink.cli.ray_request import require_head
from edgelink.config.paths import Paths
from edgelink.errors import ExitCode

_HEADER = ("NODE", "RANK", "OVERLAY IP", "RAY", "CPU", "GPU", "PATH", "VERSIONS")
_NARROW_VERSIONS = ("ray", "python", "torch", "rlinf")


@click.command("nodes")
@json_option
def command(*, as_json: bool) -> int:
    """On the head: every node, what Ray has of it, and what is wrong with it.

    Exit status 0: all are alive in Ray; 1: somebody is missing.
    """
    socket_path = Paths.from_environment().node_socket
    require_head(call(socket_path, "GET", "/status"), "`edgelink nodes`")
    found = call(socket_path, "GET", "/nodes")
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _show(found)
    return ExitCode.OK if all(node["ready"] for node in found["nodes"]) else ExitCode.FAILED


def _show(found: dict[str, Any]) -> None:
    rows = [_HEADER, *(_row(node) for node in found["nodes"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for node in found["nodes"]:
        mark = click.style("!", fg="yellow") if node["ready"] else click.style("✗", fg="red")
        name = node["hostname"] or f"rank {node['node_rank']}"
        for text in node["wrong"]:
            click.echo(f"{mark} {name}: {text}")
    for stranger in found["strangers"]:
        mark = click.style("?", fg="yellow")
        click.echo(f"{mark} Ray at {stranger['overlay_ip']} ({stranger['hostname']}): {stranger['wrong'][0]}")
    for left_out in found["left_out"]:
        click.echo(f"- {left_out['hostname']}: takes no part, the run in progress did not ask for it (--nodes)")
    totals = found["totals"]
    alive = f"{totals['nodes']} of {totals['enrolled']} nodes alive in Ray"
    click.echo(f"{alive}, {totals['cpus']:g} CPUs, {totals['gpus']:g} GPUs")


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    ready = node["ready"]
    versions = (f"{name} {node['versions'][name]}" for name in _NARROW_VERSIONS if node["versions"].get(name))
    return (
        node["hostname"] or "-",
        str(node["node_rank"]),
        node["overlay_ip"] or "-",
        node["ray"],
        f"{node['cpus']:g}" if ready else "-",
        str(node["gpus"]) if ready else "-",
        _path(node),
        ", ".join(versions) or "-",
    )


def _path(node: dict[str, Any]) -> str:
    if node["path"] is None:
        return "-"
    if node["path"] == "self":
        return "this machine"
    latency = "" if node["latency_ms"] is None else f", {node['latency_ms']:.0f} ms"
    if node["path"] == "direct":
        return f"direct, {node['protocol']}{latency}"
    return f"through {node['via'] or 'a relay'}{latency}"
