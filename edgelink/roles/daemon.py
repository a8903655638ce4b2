"""What every daemon has: conditions that are logged, a local API with /status and /stop, the overlay's parts."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from edgelink import __version__
from edgelink.api.metrics import Sample
from edgelink.api.server import Caller, LocalApi, Route, route
from edgelink.clock import Clock
from edgelink.condition_table import NODES, Place, types_on
from edgelink.conditions import Condition, Conditions, ConditionSet, Phase, Status
from edgelink.config import Config, Paths
from edgelink.config.paths import DEFAULT_CONFIG_FILE
from edgelink.daemon.lifecycle import StopRequest
from edgelink.daemon.this_machine import ThisMachine
from edgelink.daemon.usable import require_usable
from edgelink.facts.board import Fact
from edgelink.facts.derive import board_of, derive_patience
from edgelink.facts.part import run_part
from edgelink.log import get_logger, recent, recent_after, redact
from edgelink.outage import Outage
from edgelink.process.identity import usage
from edgelink.process.service_manager import ServiceManager
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.host_ride_through import RideThroughReconciler
from edgelink.reconcile import run_reconciler
from edgelink.roles.overlay_parts import Built, OverlayParts
from edgelink.roles.session_parts import OPENINGS, Allowed, openings
from edgelink.shield.exposure import Exposure
from edgelink.shield.inside import LeftOpenPorts
from edgelink.standstill import Standstill
from edgelink.state_files import StateFiles
from edgelink.telemetry.impact import impact
from edgelink.telemetry.node_metrics import NodeMetrics
from edgelink.telemetry.others import KnownNode, Others
from edgelink.telemetry.recorder import Recorder, machine_load
from edgelink.telemetry.report import collect

log = get_logger("node")


CONDITIONS: Final[Fact[Conditions]] = Fact("conditions")
IS_STOPPING: Final[Fact[bool]] = Fact("is_stopping")


class Daemon(ABC):
    """The common part of the relay's daemon and a node's. ``role`` is the verb that starts it."""

    key: NodeKey

    def __init__(
        self,
        *,
        role: str,
        config: Config,
        paths: Paths,
        clock: Clock,
        machine: ThisMachine,
        socket: Path,
        place: Place,
    ) -> None:
        self.machine = machine
        self.config = config
        self.paths = paths
        self.clock = clock
        self._manager = ServiceManager.of_this_process()
        self.stop_request = StopRequest(
            self._manager,
            require_usable=partial(require_usable, paths=paths, manager=self._manager),
            before_end=self.before_end,
        )
        self._was_ready = asyncio.Event()
        self._outages: dict[str, Outage] = {}  # by condition, as far as it is not True
        self._told: dict[str, str | None] = {}  # the reason of each that is True
        self._logged_phase = Phase.STARTING
        self._required, shown = types_on(
            place,
            runs_easytier=config.overlay.kind == "easytier",
            answers_stun=bool(config.relay.stun_ports),
            has_ray=config.ray.enabled or place not in NODES,
        )
        self.board = board_of(config)
        derive_patience(self.board, config, place)
        self.board.derive(OPENINGS, "what is opened", Allowed, partial(openings, config=config))
        self.conditions = ConditionSet(clock, self._required, shown, on_change=self.condition_changed)
        self._put_conditions = self.board.claim(CONDITIONS, "conditions")
        self._put_conditions(self.conditions.now)
        self.put_is_stopping = self.board.claim(IS_STOPPING, "lifecycle")
        self.files = StateFiles(self.conditions)
        self._standstill = Standstill(self.board, clock)
        self.launcher = machine.launcher(config.process.launcher, self._manager, paths, clock)
        self.parts = OverlayParts(
            config=config,
            paths=paths,
            conditions=self.conditions,
            clock=clock,
            machine=machine,
            board=self.board,
            launcher=self.launcher,
            files=self.files,
            is_watchful=role in ("bootstrap", Role.HEAD.value),
        )
        self._tables = machine.tables()
        left_open = LeftOpenPorts(paths.left_open_of(socket.stem), self.files, clock)
        has_ray = place in (Place.HEAD, Place.EDGE)
        self.local_ray = machine.ray(config, paths, clock, self.launcher, self.files) if has_ray else None
        self.exposure = Exposure(
            self.board,
            config,
            self.parts.set_rules,
            self._tables,
            machine,
            left_open,
            clock,
            easytier=self.parts.overlay.guard,
            ray=self.local_ray,
        )
        self.api = LocalApi(socket, paths.lock_of(socket.stem))
        self.others = Others(board=self.board, known=self.known_nodes, overlay=self.parts)
        # One directory each: relay and head may share a state directory.
        self.recorder = Recorder(paths.recorder / socket.stem, clock, self.sample, self.parts.ways)
        self.ride_through = RideThroughReconciler(
            config=config,
            paths=paths,
            conditions=self.conditions,
            clock=clock,
            board=self.board,
            is_heads=role == Role.HEAD.value,
            proc_sys=machine.proc_sys,
        )
        self._role = role
        self.metrics = NodeMetrics(
            config=config,
            is_relays=role == "bootstrap",
            status=self.status,
            membership=lambda: self.membership,
            parts=self.parts,
            conditions=self.conditions,
            clock=clock,
            more=self.samples,
            named=self.named_nodes,
        )
        self.board.read(Built, "metrics", self.metrics.server.wakeup)

    def condition_changed(self, condition: Condition) -> None:
        """A condition has another status, reason or message; logged is what is new in its outage."""
        self._put_conditions(self.conditions.now)
        outage = self._outages.setdefault(condition.type, Outage(self.clock))
        is_true = condition.status is Status.TRUE
        lasted_s = outage.over() if is_true else None
        is_news = self._told.get(condition.type) != condition.reason if is_true else outage.is_news(condition.reason)
        self._told[condition.type] = condition.reason if is_true else None
        if is_news:
            lasted = {} if lasted_s is None or condition.type not in self._required else {"lasted_s": lasted_s}
            log.info(
                "node.condition",
                condition=condition.type,
                status=condition.status.value,
                reason=condition.reason,
                message=condition.message,
                **lasted,
            )
            self.recorder.note("condition", **condition.to_dict(), **lasted)
        phase = self.board.facts.phase
        if phase is not self._logged_phase:
            self._logged_phase = phase
            log.info("node.phase", phase=phase.value)
        if self._manager is not None:
            self._manager.notify(STATUS=self._status_line())
        if self.conditions.is_ready:
            self._was_ready.set()

    def _status_line(self) -> str:
        return status_line(self.board.facts.phase, self.conditions.unmet)

    @property
    def membership(self) -> Membership | None:
        """The membership that this daemon runs with."""
        return self.board.facts.running

    def start_telling(self, tasks: asyncio.TaskGroup) -> None:
        """Before anything else: how the start goes is told, too."""
        tasks.create_task(self.report_to_service_manager(), name="service-manager")
        tasks.create_task(self.metrics.server.run(), name="metrics")
        tasks.create_task(self.api.keep_listening(self.clock), name="local-socket")

    async def report_to_service_manager(self) -> None:
        """Say that the local API serves, then show at every third of the watchdog's time that this loop turns.

        Ready is a daemon that can be asked, not a node that has reached its network: nothing at boot waits for that,
        but for what asks for edgelink-online.target, which is reached with the first Ready of the node.
        """
        if self._manager is None:
            return
        self._manager.notify(READY="1", STATUS=self._status_line())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._say_online(self._manager), name="online")
            tasks.create_task(self._show_life(self._manager), name="watchdog")

    async def _say_online(self, manager: ServiceManager) -> None:
        await self._was_ready.wait()
        await manager.say_online()

    async def _show_life(self, manager: ServiceManager) -> None:
        while manager.watchdog_s is not None:
            manager.notify(WATCHDOG="1")
            await self.clock.sleep(manager.watchdog_s / 3)

    def start_parts(self, tasks: asyncio.TaskGroup) -> None:
        """The host's TCP first: sockets keep what they were made with. Then the overlay."""
        self.ride_through.apply()
        self.exposure.begin()
        for reconciler in (self.ride_through, self.files):
            tasks.create_task(run_reconciler(reconciler, self.conditions, self.clock), name=reconciler.name)
        self.parts.start(tasks)
        if Exposure.condition in {condition.type for condition in self.conditions}:
            tasks.create_task(self._tables.run(), name="nft-watch")
            tasks.create_task(run_part(self.exposure, self.board, self.conditions, self.clock), name="exposure")
        tasks.create_task(self.recorder.run(), name="recorder")
        tasks.create_task(self._standstill.run(), name="standstill")

    def before_end(self) -> None:  # noqa: B027 - most daemons keep nothing
        """The daemon ends, because somebody asked for it or because it crashed: keep what the next one goes on with."""

    @abstractmethod
    def known_nodes(self) -> list[KnownNode]:
        """Every node of the network that this one has heard of, itself included."""

    @abstractmethod
    def details(self) -> dict[str, Any]:
        """What only this kind of daemon tells in its status; no secret."""

    def status(self) -> dict[str, Any]:
        """What ``edgelink status`` shows; holds no secret."""
        lease = self.membership.lease if self.membership else None
        easytier = self.parts.process.identity
        return {
            "role": self._role,
            "version": __version__,
            "pid": os.getpid(),
            "node_id": self.key.node_id,
            "network_id": lease.network_id if lease else None,
            "hostname": lease.hostname if lease else None,
            "overlay_ip": str(lease.overlay_ip) if lease else None,
            "device": self.config.overlay.device,
            "phase": self.board.facts.phase.value,
            "ready": self.conditions.is_ready,
            "ride_through_s": self.board.facts.ride_through_s,
            "conditions": self.conditions.to_list(),
            "impact": impact(self.conditions) if self.board.facts.phase is Phase.DEGRADED else None,
            "easytier_pid": easytier.pid if easytier else None,
            **self.details(),
        }

    def routes(self) -> Iterator[Route]:
        """What this daemon's local API answers."""
        yield route("GET", "/status", self._status)
        yield route("POST", "/stop", self._stop)
        yield route("GET", "/log", self._log)
        yield route("GET", "/board", self._show_board)
        yield self.parts.route()
        yield from self.others.routes()

    async def _status(self, _caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        return self.status()

    def sample(self) -> dict[str, Any]:
        """What the flight recorder keeps of this moment."""
        easytier = self.parts.process.identity
        found: dict[str, Any] = {
            "phase": self.board.facts.phase.value,
            "not_true": {c.type: c.reason for c in self.conditions if c.status is not Status.TRUE},
            **machine_load(),
        }
        with suppress(ProcessLookupError):
            if easytier is not None:
                found["easytier_cpu_s"] = round(usage(easytier.pid).cpu_s, 2)
        return found

    def samples(self) -> Iterable[Sample]:
        """What only this kind of daemon tells Prometheus."""
        return ()

    def named_nodes(self) -> Collection[str] | None:
        """The nodes to which the way is told to Prometheus one by one. None: all."""
        return None

    def bundle(self, since_s: float) -> Callable[[], dict[str, str]]:
        """This node's part of a report on the whole network, secrets masked; to be called in a thread: reads files."""
        name = self.api.name
        return partial(
            collect,
            self.paths,
            timedelta(seconds=since_s),
            self.clock.now(),
            config_file=Path(os.environ.get("EDGELINK_CONFIG", DEFAULT_CONFIG_FILE)),
            ray_temp=self.config.ray.temp_dir,
            answers={f"status-{name}.json": self.status(), f"daemon-{name}.log": "\n".join(recent())},
        )

    async def _log(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        after = body.get("after", 0)
        lines, number = recent_after(after if isinstance(after, int) else 0)
        return {"lines": lines, "number": number}

    async def _show_board(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``GET /board`` to root: every fact and every part's last decision, secrets masked."""
        caller.require()
        facts, now_s = self.board.facts, self.clock.monotonic_s()
        return {
            "facts": [
                {
                    "fact": row.fact,
                    "value": redact(repr(getattr(facts, row.fact))),
                    "writer": row.writer,
                    "readers": row.readers,
                    "durable": row.is_durable,
                }
                for row in self.board.rows()
            ],
            "parts": [
                {
                    "part": last.part,
                    "decision": redact(repr(last.decision)),
                    "ago_s": round(now_s - last.at_s, 1),
                    "decisions": last.count,
                }
                for last in self.board.decisions()
            ],
        }

    async def _stop(self, caller: Caller, _body: dict[str, Any]) -> dict[str, Any]:
        caller.require()
        self.stop_request.request()
        return {}


def status_line(phase: Phase, unmet: list[Condition]) -> str:
    """What ``systemctl status`` shows: the phase, and what the node waits for; pure."""
    if not unmet:
        return phase.value
    first = next((condition for condition in unmet if condition.status is Status.FALSE), unmet[0])
    return f"{phase.value}: {first.type} {first.reason}: {first.message}"
