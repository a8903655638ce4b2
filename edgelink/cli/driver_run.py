"""The caller's side of a run (ADR 0009): hold the request open, show who is missing, run the command."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from edgelink.api.client import DaemonError, DaemonNotRunningError, call, stream
from edgelink.cli.waiting import WaitingList
from edgelink.config.paths import Paths
from edgelink.errors import EdgelinkError, UsageError
from edgelink.placement import check_before_waiting, load_cluster_file
from edgelink.ray_cluster.environment import driver_environment
from edgelink.training.driver import run_driver


def run_driver_here(paths: Paths, cluster_file: Path | None, timeout_s: float, argv: tuple[str, ...]) -> int:
    """Run ``argv`` with the head daemon of this machine; the command's exit status.

    Raises:
        PlacementError: the cluster file is unusable.
        UsageError: this machine is not the head.
        DaemonError: the nodes were not there in time, or the run was refused.
    """
    cluster = None if cluster_file is None else read_cluster_file(cluster_file)
    refuse_elsewhere(paths)
    body = {"cluster": cluster, "timeout_s": timeout_s, "command": argv[0]}
    events = stream(paths.node_socket, "POST", "/run", body)
    with tempfile.TemporaryDirectory(prefix="edgelink-run-") as directory:
        granted = _wait(events)
        environment = driver_environment(dict(os.environ), granted["environment"])
        if granted["placement"] is not None:
            file = Path(directory) / "placement.json"
            file.write_text(json.dumps(granted["placement"], indent=2))
            environment["EDGELINK_PLACEMENT"] = str(file)
        program = _find_program(argv[0], environment["PATH"])
        threading.Thread(target=_show_events, args=(events,), name="nodes", daemon=True).start()
        return run_driver([program, *argv[1:]], environment, Path.cwd())


def read_cluster_file(path: Path) -> Mapping[str, Any]:
    """The cluster section; raises PlacementError for what is wrong with it whatever nodes there are."""
    cluster = load_cluster_file(path)
    check_before_waiting(cluster)
    return cluster


def _find_program(name: str, path: str) -> str:
    """``name`` as the driver's PATH has it. Raises UsageError."""
    program = shutil.which(name, path=path)
    if program is None:
        raise UsageError(f"{name}: command not found", hint=f"it was looked for in {path}")
    return program


def refuse_elsewhere(paths: Paths) -> None:
    """Training is launched on the head only; anywhere else, say where that is."""
    try:
        status = call(paths.node_socket, "GET", "/status")
    except DaemonNotRunningError as error:
        raise UsageError(
            f"no head daemon runs on this machine ({paths.node_socket} does not answer)",
            hint="start `edgelink head` here first; training is launched on the head only",
            reason="NotTheHead",
        ) from error
    if status["role"] != "head":
        head = status.get("head") or {}
        where = f"{head['hostname']} ({head['overlay_ip']})" if head else "not enrolled yet"
        raise UsageError(
            f"this machine is {status['role']} {status['hostname']}; training is launched on the head only",
            hint=f"run this on the head: {where}",
            reason="NotTheHead",
        )


def _wait(events: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Show the live list until the run is granted."""
    with WaitingList(sys.stderr) as waiting:
        for event in events:
            if event["event"] == "granted":
                return event
            waiting.show(event["nodes"], event.get("left_s"))
    raise EdgelinkError("the head daemon ended while the run was waiting", hint="`edgelink status` and its log say why")


def _show_events(events: Iterator[dict[str, Any]]) -> None:
    """Say on stderr when a node is lost or back; stdout stays the command's own."""
    try:
        for event in events:
            lost = [node["hostname"] for node in event.get("nodes", []) if not node["ready"]]
            message = f"not alive in Ray: {', '.join(lost)}" if lost else "all nodes are alive in Ray again"
            click.echo(f"edgelink: {message}", err=True)
    except (DaemonError, DaemonNotRunningError):
        return
