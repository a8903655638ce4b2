"""What a daemon shows of itself: status, log, board, metrics, flight recorder and its part of a report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from edgelink import __version__
from edgelink.api.metrics import Sample
from edgelink.api.server import Caller, Route, route
from edgelink.condition_table import Place
from edgelink.conditions import Phase, Status
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.daemon.base import Base
from edgelink.daemon.overlay_parts import Built, OverlayParts
from edgelink.log import recent, recent_after, redact
from edgelink.process.identity import usage
from edgelink.telemetry.impact import impact
from edgelink.telemetry.node_metrics import NodeMetrics
from edgelink.telemetry.others import Others
from edgelink.telemetry.recorder import machine_load
from edgelink.telemetry.report import collect

Details = Callable[[], dict[str, Any]]
Samples = Callable[[], Iterable[Sample]]


class Observation:
    """Collects what the parts tell.

    Args:
        details: what each part adds to the status; holds no secret.
        samples: what each part adds to the metrics.
        moments: what each part adds to a sample of the flight recorder.
    """

    def __init__(
        self,
        base: Base,
        overlay: OverlayParts,
        node_id: str,
        *,
        details: tuple[Details, ...],
        samples: tuple[Samples, ...],
        moments: tuple[Details, ...],
    ) -> None:
        self._base, self._overlay, self._node_id = base, overlay, node_id
        self._details, self._samples, self._moments = details, samples, moments
        self._others = Others(base.board, overlay)
        self.metrics = NodeMetrics(
            config=base.config,
            board=base.board,
            overlay=overlay,
            clock=base.clock,
            port=base.config.metrics.relay_port if base.verb == "bootstrap" else base.config.metrics.port,
            status=self.status,
            samples=self.samples,
            named=self._named,
        )
        base.board.read(Built, "metrics", self.metrics.server.wakeup)

    def start_first(self, tasks: asyncio.TaskGroup) -> None:
        """Answer and tell before anything else begins: so the start itself can be followed."""
        base = self._base
        tasks.create_task(base.telling.run(), name="service-manager")
        tasks.create_task(self.metrics.server.run(), name="metrics")
        tasks.create_task(base.api.keep_listening(base.clock), name="local-socket")

    def start(self, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self._base.recorder.run(self.sample, self._overlay.ways), name="recorder")
        tasks.create_task(self._base.standstill.run(), name="standstill")

    def status(self) -> dict[str, Any]:
        """Return what ``edgelink status`` shows; holds no secret."""
        base, facts = self._base, self._base.board.facts
        lease = facts.running.lease if facts.running else None
        easytier = self._overlay.process.identity
        found = {
            "role": base.verb,
            "version": __version__,
            "pid": os.getpid(),
            "node_id": self._node_id,
            "network_id": lease.network_id if lease else None,
            "hostname": lease.hostname if lease else None,
            "overlay_ip": str(lease.overlay_ip) if lease else None,
            "device": base.config.overlay.device,
            "phase": facts.phase.value,
            "ready": base.conditions.is_ready,
            "ride_through_s": facts.ride_through_s,
            "conditions": base.conditions.to_list(),
            "impact": impact(base.conditions) if facts.phase is Phase.DEGRADED else None,
            "easytier_pid": easytier.pid if easytier else None,
        }
        for details in self._details:
            found |= details()
        return found

    def sample(self) -> dict[str, Any]:
        """Return what the flight recorder keeps of this moment."""
        base, easytier = self._base, self._overlay.process.identity
        found: dict[str, Any] = {
            "phase": base.board.facts.phase.value,
            "not_true": {c.type: c.reason for c in base.conditions if c.status is not Status.TRUE},
            **machine_load(),
        }
        with suppress(ProcessLookupError):
            if easytier is not None:
                found["easytier_cpu_s"] = round(usage(easytier.pid).cpu_s, 2)
        for moment in self._moments:
            found |= moment()
        return found

    def samples(self) -> Iterator[Sample]:
        """Yield what the parts tell Prometheus."""
        for samples in self._samples:
            yield from samples()

    def _named(self) -> Collection[str] | None:
        """Return the nodes to which an edge tells Prometheus the way one by one. None: the others tell of all."""
        asked = self._base.board.facts.targets
        return None if self._base.place is not Place.EDGE else () if asked is None else asked.all

    def bundle(self, since_s: float) -> Callable[[], dict[str, str]]:
        """Return what makes this node's part of a report, secrets masked. Call it in a thread: it reads files."""
        base, name = self._base, self._base.api.name
        return partial(
            collect,
            base.paths,
            timedelta(seconds=since_s),
            base.clock.now(),
            config_file=Path(os.environ.get("EDGELINK_CONFIG", DEFAULT_CONFIG_FILE)),
            ray_temp=base.config.ray.temp_dir,
            answers={f"status-{name}.json": self.status(), f"daemon-{name}.log": "\n".join(recent())},
        )

    def routes(self) -> Iterator[Route]:
        yield route("GET", "/status", self._status)
        yield route("GET", "/log", self._log)
        yield route("GET", "/board", self._show_board)
        yield self._overlay.route()
        yield from self._others.routes()

    async def _status(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return self.status()

    async def _log(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        after = body.get("after", 0)
        lines, number = recent_after(after if isinstance(after, int) else 0)
        return {"lines": lines, "number": number}

    async def _show_board(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``GET /board`` to root: every fact and every part's last decision, secrets masked."""
        caller.require()
        board, now_s = self._base.board, self._base.clock.monotonic_s()
        return {
            "facts": [
                {
                    "fact": row.fact,
                    "value": redact(repr(getattr(board.facts, row.fact))),
                    "writer": row.writer,
                    "readers": row.readers,
                    "durable": row.is_durable,
                }
                for row in board.rows()
            ],
            "parts": [
                {
                    "part": last.part,
                    "decision": redact(repr(last.decision)),
                    "ago_s": round(now_s - last.at_s, 1),
                    "decisions": last.count,
                }
                for last in board.decisions()
            ],
        }
