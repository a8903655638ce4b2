"""What each daemon has before anything else: configuration, board, conditions, and what starts programs here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from edgelink.api.server import LocalApi, Route
from edgelink.clock import Clock
from edgelink.condition_table import NODES, Place
from edgelink.config import Config, Paths
from edgelink.daemon.lifecycle import StopRequest, run_until_stopped
from edgelink.daemon.overlay_parts import OverlayParts
from edgelink.daemon.telling import Telling
from edgelink.daemon.this_machine import ThisMachine
from edgelink.daemon.usable import require_usable
from edgelink.facts.derive import board_of, derive_patience
from edgelink.facts.part import Part, run_part
from edgelink.process.service_manager import ServiceManager
from edgelink.protocol.keys import NodeKey
from edgelink.ray_cluster.local_ray import LocalRay
from edgelink.ray_cluster.reconcilers import RayInputs
from edgelink.reconcile import Reconciler, run_reconciler
from edgelink.shield.access_openings import OPENINGS, Allowed, openings
from edgelink.standstill import Standstill
from edgelink.state_files import StateFiles
from edgelink.telemetry.recorder import Recorder


class Base:
    """The ground that a daemon's parts stand on."""

    def __init__(self, place: Place, config: Config, paths: Paths, clock: Clock, machine: ThisMachine) -> None:
        self.place = place
        self.verb = place.value if place in NODES else "bootstrap"  # starts this daemon
        self.config, self.paths, self.clock, self.machine = config, paths, clock, machine
        socket = paths.node_socket if place in NODES else paths.bootstrap_socket
        self.api = LocalApi(socket, paths.lock_of(socket.stem))
        self.manager = ServiceManager.of_this_process()
        self.board = board_of(config)
        derive_patience(self.board, config, place)
        self.board.derive(OPENINGS, "what is opened", Allowed, partial(openings, config=config))
        # One directory each: relay and head may share a state directory.
        self.recorder = Recorder(paths.recorder / socket.stem, clock)
        self.telling = Telling(place, config, self.board, self.recorder, self.manager, clock)
        self.conditions = self.telling.conditions
        self.files = StateFiles(self.conditions)
        self.standstill = Standstill(self.board, clock)
        self.launcher = machine.launcher(config.process.launcher, self.manager, paths, clock)

    def overlay(self) -> OverlayParts:
        """Make the parts of the overlay."""
        return OverlayParts(
            config=self.config,
            paths=self.paths,
            conditions=self.conditions,
            clock=self.clock,
            machine=self.machine,
            board=self.board,
            launcher=self.launcher,
            files=self.files,
            is_watchful=self.place is not Place.EDGE,
        )

    def local_ray(self) -> LocalRay:
        """Make what starts and stops this machine's Ray."""
        return self.machine.ray(self.config, self.paths, self.clock, self.launcher, self.files)

    def ray_inputs(self, key: NodeKey, ray: LocalRay) -> RayInputs:
        """Return what the reconciler of this machine's Ray and the head's runs are made of."""
        return RayInputs(
            board=self.board,
            config=self.config,
            paths=self.paths,
            conditions=self.conditions,
            clock=self.clock,
            key=key,
            ray=ray,
            files=self.files,
        )

    def stop_request(self, before_end: Callable[[], None]) -> StopRequest:
        """Make what asks this daemon to end. ``before_end`` keeps what the next daemon goes on with."""
        usable = partial(require_usable, paths=self.paths, manager=self.manager)
        return StopRequest(self.manager, require_usable=usable, before_end=before_end)

    async def run(
        self,
        stop: StopRequest,
        routes: Iterable[Route],
        live: Callable[[asyncio.TaskGroup], Coroutine[Any, Any, None]],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        """Answer and live until a signal or ``/stop``; then end what ``live`` has started.

        Raises:
            EdgelinkError: enrolment was refused, or another daemon is already here.
            Exception: as :func:`run_until_stopped` raises it.
        """
        stop.listen_to_signals()
        async with self.api.serving(routes):
            await run_until_stopped(stop, live, end)

    def run_parts(self, tasks: asyncio.TaskGroup, parts: Iterable[Part[Any, Any]]) -> None:
        """Run each part as a task."""
        for part in parts:
            tasks.create_task(run_part(part, self.board, self.conditions, self.clock), name=part.name)

    def run_reconcilers(self, tasks: asyncio.TaskGroup, reconcilers: Iterable[Reconciler]) -> None:
        """Run each reconciler as a task."""
        for reconciler in reconcilers:
            tasks.create_task(run_reconciler(reconciler, self.conditions, self.clock), name=reconciler.name)


def keep_nothing() -> None:
    """Do nothing: this daemon keeps nothing for the next one but what it keeps all the time."""
