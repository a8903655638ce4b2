"""A relay beside the one with the registry: it carries the overlay's traffic, and that goes on without the other.

It has no registry and no broker. It keeps its own key and lease, so that a registry restored on this machine finds
its relay here (:mod:`edgelink.relay.backup`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from edgelink.api.server import Route
from edgelink.clock import Clock
from edgelink.condition_table import Place
from edgelink.config import Config, Paths
from edgelink.daemon.base import Base, keep_nothing
from edgelink.daemon.host import Host
from edgelink.daemon.member_parts import MemberParts
from edgelink.daemon.observation import Observation
from edgelink.daemon.registry_elsewhere import registry_is_elsewhere, tell_addresses
from edgelink.daemon.this_machine import ThisMachine
from edgelink.member.enrolment import Enrolment
from edgelink.member.lease_follower import NoOccupants
from edgelink.overlay.stun_server import StunServer
from edgelink.protocol.payloads import RelayAddresses, Role
from edgelink.relay.relay_addresses import require_own_overlay, stun_server
from edgelink.shield.outside_view import member_knocker


class AdditionalRelay:
    """Its daemon. ``addresses`` are where it is dialled; an ``enrolment`` is used where they are news."""

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
        self.base = base = Base(Place.ADDITIONAL_RELAY, config, paths, clock, machine)
        self.overlay = overlay = base.overlay()
        self.member = member = MemberParts(base, overlay, Role.RELAY, enrolment)
        self.host = Host(base, overlay, None)
        self.observation = Observation(
            base,
            overlay,
            member.key.node_id,
            details=(member.details,),
            samples=(member.samples,),
            moments=(member.moment,),
        )
        self.stop_request = base.stop_request(before_end=keep_nothing)
        self._stun: StunServer | None = None
        self._addresses, self._enrolment = addresses, enrolment

    async def run(self) -> None:
        await self.base.run(self.stop_request, self.routes(), self.live, self.end)

    def routes(self) -> Iterator[Route]:
        yield self.stop_request.route()
        yield from self.observation.routes()
        yield from self.member.routes()
        yield from registry_is_elsewhere(self.member)

    async def live(self, tasks: asyncio.TaskGroup) -> None:
        base, member = self.base, self.member
        was_member = base.board.facts.running is not None
        joined = await member.live(tasks, self.observation, self.host, NoOccupants())
        knocker = member_knocker(base.board, member.key, joined.membership, base.clock)
        self._stun = stun_server(base.config, base.conditions, base.clock, knocker.received)
        base.run_reconcilers(tasks, [] if self._stun is None else [self._stun])
        if was_member:
            told = tell_addresses(base.board, member, self._addresses, self._enrolment)
            tasks.create_task(told, name="addresses")

    async def end(self) -> None:
        self.base.telling.say_stopping()
        if self._stun is not None:
            self._stun.close()
        await self.overlay.stop()
