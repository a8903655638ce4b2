"""The head's verbs for everybody's Ray: `edgelink restart-ray` and `edgelink stop --all` (ADR 0014).

Both write a wish, which the cluster spec carries to the nodes, and tell the caller, live, who has followed. They hold
the run lock meanwhile: no run begins on a Ray that is about to end.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from edgelink.api.server import Caller, Route, route, stream_route
from edgelink.errors import DeadlineError, UsageError
from edgelink.log import get_logger
from edgelink.process import is_alive
from edgelink.ray_cluster.no_ray import NO_RAY_IN_WORDS
from edgelink.ray_cluster.reconcilers import RayHeadReconciler, RayInputs
from edgelink.relay.allocator import HEAD_RANK
from edgelink.runs.progress import LOOK_S, all_ready, follow_by_clock
from edgelink.runs.ray_commands import require_ray_user
from edgelink.runs.readiness import NodeReadiness
from edgelink.runs.run_lock import RunInProgressError
from edgelink.runs.runs import RayStoppedError, Runs

_TIMEOUT_S = 120.0
log = get_logger("ray")


class ClusterRay:
    """Routes of the head's daemon."""

    def __init__(self, node: RayInputs, runs: Runs, ray: RayHeadReconciler) -> None:
        self._node = node
        self._runs = runs
        self._ray = ray

    def routes(self) -> Iterator[Route]:
        yield stream_route("POST", "/restart-ray", self.restart)
        yield stream_route("POST", "/stop-all", self.stop)
        yield route("POST", "/want-ray", self.want)

    async def restart(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``{"node": name or null, "force": …, "timeout_s": …}``; without a node, or with ours, all restart.

        The head's Ray is the cluster: a new one is a new cluster, which every edge joins with a new Ray.

        Raises:
            RunInProgressError: a run would lose its Ray.
            UsageError: no such node.
            RayStoppedError: Ray was stopped everywhere; one node alone cannot have it again.
            DeadlineError: not everybody has a new Ray in time; they go on.
        """
        self._ray.require_enabled()
        await require_ray_user(caller, self._ray)
        with nullcontext() if body.get("force") else self._runs.lock.held_by(caller):
            before = {node.node_rank: node.ray_node_id for node in self._runs.standing.nodes()}
            rank = self._wish_restart(body.get("node"))

            def rows() -> list[NodeReadiness]:
                asked = [node for node in self._runs.standing.nodes() if _is_asked(node, rank, before)]
                return [renewed(node, before) for node in asked]

            hint = "what is named goes on by itself; `edgelink status` there says what it waits for"
            timeout_s = float(body.get("timeout_s", _TIMEOUT_S))
            async for report in follow_by_clock(
                rows, all_ready, clock=self._node.clock, timeout_s=timeout_s, hint=hint
            ):
                yield report
            others = [node for node in self._runs.standing.nodes() if not _is_asked(node, rank, before)]
            yield {"event": "done", "absent": [node.hostname for node in others] if rank is None else []}

    async def want(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Start Ray where it was stopped everywhere; what runs stays as it is."""
        self._ray.require_enabled()
        await require_ray_user(caller, self._ray)
        if not self._ray.is_wanted:
            self._ray.wishes.want_ray(True)
        return {}

    def _wish_restart(self, name: str | None) -> int | None:
        """The rank of the node whose Ray is to be a new one; None: everybody's."""
        wishes, own = self._ray.wishes, self._node.key.node_id
        entries = {entry.node_id: (entry, rank) for entry, rank in self._runs.roster.ranks()}
        named = [node_id for node_id, (entry, _) in entries.items() if name in (node_id, entry.hostname)]
        if name is not None and not named:
            if any(name in (entry.node_id, entry.hostname) for entry in self._runs.roster.without_ray()):
                raise UsageError(
                    f"{name} has {NO_RAY_IN_WORDS}",
                    hint="take `ray: off` out of its configuration, and start its daemon anew",
                )
            known = ", ".join(sorted(entry.hostname for entry, _ in entries.values())) or "nobody yet"
            raise UsageError(f"no node {name!r} takes part in Ray here", hint=f"name one of: {known}")
        node_id = named[0] if named else own
        if node_id != own and not self._ray.is_wanted:
            raise RayStoppedError
        if self._ray.is_wanted:
            wishes.want_restart(node_id)
        else:
            wishes.want_ray(True)
        log.info("ray.restart_wanted", node=node_id, everywhere=node_id == own)
        return None if node_id == own else entries[node_id][1]

    async def stop(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``{"timeout_s": …}``: end the run in progress, then Ray on the edges, then our own.

        Raises:
            RunInProgressError: the run in progress cannot be ended from here.
            DeadlineError: the run, or our own Ray, has not ended in time.
        """
        self._ray.require_enabled()
        await require_ray_user(caller, self._ray)
        timeout_s = float(body.get("timeout_s", _TIMEOUT_S))
        if (holder := self._runs.lock.holder) is not None:
            yield {"event": "told", "message": f"ending the run of {holder}"}
            await self._end_run(timeout_s)
        with self._runs.lock.held_by(caller):
            self._ray.wishes.want_ray(False)
            log.info("ray.stopped_everywhere", by_uid=caller.uid)
            seen: list[NodeReadiness] = []

            def rows() -> Sequence[NodeReadiness]:
                nonlocal seen
                # Once the head's Ray has ended nobody can be asked any more: what was seen last holds.
                if self._is_running:
                    seen = [stopped(node) for node in self._runs.standing.nodes()]
                else:
                    seen = [at_the_end(node, self._ray.left_alive) for node in seen]
                return seen

            hint = "the others' Ray ends when their daemons are back; `edgelink status` here says what holds ours up"
            async for report in follow_by_clock(
                rows, lambda _rows: self._is_gone, clock=self._node.clock, timeout_s=timeout_s, hint=hint
            ):
                yield report
            yield {"event": "done", "absent": [node.hostname for node in seen if not node.ready]}

    @property
    def _is_gone(self) -> bool:
        """Nothing of the head's Ray is left: with the raylet dead, the GCS may still be on its way."""
        return self._ray.ray.node.record is None

    @property
    def _is_running(self) -> bool:
        return self._ray.ray.node.is_running

    async def _end_run(self, timeout_s: float) -> None:
        """SIGTERM to the command that holds the run lock; it passes it on to the driver, and waits for it."""
        lock, clock = self._runs.lock, self._node.clock
        process, holder = lock.process, lock.holder
        if process is None:
            raise RunInProgressError(
                f"a run is in progress on this head: {holder}", hint="it runs in another container: stop it there"
            )
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process.pid)
            try:
                if is_alive(process):  # only now is it certain that the descriptor is of this very process
                    signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            finally:
                os.close(descriptor)
        deadline_s = clock.monotonic_s() + timeout_s
        while lock.holder == holder:
            if clock.monotonic_s() >= deadline_s:
                raise DeadlineError(
                    f"the run of {holder} has not ended {timeout_s:g} s after SIGTERM; Ray was not touched",
                    hint="end it with SIGKILL, then `edgelink stop --all` again",
                )
            await clock.sleep(LOOK_S)


def renewed(node: NodeReadiness, before: Mapping[int, str | None]) -> NodeReadiness:
    """Ready is who has another Ray than before; pure."""
    if node.ready and node.ray_node_id == before.get(node.node_rank):
        return replace(
            node, ready=False, message="its former Ray is still there", brief="its former Ray is still there"
        )
    return node


def stopped(node: NodeReadiness) -> NodeReadiness:
    """Ready is whom Ray does not list as alive any more; pure."""
    if node.ray_node_id is None:  # whoever is paused or off can have one
        return replace(node, ready=True, message="Ray has ended", brief="Ray ended")
    why = "Ray is ending" if node.online else "its daemon does not answer: its Ray ends when that is back"
    return replace(node, ready=False, message=why, brief=why)


def at_the_end(node: NodeReadiness, left_alive: Sequence[str] | None) -> NodeReadiness:
    """The same when the head's Ray has ended; ``left_alive``: whom it still listed then, by address. Pure."""
    if node.node_rank == HEAD_RANK or (left_alive is not None and node.overlay_ip not in left_alive):
        return replace(node, ready=True, message="Ray has ended", brief="Ray ended")
    return node


def _is_asked(node: NodeReadiness, rank: int | None, before: Mapping[int, str | None]) -> bool:
    """Of everybody, those who are there: who is away follows when it is back."""
    if rank is not None:
        return node.node_rank == rank
    was_alive = before.get(node.node_rank) and node.state != "off"
    return bool(node.node_rank == HEAD_RANK or node.online or was_alive)
