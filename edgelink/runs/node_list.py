"""What the head tells of all nodes, and waits for on demand: `edgelink nodes` and `edgelink wait`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol

from edgelink.api import metrics
from edgelink.api.metrics import Sample
from edgelink.api.server import Caller, Route, route, stream_route
from edgelink.conditions import Status
from edgelink.duration import brief
from edgelink.errors import DeadlineError, UsageError
from edgelink.protocol.payloads import DirectoryEntry, NodeStatus
from edgelink.ray_cluster.reconcilers import RayInputs
from edgelink.runs.gang import Gang
from edgelink.runs.progress import Rows, missing_in_words
from edgelink.runs.readiness import NodeReadiness
from edgelink.runs.runs import Runs
from edgelink.runs.standing import MOST_NODES

# Beside those that a node needs, which its readiness tells of; the others hold for a machine's life, or are the head's.
_ALSO_WRONG = (
    "AddressesUnique",
    "OverlayCpuNormal",
    "RayCurrent",
    "RelaysReachable",
    "SecretCurrent",
    "Shielded",
    "StateRecorded",
)
_GOALS = ("nodes", "gpus", "cpus")


class Overlay(Protocol):
    """What is needed of the head's overlay."""

    async def ways(self) -> list[dict[str, Any]]:
        """Return on what way each other node is reached."""


