"""``edgelink nodes``: every node of the network, on the head with what Ray has of it and what is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from edgelink.api.client import call, call_here
from edgelink.api.json_version import VERSION
from edgelink.cli import members
from edgelink.cli.condition_lines import MARKS, coloured
from edgelink.cli.layout import columns, table, told_as_json, wrapped
from edgelink.cli.options import json_option
from edgelink.cli.patience import DAEMON, waiting_for
from edgelink.cli.status import way_in_words
from edgelink.cli.watch import Fact, watch, watch_option
from edgelink.condition_table import Weight
from edgelink.config.paths import Paths
from edgelink.errors import ExitCode
from edgelink.wording import node_name

_HEADER = ("NODE", "RANK", "OVERLAY IP", "RAY", "CPU", "GPU", "PATH")
_YIELDING = (0, 3, 6)  # the columns that are cut in a narrow terminal
_LEFT_OUT = "takes no part, the run in progress did not ask for it (--nodes)"
_EDGES = {
    "head": "edges answer no other edge, but for a run's",
    "members": "the edges of the run in progress answer each other",
}
_NARROW_VERSIONS = ("ray", "python", "torch", "rlinf")


@click.command("nodes")
@json_option
@watch_option
def command(*, as_json: bool, is_watching: bool) -> int:
    """List every node. On the head: what Ray has of it, and what is wrong with it.

    On the relay and on edges: whom the registry names, how each is reached, and who is away as far as that is known
    there. Exit status 0: all are alive in Ray and answer (those that have no Ray by their configuration: answer), or
    elsewhere nobody is known to be away; 75: somebody is paused; 1: somebody is missing. Who was switched off or has
    left does not count. With --watch: 0, when Ctrl-C ends it.
    """
    is_head = call_here("GET", "/status")["role"] == "head"

    def look() -> dict[str, Any]:
        if is_head:
            return {"schema": VERSION, **call(Paths.from_environment().node_socket, "GET", "/nodes")}
        return {"schema": VERSION, "members": members.members_here()}

    draw, told = (lines, facts) if is_head else (members.lines, members.facts)
    if is_watching:
        return watch(look, draw=draw, facts=told, as_json=as_json)
    with waiting_for(DAEMON):
        found = look()
    if not told_as_json(found, as_json=as_json):
        click.echo("\n".join(draw(found, columns())))
    return exit_status(found["nodes"]) if is_head else members.exit_status(found["members"])


def exit_status(nodes: Sequence[dict[str, Any]]) -> ExitCode:
    """Return 75 if a node is paused, or else 1 if a node is missing; pure.

    A node that was switched off on purpose does not count.
    """
    if any(_is_paused(node) for node in nodes):
        return ExitCode.TRY_AGAIN
    return ExitCode.OK if all(node["ready"] or _is_off(node) for node in nodes) else ExitCode.FAILED


def lines(found: dict[str, Any], width: int) -> list[str]:
    """For people, no line wider than ``width``; pure."""
    told = table([_HEADER, *(_row(node) for node in found["nodes"])], width, _YIELDING)
    told += _versions(found["nodes"], width)
    if text := _EDGES.get(found.get("edges_open_to", "all")):
        told += wrapped("", f"access per-run: {text}", width)
    for node in found["nodes"]:
        if ports := node.get("open_ports"):  # the daemon from before an upgrade may run until its next restart
            told += wrapped("", f"{node_name(node)} is open to other nodes: {', '.join(ports)}", width)
    for node in found["nodes"]:
        is_there = node["ready"] or _is_paused(node)
        mark, colour = ("!", "yellow") if is_there else MARKS[Weight.IDLE if _is_off(node) else Weight.WRONG]
        for text in node["wrong"]:
            told += _marked(mark, colour, f"{node_name(node)}: {text}", width)
    for stranger in found["strangers"]:
        text = f"Ray at {stranger['overlay_ip']} ({stranger['hostname']}): {stranger['wrong'][0]}"
        told += _marked("?", "yellow", text, width)
    for left_out in found["left_out"]:
        told += wrapped("- ", f"{left_out['hostname']}: {_LEFT_OUT}", width)
    totals = found["totals"]
    paused = sum(map(_is_paused, found["nodes"]))
    alive = f"{totals['nodes']} of {totals['enrolled']} nodes alive in Ray{f', {paused} paused' if paused else ''}"
    alive += f", {without} without Ray" if (without := totals.get("without_ray", 0)) else ""
    return [*told, f"{alive}, {totals['cpus']:g} CPUs, {totals['gpus']:g} GPUs"]


def facts(found: dict[str, Any]) -> dict[str, Fact]:
    """What ``--watch`` tells the changes of: who is alive in Ray, with what, on what way, and what is wrong; pure."""
    told: dict[str, Fact] = {}
    for node in found["nodes"]:
        way = "" if _path(node) == "-" else f", {way_in_words(node)}"
        has = f", {node['cpus']:g} CPUs, {node['gpus']} GPUs" if _is_in_ray(node) else ""
        state = f"{'paused' if _is_paused(node) else node['ray']}{way}{has}"  # for how long is no change
        reasons = [text.partition(":")[0] for text in node["wrong"]]  # what follows may tell how long, or how much
        told[node_name(node)] = Fact("; ".join([state, *reasons]), "; ".join([state, *node["wrong"]]))
    for left_out in found["left_out"]:
        told[left_out["hostname"]] = Fact("left out", _LEFT_OUT)
    for stranger in found["strangers"]:
        told[f"Ray at {stranger['overlay_ip']} ({stranger['hostname']})"] = Fact("?", stranger["wrong"][0])
    return told


def _is_paused(node: dict[str, Any]) -> bool:
    return node.get("state") == "paused"


def _is_in_ray(node: dict[str, Any]) -> bool:
    return bool(node["ready"] and node.get("has_ray", True))


def _is_off(node: dict[str, Any]) -> bool:
    return node.get("state") == "off"


def _marked(mark: str, colour: str, text: str, width: int) -> list[str]:
    return coloured(mark, colour, wrapped(f"{mark} ", text, width))


def _versions(nodes: list[dict[str, Any]], width: int) -> list[str]:
    """Which nodes have the same ones: one line where all have."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        has = (f"{name} {node['versions'][name]}" for name in _NARROW_VERSIONS if node["versions"].get(name))
        if text := ", ".join(has):
            groups.setdefault(text, []).append(node_name(node))
    if len(groups) == 1:
        return wrapped("", next(iter(groups)), width)
    return [line for text, names in groups.items() for line in wrapped(f"{text}: ", ", ".join(names), width)]


def _row(node: dict[str, Any]) -> tuple[str, ...]:
    ready = _is_in_ray(node)
    return (
        node["hostname"] or "-",
        "-" if node["node_rank"] is None else str(node["node_rank"]),
        node["overlay_ip"] or "-",
        node["ray"],
        f"{node['cpus']:g}" if ready else "-",
        str(node["gpus"]) if ready else "-",
        _path(node),
    )


def _path(node: dict[str, Any]) -> str:
    if node["path"] is None or _is_paused(node):  # EasyTier knows the route for a while yet
        return "-"
    latency = "" if node["latency_ms"] is None else f", {node['latency_ms']:.0f} ms"
    return f"{way_in_words(node)}{latency}"
