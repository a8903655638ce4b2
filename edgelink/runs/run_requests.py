"""Requests of the head's runs: waiting for the nodes, the run lock, the grant (ADR 0009).

A run is a request that the caller holds open. The stream it gets is, in order: ``waiting`` items whenever something
changes, one ``granted`` item with the environment and the resolved placement, then ``nodes`` items when a node is
lost or comes back. The lock is released when the caller goes away, however it goes. While it is held no node's rank
changes: a rank is frozen at `ray start`, so another one would restart Ray under the run.

A caller that starts its driver again asks once more before it lets go of the request before. One whose daemon was
restarted asks with ``running``: it is granted at once, because its driver has gone on meanwhile (ADR 0019).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from typing import Any

from pydantic import ValidationError

from edgelink.api.server import Caller, Route, route, stream_route
from edgelink.errors import ConfigError, DeadlineError, UsageError
from edgelink.log import get_logger
from edgelink.placement import Node as PlacementNode
from edgelink.placement import plan, rlinf_rules
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.runs.gang import Gang
from edgelink.runs.ray_commands import require_ray_user
from edgelink.runs.readiness import NodeReadiness
from edgelink.runs.runs import RayStoppedError, Runs
from edgelink.runs.standing import MOST_NODES
from edgelink.training.run_record import RunMetrics, RunRecord

log = get_logger("runs")


class RunRequests:
    """Routes of the head's daemon."""

    def __init__(self, runs: Runs, gang: Gang, ray: RayHeadReconciler, overlay_kind: str) -> None:
        self._gang = gang
        self._runs = runs
        self._ray = ray
        self._overlay_kind = overlay_kind

    def routes(self) -> Iterator[Route]:
        yield stream_route("POST", "/run", self.stream)
        yield stream_route("POST", "/run/apps", self.stream_apps)
        yield route("POST", "/run/record", self.note)
        yield route("POST", "/run/metrics", self.note_metrics)
        yield route("GET", "/driver-environment", self.driver_grant)
        yield route("GET", "/placement/nodes", self.live_nodes)

    async def stream(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``POST /run`` with body ``{"cluster": …, "nodes": …, "timeout_s": …, "record": …, "running": …}``.

        With ``nodes`` (names and labels) only these take part, with ranks of their own, from the wait to the end
        of the run: Ray ends on the others, and starts anew where the rank is another one.

        Raises:
            UsageError: nobody has such a name or label.
            RunInProgressError: another run holds the lock.
            RayStoppedError: Ray was stopped on every node, and only a command starts it again.
            PlacementError: the cluster section cannot be resolved on these nodes.
            DeadlineError: the nodes were not there in time.
            NotRecordedError: what the next daemon has to know of the run cannot be written.
        """
        ray = await self._require_ray(caller)
        record = _record_in(body)
        run_id, is_under_way = record.run_id if record else None, bool(body.get("running"))
        with self._runs.lock.held_by(caller, run_id, is_under_way=is_under_way):
            self._runs.note(record)
            count = node_count(body.get("cluster"))
            granted: dict[str, Any] = {"event": "granted"}
            if not ray.is_wanted:
                raise RayStoppedError
            if is_under_way:
                log.info("runs.taken_up_again", holder=self._runs.lock.holder)
                self._runs.open_edges()
                if self._runs.lock.ranks is None:  # its record was lost, and with it what the run relies on
                    self._runs.lock.use_ranks(self._runs.roster.ranks())
            else:
                timeout_s = float(body.get("timeout_s", 600.0))
                async for report in self._gang.wait_for_run(tuple(body.get("nodes") or ()), count, timeout_s):
                    yield report
                granted["left_actors"] = await ray.left_actors()
                granted |= ray.driver_grant(caller.uid)
                granted["overlay"] = self._overlay_kind
                granted["without_rank"] = [
                    f"Ray at {found.ip} ({found.hostname})" for found in self._runs.roster.without_rank()
                ]
                nodes = self._placement_nodes(count)
                granted["placement"] = None
                if body.get("cluster"):
                    found = plan(body["cluster"], nodes, rules=rlinf_rules(**body.get("rlinf", {})))
                    granted["placement"] = found.to_dict(env=False)
                self._runs.lock.grant(self._runs.roster.ranks(), granted["placement"])
                log.info("runs.granted", holder=self._runs.lock.holder)
            self._runs.show_granted()
            seen = self._runs.standing.nodes(count)
            yield {**granted, "nodes": [asdict(node) for node in seen]}
            async for report in self._watch(count, seen):
                yield report

    async def stream_apps(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``POST /run/apps`` with body ``{"record": …, "running": …}``: the lock for a run of apps.

        It needs no Ray. Where there is one, its ranks stay as they are until the run ends, as for a driver.

        Raises:
            UsageError: this user may not run anything here.
            RunInProgressError: another run holds the lock.
            NotRecordedError: what the next daemon has to know of the run cannot be written.
        """
        await require_ray_user(caller, self._ray)
        record, is_under_way = _record_in(body), bool(body.get("running"))
        run_id = record.run_id if record else None
        with self._runs.lock.held_by(caller, run_id, is_under_way=is_under_way):
            self._runs.note(record)
            if not is_under_way:
                self._runs.lock.grant(self._runs.roster.ranks(), None)
            elif self._runs.lock.ranks is None:
                self._runs.lock.use_ranks(self._runs.roster.ranks())
            log.info("runs.apps_granted", holder=self._runs.lock.holder, is_under_way=is_under_way)
            self._runs.show_granted()
            yield {"event": "granted", "environment": self._ray.program_environment(caller.uid), "nodes": []}
            await asyncio.Event().wait()  # the end of the request is the end of the run

    async def driver_grant(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``GET /driver-environment``: what a run would be granted now. Raises RayClusterError."""
        ray = await self._require_ray(caller)
        return {**ray.driver_grant(caller.uid), "edges_open_to": ray.edges_open_to(None)}

    async def note(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /run/record``: the holder's account of its attempts. Raises RunInProgressError."""
        await require_ray_user(caller, self._ray)
        record = _record_in(body)
        self._runs.lock.check(caller, record.run_id if record else None)
        self._runs.note(record)
        return {}

    async def note_metrics(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /run/metrics``: what the holder's driver said of its steps. Raises RunInProgressError."""
        await self._require_ray(caller)
        try:
            metrics = RunMetrics.model_validate(body)
        except ValidationError as error:
            raise UsageError(f"the metrics of the run cannot be read: {error}") from error
        self._runs.lock.check(caller, metrics.run_id)
        self._runs.add_points(metrics.run_id, [(point.step, point.values) for point in metrics.points])
        return {}

    async def live_nodes(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``GET /placement/nodes``: who is alive in Ray now, as nodes of a plan, and who of them is paused."""
        names = {str(entry.overlay_ip): entry.hostname for entry, _ in self._runs.roster.ranks()}
        seen = self._runs.standing.nodes()
        devices = {node.overlay_ip: node.device for node in seen}
        nodes = [
            {
                "rank": member.rank,
                "ip": member.ip,
                "hostname": names.get(member.ip, member.hostname),
                "accelerator": member.accelerator,
                "accelerator_count": member.accelerator_count,
                "device": devices.get(member.ip),
            }
            for member in self._runs.roster.alive().values()
        ]
        paused = [{"hostname": node.hostname, "why": node.pause_in_words} for node in seen if node.pause_in_words]
        return {"nodes": nodes, "paused": paused}

    async def _watch(self, count: int, last: list[NodeReadiness]) -> AsyncIterator[dict[str, Any]]:
        while True:
            await self._runs.standing.next_change()
            now = self._runs.standing.nodes(count)
            if [_facts(node) for node in now] != [_facts(node) for node in last]:
                yield {"event": "nodes", "nodes": [asdict(node) for node in now]}
            last = now

    async def _require_ray(self, caller: Caller) -> RayHeadReconciler:
        self._ray.require_enabled()
        await require_ray_user(caller, self._ray)
        return self._ray

    def _placement_nodes(self, count: int) -> list[PlacementNode]:
        alive = self._runs.roster.alive()
        nodes = []
        for ready in self._runs.standing.nodes(count):
            member = alive.get((str(ready.overlay_ip), ready.node_rank))
            if member is None:
                raise DeadlineError(
                    f"{ready.hostname or f'rank {ready.node_rank}'} was lost just before the run was granted",
                    hint="run again; `edgelink nodes` shows what is wrong with it",
                    reason="NodesMissing",
                )
            nodes.append(
                PlacementNode(
                    rank=ready.node_rank,
                    ip=str(ready.overlay_ip),
                    hostname=ready.hostname or "",
                    accelerator=member.accelerator,
                    accelerator_count=member.accelerator_count,
                )
            )
        # RLinf looks at everybody who is alive in Ray, and refuses ranks on only some of them.
        strangers = (
            PlacementNode(
                rank=None,
                ip=member.ip,
                hostname=member.hostname,
                accelerator=member.accelerator,
                accelerator_count=member.accelerator_count,
            )
            for member in self._runs.roster.without_rank()
        )
        return [*nodes, *strangers]


def _record_in(body: dict[str, Any]) -> RunRecord | None:
    """The account that a request carries. Raises UsageError."""
    if body.get("record") is None:
        return None
    try:
        return RunRecord.model_validate(body["record"])
    except ValidationError as error:
        raise UsageError(f"the account of the run cannot be read: {error}") from error


def _facts(node: NodeReadiness) -> tuple[Any, ...]:
    """What a caller whose driver runs has to be told of."""
    return node.state, node.ray_node_id, node.online, node.ray_known


def node_count(cluster: Any) -> int:
    """``cluster.num_nodes``; 0 (all who are enrolled) without a cluster file. Raises ConfigError."""
    if cluster is None:
        return 0
    count = cluster.get("num_nodes") if isinstance(cluster, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_NODES:
        raise ConfigError(f"cluster.num_nodes must be a whole number from 1 to {MOST_NODES}, not {count!r}")
    return count
