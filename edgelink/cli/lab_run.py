"""``edgelink lab run``: the demo. Everything in it is the real thing; only the machines are namespaces."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from edgelink.cli.layout import say
from edgelink.errors import ExitCode
from edgelink.lab.road import Road, run_report, write_demo_cluster, write_report
from edgelink.service.units import own_program

_TRAIN_TIMEOUT = "3m"


def run_whole_road(
    road: Road, *, edges: int, accelerators: bool, seed: int, report_file: Path | None, keep: bool
) -> int:
    """Bring the lab up, train, report, remove it; the training's exit status."""
    try:
        road.bring_up(edges, accelerators=accelerators)
        work = road.lab.directory
        cluster_file = write_demo_cluster(work / "cluster.yaml", edges)
        trained_file = work / "trained.json"
        status = road.run(
            ["edgelink", "train", f"run.seed={seed}", "--report", str(trained_file)],
            cluster_file=cluster_file,
            timeout=_TRAIN_TIMEOUT,
        )
        if status != ExitCode.OK:
            say(f"the training ended with status {status}")
            return status
        report = run_report(road, json.loads(trained_file.read_text()), edges)
    finally:
        if not keep:
            with road.stage("clean-up"):
                road.lab.down()
    if report_file is not None:
        write_report(report_file, report)
    show_summary(report)
    return ExitCode.OK


def show_summary(report: dict[str, Any]) -> None:
    """Who got which address and rank, where each process ran, what was learned, how long it took."""
    console = Console()
    nodes = Table(title="nodes", title_justify="left")
    for column in ("node", "overlay IP", "node rank", "Ray node", "et0 received", "et0 sent"):
        nodes.add_column(column)
    for node in report["nodes"]:
        rank = "-" if node["node_rank"] is None else str(node["node_rank"])
        ray_node = (node["ray_node_id"] or "-")[:12]
        moved = (_mib(node.get("rx_bytes")), _mib(node.get("tx_bytes")))
        nodes.add_row(node["name"], node["overlay_ip"], rank, ray_node, *moved)
    console.print(nodes)
    workers = Table(title="where each process ran", title_justify="left")
    for column in ("process", "node", "overlay IP", "pid", "network namespace", "samples"):
        workers.add_column(column)
    for worker in report["placements"]:
        workers.add_row(
            f"{worker['component']}:{worker['process_rank']}",
            worker["hostname"],
            worker["device_address"],
            str(worker["pid"]),
            str(worker["network_namespace"]),
            str(worker.get("samples", "-")),
        )
    console.print(workers)
    before, after = report["return_before"], report["return_after"]
    took_s = sum(report["stages"].values())
    console.print(
        f"return {before:.1f} before, {after:.1f} after training ({after / before:.1f} times); {took_s:.0f} s in all"
    )
    program = "edgelink" if shutil.which("edgelink") else os.path.relpath(own_program()[0])
    console.print(f"next: such machines to try commands on:  {program} lab up", soft_wrap=True, highlight=False)
    console.print("next: the same on your own machines:  the documentation's tutorial", highlight=False)


def _mib(count: int | None) -> str:
    return "-" if count is None else f"{count / 2**20:.1f} MiB"
