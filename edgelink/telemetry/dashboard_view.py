"""What the head knows at this moment, as the page's snapshot has it; nothing is asked of anybody for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from edgelink import __version__
from edgelink.api.web.history import TOTAL_STEPS, metric_names
from edgelink.api.web.model import Head, Health, NodeRow, Placed, Point, RunView
from edgelink.api.web.pace import step_of
from edgelink.conditions import Phase
from edgelink.protocol.payloads import ConditionReport, DirectoryEntry, NodeStatus
from edgelink.ray_cluster.reconcilers import RayInputs
from edgelink.runs.node_list import Nodes
from edgelink.runs.runs import Runs
from edgelink.shield.exposure import Exposure
from edgelink.telemetry.impact import impact

Ways = Mapping[str, Mapping[str, Any]]  # by overlay address


class View:
    """Makes the page's rows of what a head's daemon knows."""

    def __init__(self, inputs: RayInputs, exposure: Exposure, runs: Runs, nodes: Nodes) -> None:
        self._config, self._board, self._clock = inputs.config, inputs.board, inputs.clock
        self._conditions, self._node_id = inputs.conditions, inputs.key.node_id
        self._exposure = exposure
        self._runs = runs
        self._nodes = nodes

    def rows(self, ways: Ways, silent: frozenset[str]) -> dict[str, NodeRow]:
        """Every node of the network, by id. ``silent``: ids of those that answer no ping any more."""
        facts = self._board.facts
        if facts.directory is None:
            return {}
        found = self._nodes.rows(ways)
        ranked = {row["node_id"]: row for row in found if row["node_id"] is not None}
        placed = placed_by_rank(self._runs.lock.placement)
        rows = {}
        for entry in facts.directory.entries:
            row = ranked.get(entry.node_id)
            if row is None:
                row = self._without_rank(entry, facts.statuses.rows.get(entry.node_id), ways, silent)
            rows[entry.node_id] = node_row(entry, row, placed.get(row["node_rank"], []), self._clock.now())
        return rows

    def conditions(self) -> dict[str, tuple[ConditionReport, ...]]:
        """As each node states them, this one included; of those that are away their last word."""
        own = tuple(ConditionReport.of(condition) for condition in self._conditions)
        return {
            **{node_id: status.conditions for node_id, status in self._board.facts.statuses.rows.items()},
            self._node_id: own,
        }

    def head(self, rows: Iterable[NodeRow]) -> Head:
        """This machine, and what belongs to no node."""
        facts, found = self._board.facts, list(rows)
        lease = facts.running.lease if facts.running else None
        partly = impact(self._conditions) if facts.phase is Phase.DEGRADED else {"goes_on": [], "waits": []}
        ranked = [row for row in found if row["node_rank"] is not None]
        alive = [row for row in ranked if row["health"] in ("ok", "warning")]
        strangers = [f"Ray at {who.ip} ({who.hostname}): {why}" for who, why in self._runs.roster.strangers()]
        return Head(
            node_id=self._node_id,
            hostname=lease.hostname if lease else "",
            overlay_ip=str(lease.overlay_ip) if lease else None,
            network_id=lease.network_id if lease else None,
            version=__version__,
            phase=facts.phase.value,
            is_connected=self._conditions.is_true("RegistryConnected"),
            ray_auth=self._exposure.ray_auth,
            ray_dashboard_port=self._config.ray.dashboard_port,
            ride_through_s=facts.ride_through_s,
            goes_on=partly["goes_on"],
            waits=partly["waits"],
            notes=strangers,
            nodes=len(ranked),
            alive=len(alive),
            cpus=sum(row["cpus"] for row in alive),
            gpus=sum(row["gpus"] for row in alive),
        )

    def run(self, points: list[Point], steps_per_s: float | None) -> RunView | None:
        """The run in progress, else the last one."""
        record = self._runs.record
        if record is None:
            return None
        attempts = record["attempts"]
        step, total = step_of(attempts[-1]["step"] if attempts else None)
        newest = points[-1] if points and points[-1]["run_id"] == record["run_id"] else None
        if newest is not None:
            step = newest["step"] if step is None else step
            total = newest["values"].get(TOTAL_STEPS, total)
        return RunView(
            run_id=record["run_id"],
            command=record["command"],
            in_progress=record["in_progress"],
            attempts=attempts[-20:],
            metric_names=metric_names(points),
            step=step,
            total_steps=total,
            steps_per_s=steps_per_s,
        )

    def _without_rank(
        self, entry: DirectoryEntry, status: NodeStatus | None, ways: Ways, silent: frozenset[str]
    ) -> dict[str, Any]:
        """A relay, or who is left out of the run in progress: in the shape of a row of `edgelink nodes`."""
        way = ways.get(str(entry.overlay_ip))
        if entry.is_relay:
            wrong = ["does not answer over the overlay"] if entry.node_id in silent else []
            online, brief = not wrong, "relay" if not wrong else "silent"
        else:
            online, wrong = status is not None and status.online, []
            brief = "takes no part in the run" if online else "offline"
        return {
            "node_rank": None,
            "state": "off" if status is not None and status.is_stopped else None,
            "online": online,
            "ready": online,
            "phase": status.phase if status is not None and status.online else None,
            "ray": brief,
            "wrong": wrong,
            "path": way["path"] if way else None,
            "via": way["via"] if way else None,
            "protocol": way["protocol"] if way else None,
            "cpus": 0.0,
            "gpus": 0,
            "labels": status.labels if status else {},
            "open_ports": list(status.open_ports) if status else [],
            "versions": {"edgelink": status.edgelink_version, "easytier": status.easytier_version} if status else {},
            "loses_full_packets": bool(way and way["loses_full_packets"]),
        }


def node_row(entry: DirectoryEntry, row: Mapping[str, Any], placed: list[Placed], now: datetime) -> NodeRow:
    """The page's row of one node; pure."""
    silent_s, left_s = row.get("paused_s"), row.get("gives_up_in_s")
    return NodeRow(
        node_id=entry.node_id,
        hostname=entry.hostname,
        role=entry.role.value,
        is_relay=entry.is_relay,
        overlay_ip=str(entry.overlay_ip),
        node_rank=row["node_rank"],
        health=health(row),
        phase=row["phase"],
        brief=row["ray"],
        wrong=row["wrong"],
        path=row["path"],
        via=row["via"],
        protocol=row["protocol"],
        loses_full_packets=row["loses_full_packets"],
        cpus=row["cpus"],
        gpus=row["gpus"],
        labels=dict(row["labels"]),
        open_ports=list(row["open_ports"]),
        versions=dict(row["versions"]),
        placed=placed,
        since=None,
        silent_since=None if silent_s is None else _text(now - timedelta(seconds=silent_s)),
        given_up_at=None if left_s is None else _text(now + timedelta(seconds=left_s)),
    )


