"""The relay with the registry: registry, broker and the overlay's meeting point."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from edgelink.api.server import Route
from edgelink.clock import Clock
from edgelink.condition_table import Place
from edgelink.config import Config, Paths
from edgelink.daemon.base import Base, keep_nothing
from edgelink.daemon.host import Host
from edgelink.daemon.lifecycle import end_all, run_until_stopped
from edgelink.daemon.observation import Observation
from edgelink.daemon.own_registry import OwnRegistry
from edgelink.daemon.this_machine import ThisMachine
from edgelink.files import private_directory
from edgelink.overlay.link import LinkState, check_collision


class Relay:
    """The relay's daemon. What needs the network is made by :meth:`settle`."""

    own: OwnRegistry
    observation: Observation

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, machine: ThisMachine, import_secret: Path | None
    ) -> None:
        self.base = base = Base(Place.RELAY, config, paths, clock, machine)
        self.overlay = base.overlay()
        self.host = Host(base, self.overlay, None)
        self.stop_request = base.stop_request(before_end=keep_nothing)
        self._import_secret = import_secret

    async def run(self) -> None:
        """Settle the network, then serve it; at the end, end the broker and EasyTier."""
        base, links, device = self.base, self.overlay.links, self.base.config.overlay.device
        private_directory(base.paths.state)
        self.stop_request.listen_to_signals()
        is_first_start = not base.paths.registry_database.exists()
        if base.config.overlay.kind == "easytier" and is_first_start:  # the network may still have another CIDR
            check_collision(base.config.relay.cidr, await links.local_networks(device))
        state = await links.observe(device)
        with base.api.alone():  # no second relay daemon works on this state directory
            self.settle(state)
            async with base.api.answering(self.routes()):
                await run_until_stopped(self.stop_request, self.live, self.end)

    def settle(self, device: LinkState) -> None:
        """Make the registry, and on the first start the network. ``device`` is the overlay's."""
        self.own = own = OwnRegistry(self.base, self.overlay, device, self._import_secret)
        self.observation = Observation(
            self.base,
            self.overlay,
            own.key.node_id,
            details=(own.details,),
            samples=(own.samples,),
            moments=(),
        )

    def routes(self) -> Iterator[Route]:
        yield self.stop_request.route()
        yield from self.observation.routes()
        yield from self.own.routes()

    async def live(self, tasks: asyncio.TaskGroup) -> None:
        self.observation.start_first(tasks)
        self.host.start(tasks)
        self.overlay.start(tasks)
        self.observation.start(tasks)
        self.own.start(tasks, self.observation.bundle)

    async def end(self) -> None:
        self.base.telling.say_stopping()
        self.own.close()
        await end_all(self.own.broker.stop, self.overlay.stop)
        self.own.store.close()
