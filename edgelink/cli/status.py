"""``edgelink status``: the conditions of this node's daemons, with reasons and times."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from edgelink.api.client import (
    SILENCE_S,
    DaemonError,
    DaemonNotRunningError,
    call,
    daemon_without_socket,
    how_to_start,
    without_socket,
)
from edgelink.api.json_version import VERSION
from edgelink.cli.condition_lines import REQUIRED, hanging, marked, note, weight_among
from edgelink.cli.layout import columns, cut, told_as_json, wrapped
from edgelink.cli.options import json_option
from edgelink.cli.patience import DAEMON, waiting_for
from edgelink.cli.watch import Fact, watch, watch_option
from edgelink.condition_table import Weight
from edgelink.config.paths import Paths
from edgelink.errors import ExitCode
from edgelink.ray_cluster.no_ray import NO_RAY_IN_WORDS
from edgelink.wording import role_in_words

_MOST_WAYS = 20  # the conditions should stay on the screen


@click.command("status")
@json_option
@watch_option
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="all conditions, all paths, and the last run")
def command(*, as_json: bool, is_watching: bool, is_verbose: bool) -> int:
    """Show the state of this machine's daemons: what is wrong first, with what to do.

    Exit status 0: ready; 1: not ready, or no daemon runs here. With --watch: 0, when Ctrl-C ends it.
    """
    paths = Paths.from_environment()
    draw = lines if is_verbose else short_lines
    if is_watching:
        return watch(lambda: look(paths), draw=draw, facts=facts, as_json=as_json)
    with waiting_for(DAEMON):
        seen = look(paths)
    if not told_as_json(seen, as_json=as_json):
        click.echo("\n".join(draw(seen, columns())))
    return ExitCode.OK if seen["ready"] else ExitCode.FAILED


def look(paths: Paths) -> dict[str, Any]:
    """What ``--json`` prints. Raises DaemonNotRunningError."""
    daemons, silent = daemons_here(paths)
    is_ready = not silent and all(daemon["ready"] for daemon in daemons)
    return {"schema": VERSION, "ready": is_ready, "daemons": daemons, "silent": silent}


def running_daemons(paths: Paths) -> list[dict[str, Any]]:
    """The status of each daemon of this machine that answers."""
    with suppress(DaemonNotRunningError):
        return daemons_here(paths)[0]
    return []


def daemons_here(paths: Paths, *, timeout_s: float = SILENCE_S) -> tuple[list[dict[str, Any]], list[str]]:
    """The status of each daemon on this machine (a relay and a head may share one), and what is to be said of each
    that does not answer although its socket is there (it hangs, or was killed), or that has lost its socket.

    Args:
        timeout_s: how long each may take to answer.

    Raises:
        DaemonNotRunningError: none answers.
    """
    daemons: list[dict[str, Any]] = []
    silent: list[str] = []
    lost: list[DaemonNotRunningError] = []
    for socket_path, whose in ((paths.bootstrap_socket, "the relay's"), (paths.node_socket, "the head's or edge's")):
        try:
            status = call(socket_path, "GET", "/status", timeout_s=timeout_s)
            daemons.append({**status, **_paths(socket_path, timeout_s)})
        except DaemonNotRunningError:
            if socket_path.exists():
                silent.append(f"{whose} daemon was killed or hangs: nobody answers on {socket_path}")
            elif pid := daemon_without_socket(socket_path):
                lost.append(without_socket(socket_path, pid))
                silent.append(lost[-1].message)
    if lost and not daemons:
        raise lost[0]
    if not daemons:
        raise DaemonNotRunningError(
            "no EdgeLink daemon runs on this machine",
            hint=how_to_start(),
        )
    return daemons, silent


def _paths(socket_path: Path, timeout_s: float) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = call(socket_path, "GET", "/paths", timeout_s=timeout_s)
    except (DaemonError, DaemonNotRunningError):
        return {"paths": []}  # the conditions say what is wrong
    return answer


def lines(seen: dict[str, Any], width: int) -> list[str]:
    """All of it for people, no line wider than ``width``; pure."""
    return _silent_lines(seen, width) + [line for daemon in seen["daemons"] for line in _daemon_lines(daemon, width)]


def short_lines(seen: dict[str, Any], width: int) -> list[str]:
    """What is wrong, with what to do, then what the machine is in a few lines; pure."""
    told = _silent_lines(seen, width)
    is_well = not told
    for daemon in seen["daemons"]:
        told.append(_title(daemon, width))
        noted = [line for condition in daemon["conditions"] for line in _note(daemon, condition, width)]
        noted += [line for path in daemon["paths"] if path["loses_full_packets"] for line in _way_lines(path, width)]
        is_well = is_well and not noted
        told += [*noted, *_impact_lines(daemon, width), *_summary(daemon, width)]
    return told if is_well else [*told, *wrapped("", "all there is to see: `edgelink status --verbose`", width)]


def facts(seen: dict[str, Any]) -> dict[str, Fact]:
    """What ``--watch`` tells the changes of: phases, conditions, ways to other nodes; pure."""
    found: dict[str, Fact] = {}
    for text in seen["silent"]:
        name, was_killed, _ = text.partition(" was killed")
        found[name] = Fact("silent", "was killed or hangs" if was_killed else "it makes another within seconds")
    for daemon in seen["daemons"]:
        name = who(daemon)
        found[name] = Fact(daemon["phase"], daemon["phase"])
        for one in daemon["conditions"]:
            token = f"{one['status']} {one['reason']}"
            found[f"{name}: {one['type']}"] = Fact(token, f"{token}: {one['message']}")
        for path in daemon["paths"]:
            found[f"{name}: way to {path['hostname']}"] = Fact(way_in_words(path), way_in_words(path))
    return found


def way_in_words(path: dict[str, Any]) -> str:
    """``direct, udp`` or ``through relay``; pure."""
    if path["path"] == "self":
        return "this machine"
    if path["path"] == "direct":
        return f"direct, {path['protocol']}" if path["protocol"] else "direct"
    return f"through {path['via'] or 'a relay'}"


def who(daemon: dict[str, Any]) -> str:
    """``edge franka-1``; pure."""
    role, hostname = role_in_words(daemon["role"]), daemon.get("hostname") or "(not enrolled)"
    return role if hostname == role else f"{role} {hostname}"


def _silent_lines(seen: dict[str, Any], width: int) -> list[str]:
    return [line for text in seen["silent"] for line in marked(Weight.WRONG, "", text, width, indent="  ")]


def _title(daemon: dict[str, Any], width: int) -> str:
    return click.style(cut(f"{who(daemon)}: {daemon['phase']}", width), bold=True)


def _note(daemon: dict[str, Any], condition: dict[str, Any], width: int) -> list[str]:
    """A condition that a person has to know of, and what to do; nothing of one that is well or idle."""
    weight = weight_among(condition, daemon["conditions"])
    is_news = condition["type"] in REQUIRED and condition["reason"] != "NotObserved" and not daemon["ready"]
    if weight is Weight.COMES and not is_news:
        return []
    if weight not in (Weight.COMES, Weight.WRONG):
        return []
    aside = f"{condition['type']}: {condition['reason']}, since {_clock(condition['since'])}"
    return note(condition, weight, aside, width, indent="  ")


def _summary(daemon: dict[str, Any], width: int) -> list[str]:
    """Address, cluster, run and paths, a line each."""
    found = _place_lines(daemon, f"EdgeLink {daemon.get('version', 'of an unknown version')}", width)
    if "nodes" in daemon:
        others = [node for node in daemon["nodes"] if node["hostname"] != daemon.get("hostname")]
        paused = sum(bool(node.get("paused")) for node in others)
        online = sum(node["online"] for node in others) - paused
        text = f"other machines: {len(others)} enrolled, {online} online{f', {paused} paused' if paused else ''}"
        found += wrapped("  ", text, width)
    if daemon.get("has_ray") is False:
        found += wrapped("  ", NO_RAY_IN_WORDS, width)
    nodes_ready = next((one for one in daemon["conditions"] if one["type"] == "NodesReady"), None)
    if nodes_ready is not None and nodes_ready["status"] == "True":
        found += wrapped("  ", nodes_ready["message"], width)
    if daemon.get("run") and daemon["run"]["in_progress"]:
        found += _run_lines({**daemon["run"], "attempts": daemon["run"]["attempts"][-1:]}, width)
    if daemon["paths"]:
        ways = Counter("direct" if path["path"] == "direct" else "through a relay" for path in daemon["paths"])
        told = ", ".join(f"{number} {way}" for way, number in ways.items())
        found += wrapped("  ", f"paths to other machines: {told}", width)
    return found


def _place_lines(daemon: dict[str, Any], last: str, width: int) -> list[str]:
    rank = "" if daemon.get("node_rank") is None else f"node rank {daemon['node_rank']}   "
    return wrapped(f"  overlay IP {daemon.get('overlay_ip') or '-'}   ", f"{rank}{last}", width)


def _impact_lines(daemon: dict[str, Any], width: int) -> list[str]:
    impact = daemon.get("impact") or {}
    parts = (("goes on", impact.get("goes_on")), ("waits", impact.get("waits")))
    return [
        line
        for label, names in parts
        if names is not None
        for line in hanging(f"  {label}: ", "; ".join(names) or "nothing", width)
    ]


def _daemon_lines(daemon: dict[str, Any], width: int) -> list[str]:
    found = [_title(daemon, width), *_place_lines(daemon, f"node id {daemon.get('node_id')}", width)]
    if daemon.get("ray_auth") not in (None, "token"):
        found += hanging("  Ray is protected by: ", daemon["ray_auth"], width)
    found += _impact_lines(daemon, width)
    for condition in daemon["conditions"]:
        found += _condition_lines(daemon, condition, width)
    if daemon.get("run"):
        found += _run_lines(daemon["run"], width)
    # Those that lack something first, where not all can be shown.
    for path in sorted(daemon["paths"], key=lambda path: not _is_flawed(path))[:_MOST_WAYS]:
        found += _way_lines(path, width)
    if (more := len(daemon["paths"]) - _MOST_WAYS) > 0:
        found += wrapped(
            "  → ", f"and {more} more nodes: `edgelink status --json`, and on the head `edgelink nodes`", width
        )
    return found


def _way_lines(path: dict[str, Any], width: int) -> list[str]:
    latency = "" if path["latency_ms"] is None else f", {path['latency_ms']:.1f} ms"
    loss = f", {path['loss']:.1%} lost" if path.get("loss") else ""
    flaw = ", but full packets are lost: set a smaller overlay.mtu" if path["loses_full_packets"] else ""
    head = f"  → {path['hostname']:<18} {path['overlay_ip']:<15} "
    return hanging(head, f"{way_in_words(path)}{latency}{loss}{flaw}", width)


def _is_flawed(path: dict[str, Any]) -> bool:
    return bool(path["loses_full_packets"] or path.get("loss"))


def _condition_lines(daemon: dict[str, Any], condition: dict[str, Any], width: int) -> list[str]:
    weight = weight_among(condition, daemon["conditions"])
    reason = "" if weight is Weight.WELL else f" ({condition['reason']})"
    head = f"{condition['type']:<17} {_clock(condition['since'])}  "
    return marked(weight, head, f"{condition['message']}{reason}", width, indent="  ")


def _run_lines(run: dict[str, Any], width: int) -> list[str]:
    """The attempts of the run in progress, else of the last one."""
    asked = f"retries {run['retries']}, on node loss {run['on_node_loss']}"
    found = wrapped(f"  {'run' if run['in_progress'] else 'last run'}: ", f"{run['command']} ({asked})", width)
    for attempt in run["attempts"]:
        times = _time(attempt["started_at"]) + " – " + (_time(attempt["ended_at"]) if attempt["ended_at"] else "…")
        status = "" if attempt["exit_status"] is None else f"  status {attempt['exit_status']}"
        status += f"  step {attempt['step']}" if attempt["step"] else ""
        followed = f": {attempt['what_followed']}" if attempt["what_followed"] else ""
        found += wrapped(f"    attempt {attempt['number']}  ", f"{times}{status}{followed}", width, indent=6)
        for sentence in attempt.get("waits_for", ()):
            found += wrapped("      ", sentence, width, indent=8)
    return found


def _clock(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S")


def _time(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().strftime("%m-%d %H:%M:%S")