def health(row: Mapping[str, Any]) -> Health:
    """Of a row of `edgelink nodes`; pure. Who is alive in Ray and answers works, whatever its daemon says."""
    state = row.get("state")
    if state in ("paused", "off"):
        return "paused" if state == "paused" else "off"
    if row["ready"]:
        return "warning" if row["wrong"] or row["loses_full_packets"] else "ok"
    if state == "silent" or not row["online"]:
        return "away"
    is_coming = row["phase"] in (Phase.STARTING.value, Phase.READY.value) and "refused" not in row["ray"]
    return "coming" if is_coming else "trouble"


def _text(at: datetime) -> str:
    return at.isoformat(timespec="seconds")


def placed_by_rank(placement: Mapping[str, Any] | None) -> dict[int | None, list[Placed]]:
    """Which components of a resolved placement run on which node, by node rank; pure."""
    found: dict[int | None, list[Placed]] = {}
    for component, processes in (placement or {}).get("placements", {}).items():
        by_rank: dict[int, Placed] = {}
        for process in processes:
            at = by_rank.setdefault(process["node_rank"], Placed(component=component, processes=0, accelerators=[]))
            at["processes"] += 1
            at["accelerators"] += [str(each) for each in process["accelerators"]]
        for rank, placed in by_rank.items():
            placed["accelerators"] = sorted(set(placed["accelerators"]))
            found.setdefault(rank, []).append(placed)
    return found