class Nodes:
    """Routes of the head's daemon, for every local user."""

    def __init__(self, inputs: RayInputs, overlay: Overlay, runs: Runs, gang: Gang) -> None:
        self._board, self._node_id = inputs.board, inputs.key.node_id
        self._overlay = overlay
        self._gang = gang
        self._runs = runs

    def routes(self) -> Iterator[Route]:
        yield route("GET", "/nodes", self.list)
        yield stream_route("POST", "/wait", self.wait)

    def rows(self, ways: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Of every node that takes part, then of those that have no Ray by their configuration.

        Args:
            ways: how each is reached, by overlay address.
        """
        entries = {rank: entry for entry, rank in self._runs.roster.ranks()}
        return [
            self._row(node, entry, ways.get(str(node.overlay_ip)))
            for node, entry in (
                *((node, entries.get(node.node_rank)) for node in self._runs.standing.nodes()),
                *zip(self._runs.standing.nodes_without_ray(), self._runs.roster.without_ray(), strict=True),
            )
        ]

    async def list(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Every node that has a rank, who else is alive in Ray, and the totals of what Ray has."""
        found = self._runs.standing.nodes()
        ways = {way["overlay_ip"]: way for way in await self._overlay.ways()}
        spec = self._board.facts.cluster_spec
        return {
            "nodes": self.rows(ways),
            "edges_open_to": spec.edges_open_to if spec is not None else "all",
            "strangers": [
                {
                    "overlay_ip": member.ip,
                    "hostname": member.hostname,
                    "node_rank": member.rank,
                    "ray_node_id": member.node_id,
                    "cpus": member.cpus,
                    "gpus": member.accelerator_count,
                    "wrong": [why],
                }
                for member, why in self._runs.roster.strangers()
            ],
            "left_out": [
                {"hostname": entry.hostname, "node_id": entry.node_id, "overlay_ip": str(entry.overlay_ip)}
                for entry in self._runs.roster.left_out()
            ],
            "totals": {"enrolled": len(found), "without_ray": len(self._runs.roster.without_ray()), **totals(found)},
        }

    def samples(self) -> Iterator[Sample]:
        """What the head tells Prometheus of the cluster and of its runs."""
        found = self._runs.standing.nodes()
        yield from metrics.of_cluster(
            [asdict(node) for node in found], totals(found), len(self._runs.roster.strangers())
        )
        yield from metrics.of_nodes_without_ray([asdict(node) for node in self._runs.standing.nodes_without_ray()])
        yield from metrics.of_run(self._runs.record)

    async def wait(self, _caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``{"goals": {"nodes": 2, "gpus": 16, "cpus": 8}, "timeout_s": …}``, each goal as wanted.

        Raises:
            UsageError: no such goal, or more nodes than any network has.
            DeadlineError: it is not reached in time; names who is missing, and why.
        """
        goals = _goals(body.get("goals"))

        def is_reached(rows: Rows) -> bool:
            has = totals(rows)
            return all(has[name] >= wanted for name, wanted in goals.items())

        def late(rows: Rows, timeout_s: float) -> DeadlineError:
            has = totals(rows)
            short = ", ".join(f"{has[name]:g} of {wanted} {name}" for name, wanted in goals.items())
            missing = missing_in_words(rows)
            return DeadlineError(
                f"{short} after {timeout_s:.0f} s; {f'missing: {missing}' if missing else 'every node is there'}",
                hint="`edgelink nodes` shows what each has; mend what is named, or give more time with --timeout",
                reason="NodesMissing",
            )

        count = goals.get("nodes", 0)
        enrolled = len(self._runs.roster.ranks())
        async for report in self._gang.wait(
            max(count, enrolled), float(body.get("timeout_s", 600.0)), is_reached, late
        ):
            yield report
        yield {"event": "done", "totals": totals(self._runs.standing.nodes())}

    def _row(self, node: NodeReadiness, entry: DirectoryEntry | None, way: Mapping[str, Any] | None) -> dict[str, Any]:
        facts = self._board.facts
        is_own = entry is not None and entry.node_id == self._node_id
        status: NodeStatus | None = None
        if entry is not None:
            status = facts.node_status if is_own else facts.statuses.rows.get(entry.node_id)
        return {
            "hostname": node.hostname,
            "node_id": entry.node_id if entry else None,
            "role": entry.role.value if entry else None,
            "node_rank": None if node.without_ray else node.node_rank,
            "has_ray": not node.without_ray,
            "overlay_ip": node.overlay_ip,
            "online": None if status is None else status.online,
            "phase": None if status is None or not status.online else status.phase,
            "ready": node.ready,
            "state": node.state,
            "paused_s": node.paused_s,
            "gives_up_in_s": node.gives_up_in_s,
            "told_by": node.told_by,
            "ray": _in_ray(node),
            "ray_node_id": node.ray_node_id,
            "path": "self" if is_own else way["path"] if way else None,
            "via": way["via"] if way else None,
            "protocol": way["protocol"] if way else None,
            "latency_ms": way["latency_ms"] if way else None,
            "loses_full_packets": bool(way and way.get("loses_full_packets")),
            "cpus": node.cpus,
            "gpus": node.accelerators,
            "labels": status.labels if status else {},
            "open_ports": list(status.open_ports) if status else [],
            "versions": _versions(status),
            "wrong": wrong(node, status),
        }


def totals(rows: Rows) -> dict[str, float]:
    """What Ray has of those that are ready; pure."""
    ready = [node for node in rows if node.ready]
    return {
        "nodes": len(ready),
        "gpus": sum(node.accelerators for node in ready),
        "cpus": sum(node.cpus for node in ready),
    }


def _in_ray(node: NodeReadiness) -> str:
    if node.paused_s is not None:
        return f"paused {brief(node.paused_s)}"
    return "alive" if node.ready and not node.without_ray else node.brief


def wrong(node: NodeReadiness, status: NodeStatus | None) -> list[str]:
    """What a person should look at on this node; pure."""
    found = [] if node.ready else [node.message]
    if node.pause_in_words:
        found = [f"paused: {node.pause_in_words}"]
    found += node.warnings
    if status is not None and status.online:
        found += [
            f"{condition.reason}: {condition.message}"
            for condition in status.conditions
            if condition.type in _ALSO_WRONG and condition.status is Status.FALSE
        ]
    return found


def _versions(status: NodeStatus | None) -> dict[str, str | None]:
    if status is None:
        return {}
    has_ray = status.ray_version is not None
    return {
        "edgelink": status.edgelink_version or None,
        "easytier": status.easytier_version,
        "python": status.python_version if has_ray else None,
        "ray": status.ray_version,
        **(status.packages or {}),
    }


def _goals(asked: Any) -> dict[str, int]:
    if (
        not isinstance(asked, dict)
        or not asked
        or not set(asked) <= set(_GOALS)
        or not all(type(wanted) is int and wanted >= 1 for wanted in asked.values())
    ):
        raise UsageError(
            f"what to wait for: {asked!r} is not understood",
            hint=f"name some of {', '.join(_GOALS)}, each with a whole number of at least 1",
        )
    if asked.get("nodes", 1) > MOST_NODES:  # every local user may ask, and each rank asked for is a row of work
        raise UsageError(f"nodes={asked['nodes']}: no network has more than {MOST_NODES}", hint="ask for fewer")
    return dict(asked)
