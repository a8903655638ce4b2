"""`edgelink restart-ray` on an edge: its own Ray only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from edgelink.api.server import Caller, Route, stream_route
from edgelink.errors import RayClusterError
from edgelink.process import Identity
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayInputs
from edgelink.runs.progress import all_ready, follow_by_clock
from edgelink.runs.ray_commands import require_ray_user
from edgelink.runs.readiness import NodeReadiness
from edgelink.runs.run_lock import RunInProgressError

_TIMEOUT_S = 120.0


class EdgeRay:
    """Routes of the edge's daemon."""

    def __init__(self, node: RayInputs, ray: RayEdgeReconciler) -> None:
        self._node = node
        self._ray = ray

    def route(self) -> Route:
        return stream_route("POST", "/restart-ray", self.restart)

    async def restart(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``{"force": …, "timeout_s": …}``.

        Raises:
            RunInProgressError: a driver has workers here.
            RayClusterError: there is no cluster to join.
            DeadlineError: the new Ray has not joined in time; it goes on.
        """
        await require_ray_user(caller, self._ray)
        self._ray.require_enabled()
        if not body.get("force"):
            self.refuse_in_use()
        spec = self._node.board.facts.cluster_spec
        if spec is None or not spec.ray_wanted:
            raise RayClusterError(
                "the head has no Ray that this node could join" if spec else "the head has published no cluster yet",
                hint="`edgelink status` says what this node waits for; `edgelink restart-ray --all` on the head starts "
                "a Ray that was stopped",
                reason="HeadNotSeen",
            )
        before = self._raylet
        self._ray.restart("`edgelink restart-ray` asks for it")

        def rows() -> list[NodeReadiness]:
            return [self._row(is_new=self._raylet not in (None, before))]

        timeout_s = float(body.get("timeout_s", _TIMEOUT_S))
        hint = "it goes on by itself; `edgelink status` says what it waits for"
        async for report in follow_by_clock(rows, all_ready, clock=self._node.clock, timeout_s=timeout_s, hint=hint):
            yield report
        yield {"event": "done", "absent": []}

    @property
    def _raylet(self) -> Identity | None:
        record = self._ray.ray.node.record
        return record.raylet if record else None

    def refuse_in_use(self) -> None:
        """Raises RunInProgressError while a driver has tasks or actors here."""
        if workers := self._ray.ray.node.workers_in_use():
            raise RunInProgressError(
                f"a run uses this node: {', '.join(workers)}",
                hint="wait for its end, or accept that it fails: --force",
            )

    def _row(self, *, is_new: bool) -> NodeReadiness:
        joined = self._node.conditions.get("RayJoined")
        running = self._node.board.facts.running
        lease = running.lease if running else None
        ready = is_new and self._node.conditions.is_true("RayJoined")
        message = joined.message if is_new else "its former Ray is still there"
        return NodeReadiness(
            (lease.preferred_rank if lease else None) or 0,
            lease.hostname if lease else None,
            str(lease.overlay_ip) if lease else None,
            ready=ready,
            step="RayJoined",
            message=message if ready or not is_new else f"{joined.reason}: {joined.message}",
            brief="ready" if ready else joined.reason if is_new else message,
        )
