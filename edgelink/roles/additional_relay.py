"""A relay beside the one with the registry: it carries the overlay's traffic, and that goes on without the other.

It has no registry and no broker. It keeps its own key and lease, so that a registry restored on this machine finds
its relay here (:mod:`edgelink.relay.backup`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NoReturn

from edgelink.api.server import Caller, Route, route
from edgelink.clock import Clock
from edgelink.condition_table import Place
from edgelink.config import Config, Paths
from edgelink.daemon.lifecycle import run_until_stopped
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import EdgelinkError, UsageError
from edgelink.facts.part import run_part
from edgelink.log import get_logger
from edgelink.member.enrolment import Enrolment, enrol
from edgelink.overlay.stun_server import StunServer
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import RelayAddresses, Role
from edgelink.reconcile import run_reconciler
from edgelink.relay import relay_secrets
from edgelink.relay.backup import has_registry
from edgelink.relay.registry_routes import ROUTES
from edgelink.relay.relay_addresses import require_own_overlay, stun_server
from edgelink.roles.member import Member
from edgelink.shield.outside_view import member_knocker

log = get_logger("bootstrap")


def is_additional_relay(paths: Paths) -> bool:
    """Whether this machine was enrolled as a relay by a registry elsewhere."""
    if has_registry(paths):
        return False
    membership = Membership.load(paths)
    return membership is not None and membership.lease.is_relay


class AdditionalRelay(Member):
    """Its daemon's parts. ``addresses`` are where it is dialled; an ``enrolment`` is used where they are news."""

    def __init__(
        self,
        config: Config,
        paths: Paths,
        clock: Clock,
        machine: ThisMachine,
        addresses: RelayAddresses,
        enrolment: Enrolment | None,
    ) -> None:
        require_own_overlay(config)
        super().__init__(
            verb="bootstrap",
            role=Role.RELAY,
            config=config,
            paths=paths,
            clock=clock,
            machine=machine,
            socket=paths.bootstrap_socket,
            enrolment=enrolment,
            place=Place.ADDITIONAL_RELAY,
        )
        self.stun: StunServer | None = None
        self._addresses = addresses

    async def run(self) -> None:
        """Live until a signal or ``/stop``; then end EasyTier.

        Raises:
            EdgelinkError: enrolment was refused, or another daemon is already here.
        """
        self.stop_request.listen_to_signals()
        async with self.api.serving(self.routes()):
            await run_until_stopped(self.stop_request, self._live, self._stop_children)

    async def _live(self, tasks: asyncio.TaskGroup) -> None:
        self.start_telling(tasks)
        was_member = self.membership is not None
        await self.join_network(tasks)
        tasks.create_task(run_part(self.peers, self.board, self.conditions, self.clock), name=self.peers.name)
        self.stun = stun_server(self.config, self.conditions, self.clock, member_knocker(self).received)
        if self.stun is not None:
            tasks.create_task(run_reconciler(self.stun, self.conditions, self.clock), name="stun")
        if was_member:
            tasks.create_task(self._tell_addresses(), name="addresses")

    async def _tell_addresses(self) -> None:
        """A relay that moved says so by enrolling again; without a token a person is told."""
        directory = self.board.facts.directory
        told = directory.relays.get(self.key.node_id) if directory else None
        if told is None or told == self._addresses:
            return
        if self._enrolment is None:
            log.warning(
                "bootstrap.addresses_not_told",
                told=told.overlay_peers,
                now=self._addresses.overlay_peers,
                hint="start it once with --join and a new token of `edgelink token create --role relay`",
            )
            return
        try:
            await enrol(self._enrolment, self.role, self.key, self.paths, self.config, self.clock, self.machine)
        except EdgelinkError as error:
            log.warning("bootstrap.addresses_not_told", told=told.overlay_peers, error=str(error))

    async def _stop_children(self) -> None:
        self.put_is_stopping(True)
        if self.stun is not None:
            self.stun.close()
        await self.parts.stop()

    def routes(self) -> Iterator[Route]:
        yield from super().routes()
        for method, path, _ in (*ROUTES, *relay_secrets.ROUTES):
            yield route(method, path, self._no_registry)

    async def _no_registry(self, _caller: Caller, _body: dict[str, Any]) -> NoReturn:
        where = self.registry.address if self.registry else "another relay"
        raise UsageError(
            f"this relay has no registry: it is at {where}", hint="run the command there", reason="NoRegistryHere"
        )
