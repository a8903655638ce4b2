"""``edgelink status``: the conditions of this node's daemons, with reasons and times."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from edgelink.api.client import SILENCE_S, DaemonError, DaemonNotRunningError, call
from edgelink.cli.options import json_option
from edgelink.config.paths import Paths
from edgelink.errors import ExitCode

_MARKS = {"True": ("✓", "green"), "False": ("✗", "red"), "Unknown": ("…", "yellow")}


@click.command("status")
@json_option
def command(*, as_json: bool) -> int:
    """What this node's daemon sees.

    Exit status 0: ready; 1: not ready, or no daemon runs here.
    """
    daemons = running_daemons(Paths.from_environment())
    ready = all(daemon["ready"] for daemon in daemons)
    if as_json:
        click.echo(json.dumps({"ready": ready, "daemons": daemons}, indent=2))
    else:
        for daemon in daemons:
            _show(daemon)
    return ExitCode.OK if ready else ExitCode.FAILED


def running_daemons(paths: Paths, *, timeout_s: float = SILENCE_S) -> list[dict[str, Any]]:
    """The status of each daemon on this machine (a relay and a head may share one).

    Args:
        timeout_s: how long each may take to answer.

    Raises:
        DaemonNotRunningError: none answers.
    """
    daemons = []
    for socket_path in (paths.bootstrap_socket, paths.node_socket):
        try:
            status = call(socket_path, "GET", "/status", timeout_s=timeout_s)
            daemons.append({**status, **_paths(socket_path, timeout_s)})
        except DaemonNotRunningError:
            continue
    if not daemons:
        raise DaemonNotRunningError(
            "no EdgeLink daemon runs on this machine",
            hint="start `edgelink bootstrap`, `edgelink head` or `edgelink edge`",
        )
    return daemons


def _paths(socket_path: Path, timeout_s: float) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = call(socket_path, "GET", "/paths", timeout_s=timeout_s)
    except (DaemonError, DaemonNotRunningError):
        return {"paths": []}  # the conditions say what is wrong
    return answer


def _show(daemon: dict[str, Any]) -> None:
    rank = "-" if daemon.get("node_rank") is None else daemon["node_rank"]
    click.secho(f"{daemon['role']} {daemon.get('hostname') or '(not enrolled)'}: {daemon['phase']}", bold=True)
    click.echo(f"  overlay IP {daemon.get('overlay_ip') or '-'}   node rank {rank}   node id {daemon.get('node_id')}")
    if daemon.get("ray_auth") not in (None, "token"):
        click.echo(f"  Ray is protected by: {daemon['ray_auth']}")
    if daemon.get("impact"):
        for label, parts in (("goes on", daemon["impact"]["goes_on"]), ("waits", daemon["impact"]["waits"])):
            click.echo(f"  {label}: {'; '.join(parts) or 'nothing'}")
    for condition in daemon["conditions"]:
        mark, colour = _MARKS[condition["status"]]
        since = datetime.fromisoformat(condition["since"]).astimezone().strftime("%H:%M:%S")
        click.echo(
            f"  {click.style(mark, fg=colour)} {condition['type']:<18} {since}  {condition['reason']}: "
            f"{condition['message']}"
        )
    if daemon.get("run"):
        _show_run(daemon["run"])
    for path in daemon["paths"]:
        way = f"direct, {path['protocol']}" if path["path"] == "direct" else f"through {path['via'] or 'a relay'}"
        latency = "" if path["latency_ms"] is None else f", {path['latency_ms']:.1f} ms"
        flaw = ", but full packets are lost: set a smaller overlay.mtu" if path["loses_full_packets"] else ""
        click.echo(f"  → {path['hostname']:<18} {path['overlay_ip']:<15} {way}{latency}{flaw}")


def _show_run(run: dict[str, Any]) -> None:
    """The attempts of the run in progress, else of the last one."""
    asked = f"retries {run['retries']}, on node loss {run['on_node_loss']}"
    click.echo(f"  {'run' if run['in_progress'] else 'last run'}: {run['command']} ({asked})")
    for attempt in run["attempts"]:
        times = _time(attempt["started_at"]) + " – " + (_time(attempt["ended_at"]) if attempt["ended_at"] else "…")
        status = "" if attempt["exit_status"] is None else f"  status {attempt['exit_status']}"
        status += f"  step {attempt['step']}" if attempt["step"] else ""
        followed = f": {attempt['what_followed']}" if attempt["what_followed"] else ""
        click.echo(f"    attempt {attempt['number']}  {times}{status}{followed}")


def _time(text: str) -> str:
    return datetime.fromisoformat(text).astimezone().strftime("%m-%d %H:%M:%S")
