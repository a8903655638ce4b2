"""``edgelink status``: the conditions of this node's daemons, with reasons and times."""

from __future__ import annotations

import json
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
    without_socket,
)
from edgelink.api.schema import VERSION
from edgelink.cli.layout import columns, wrapped
from edgelink.cli.options import json_option
from edgelink.cli.watch import Fact, watch, watch_option
from edgelink.config.paths import Paths
from edgelink.errors import ExitCode

_MOST_WAYS = 20  # the conditions should stay on the screen
_MARKS = {"True": ("✓", "green"), "False": ("✗", "red"), "Unknown": ("…", "yellow")}


@click.command("status")
@json_option
@watch_option
def command(*, as_json: bool, is_watching: bool) -> int:
    """What this node's daemon sees.

    Exit status 0: ready; 1: not ready, or no daemon runs here. With --watch: 0, when Ctrl-C ends it.
    """
    paths = Paths.from_environment()
    if is_watching:
        return watch(lambda: look(paths), draw=lines, facts=facts, as_json=as_json)
    seen = look(paths)
    if as_json:
        click.echo(json.dumps(seen, indent=2))
    else:
        click.echo("\n".join(lines(seen, columns())))
    return ExitCode.OK if seen["ready"] else ExitCode.FAILED


def look(paths: Paths) -> dict[str, Any]:
    """What ``--json`` prints. Raises DaemonNotRunningError."""
    daemons, silent = daemons_here(paths)
    is_ready = not silent and all(daemon["ready"] for daemon in daemons)
    return {"schema": VERSION, "ready": is_ready, "daemons": daemons, "silent": silent}


def running_daemons(paths: Paths) -> list[dict[str, Any]]:
    """The status of each daemon that answers. Raises DaemonNotRunningError: none does."""
    daemons, _ = daemons_here(paths)
    return daemons


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
            hint="start `edgelink bootstrap`, `edgelink head` or `edgelink edge`",
        )
    return daemons, silent


def _paths(socket_path: Path, timeout_s: float) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = call(socket_path, "GET", "/paths", timeout_s=timeout_s)
    except (DaemonError, DaemonNotRunningError):
        return {"paths": []}  # the conditions say what is wrong
    return answer


def lines(seen: dict[str, Any], width: int) -> list[str]:
    """For people, no line wider than ``width``; pure."""
    mark, colour = _MARKS["False"]
    told = [line for text in seen["silent"] for line in wrapped(f"{mark} ", text, width)]
    told = [line.replace(mark, click.style(mark, fg=colour), 1) for line in told]
    return told + [line for daemon in seen["daemons"] for line in _daemon_lines(daemon, width)]


def facts(seen: dict[str, Any]) -> dict[str, Fact]:
    """What ``--watch`` tells the changes of: phases, conditions, ways to other nodes; pure."""
    found = {text.partition(" was killed")[0]: Fact("silent", "was killed or hangs") for text in seen["silent"]}
    for daemon in seen["daemons"]:
        who = _who(daemon)
        found[who] = Fact(daemon["phase"], daemon["phase"])
        for one in daemon["conditions"]:
            token = f"{one['status']} {one['reason']}"
            found[f"{who}: {one['type']}"] = Fact(token, f"{token}: {one['message']}")
        for path in daemon["paths"]:
            found[f"{who}: way to {path['hostname']}"] = Fact(way_in_words(path), way_in_words(path))
    return found


def way_in_words(path: dict[str, Any]) -> str:
    """``direct, udp`` or ``through relay``; pure."""
    if path["path"] == "self":
        return "this machine"
    if path["path"] == "direct":
        return f"direct, {path['protocol']}" if path["protocol"] else "direct"
    return f"through {path['via'] or 'a relay'}"


def _who(daemon: dict[str, Any]) -> str:
    return f"{daemon['role']} {daemon.get('hostname') or '(not enrolled)'}"


def _daemon_lines(daemon: dict[str, Any], width: int) -> list[str]:
    rank = "-" if daemon.get("node_rank") is None else daemon["node_rank"]
    found = [click.style(line, bold=True) for line in wrapped("", f"{_who(daemon)}: {daemon['phase']}", width)]
    found += wrapped(
        f"  overlay IP {daemon.get('overlay_ip') or '-'}   node rank {rank}   ",
        f"node id {daemon.get('node_id')}",
        width,
    )
    if daemon.get("ray_auth") not in (None, "token"):
        found += wrapped("  Ray is protected by: ", daemon["ray_auth"], width)
    if daemon.get("impact"):
        for label, parts in (("goes on", daemon["impact"]["goes_on"]), ("waits", daemon["impact"]["waits"])):
            found += wrapped(f"  {label}: ", "; ".join(parts) or "nothing", width)
    for condition in daemon["conditions"]:
        found += _condition_lines(condition, width)
    if daemon.get("run"):
        found += _run_lines(daemon["run"], width)
    # Those that lack something first, where not all can be shown.
    for path in sorted(daemon["paths"], key=lambda path: not _is_flawed(path))[:_MOST_WAYS]:
        latency = "" if path["latency_ms"] is None else f", {path['latency_ms']:.1f} ms"
        loss = f", {path['loss']:.1%} lost" if path.get("loss") else ""
        flaw = ", but full packets are lost: set a smaller overlay.mtu" if path["loses_full_packets"] else ""
        head = f"  → {path['hostname']:<18} {path['overlay_ip']:<15} "
        found += wrapped(head, f"{way_in_words(path)}{latency}{loss}{flaw}", width)
    if (more := len(daemon["paths"]) - _MOST_WAYS) > 0:
        found += wrapped(
            "  → ", f"and {more} more nodes: `edgelink status --json`, and on the head `edgelink nodes`", width
        )
    return found


def _is_flawed(path: dict[str, Any]) -> bool:
    return bool(path["loses_full_packets"] or path.get("loss"))


def _condition_lines(condition: dict[str, Any], width: int) -> list[str]:
    mark, colour = _MARKS[condition["status"]]
    since = datetime.fromisoformat(condition["since"]).astimezone().strftime("%H:%M:%S")
    text = f"{since}  {condition['reason']}: {condition['message']}"
    first, *rest = wrapped(f"  {mark} {condition['type']:<18} ", text, width)
    return [first.replace(mark, click.style(mark, fg=colour), 1), *rest]


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
    return found


def _time(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().strftime("%m-%d %H:%M:%S")
