"""A machine that joined the network of a registry elsewhere: head, edge, additional relay.

It enrols, keeps a session with the registry, and remembers on disk where the relays are, as the registry tells it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from edgelink.api.metrics import Sample
from edgelink.api.server import Caller, Route, route
from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.condition_table import Place
from edgelink.config import Config, Paths
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ConfigError, EdgelinkError, RegistryUnavailableError
from edgelink.facts.derive import derive_peers, derive_status
from edgelink.facts.part import Part, run_part
from edgelink.files import private_directory
from edgelink.log import get_logger
from edgelink.member.admission import Claimant
from edgelink.member.doubts import Doubts
from edgelink.member.enrolment import Enrolment, enrol, require_role
from edgelink.member.hold import HoldHook
from edgelink.member.lease_follower import LeaseFollower, NoOccupants, Occupants, lease_in_words
from edgelink.member.membership_store import MembershipStore
from edgelink.member.registry_client import RegistryClient
from edgelink.member.renewal import Renewal
from edgelink.member.secret_epochs import RobotHold, SecretEpochs
from edgelink.member.secret_trial import SecretTrial
from edgelink.outage import Outage
from edgelink.overlay.easytier_deaths import EasyTierDeaths
from edgelink.overlay.meter import Meter
from edgelink.overlay.new_connections import NewConnections
from edgelink.overlay.pairs import Pairs
from edgelink.overlay.peers import Peers
from edgelink.overlay.punching import PunchLimit
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Life
from edgelink.protocol.membership import HOW_TO_JOIN, Membership
from edgelink.protocol.outgoing import Outbox
from edgelink.protocol.payloads import Role
from edgelink.protocol.tls import client_context
from edgelink.reconcile import Wakeup
from edgelink.roles.daemon import Daemon
from edgelink.roles.session_parts import (
    HOLDERS,
    REVOKED_IPS,
    Listed,
    NetworkOnly,
    RelayFollower,
    SessionTeller,
    StatusTeller,
    holders,
    revoked_ips,
)
from edgelink.telemetry.node_metrics import member_samples
from edgelink.telemetry.others import KnownNode, members_of
from edgelink.telemetry.report_exchange import ReportExchange
from edgelink.training.trainer.robot.directory import robot_moves

log = get_logger("node")


# Facts that nobody writes on a daemon of this role: a run is granted on the head only, and a relay has no Ray.
_UNWRITTEN: dict[Role, set[str]] = {
    Role.HEAD: set(),
    Role.EDGE: {"run_members", "without_ray", "ray_alive", "paused"},
    Role.RELAY: {"run_members", "without_ray", "ray_alive", "versions", "dead_ray", "paused"},
}


class Member(Daemon):
    """The common part of all that enrolled. ``verb`` starts it; ``role`` is what its lease has to say."""

    def __init__(
        self,
        *,
        verb: str,
        role: Role,
        config: Config,
        paths: Paths,
        clock: Clock,
        machine: ThisMachine,
        socket: Path,
        enrolment: Enrolment | None,
        place: Place,
    ) -> None:
        super().__init__(
            role=verb,
            config=config,
            paths=paths,
            clock=clock,
            machine=machine,
            socket=socket,
            place=place,
        )
        self.role = role
        private_directory(paths.state)
        self.key = NodeKey.load_or_create(paths.node_key)
        self.store = MembershipStore(self.board, paths, self.files)
        self.store.reload()
        self.registry: RegistryClient | None = None
        self.reports: ReportExchange | None = None
        derive_peers(self.board, config)
        derive_status(self.board, config, self.key)
        self.meter = Meter(board=self.board, configured=config.overlay.metered)
        self.peers = Peers(
            board=self.board,
            conditions=self.conditions,
            clock=clock,
            ask=self.parts.ask,
            look=self.parts.traffic,
            why_silent=self.parts.why_silent,
            close=self.parts.close_connections_with,
        )
        self._uplink_changed = Wakeup()
        self.parts.links.watch_uplinks(config.overlay.device, self.meter.wakeup, self._uplink_changed)
        self.renewal: Renewal | None = None
        self._outbox, self._silences, self._easytier_deaths = Outbox(), Inbox(), Inbox()
        self.pairs = Pairs(
            key=self.key,
            board=self.board,
            ask_now=self.peers.ask_now,
            overlay=self.parts,
            send=self._outbox.put,
            words=self._silences,
            note=self.recorder.note,
            clock=clock,
            restarted_file=paths.pair_restart,
            is_healing=config.overlay.heal_pairs,
            robot_moves=robot_moves,
        )
        self._punch_limit = PunchLimit(
            board=self.board,
            process=self.parts.process,
            guard=self.parts.overlay.guard,
            clock=clock,
            uplinks=machine.uplinks,
        )
        self._enrolment = enrolment
        self.board.derive(HOLDERS, "address holders", Listed, holders)
        self.board.derive(REVOKED_IPS, "put out", NetworkOnly, revoked_ips)

    async def join_network(self, tasks: asyncio.TaskGroup) -> Membership:
        """Become a member, then start the session with the registry, and the overlay."""
        membership = await self._become_member()
        self.conditions.set_true("Leased", "Leased", lease_in_words(membership.lease))
        await self.meter.look()
        self.build(membership, Life(await self.machine.parts(membership.network_id)))
        self._secret_epochs.refuse_revoked()
        self.start_parts(tasks)
        return membership

    def build(self, membership: Membership, life: Life) -> None:
        """Make what needs a membership. Every fact of this node has its writer then."""
        leases = LeaseFollower(
            board=self.board,
            store=self.store,
            occupants=self.occupants(),
            clock=self.clock,
        )
        leases.begin()
        self.reports = ReportExchange(
            key=self.key,
            network_id=membership.network_id,
            directory=lambda: self.board.facts.directory,
            collect=self.bundle,
            send=self._outbox.put,
            clock=self.clock,
        )
        context = client_context(membership.ca_pem, membership.network_id)
        self.registry = RegistryClient(
            self.board,
            self.key,
            self.clock,
            store=self.store,
            outbox=self._outbox,
            reports=self.reports,
            easytier_deaths=self._easytier_deaths,
            silences=self._silences,
            cache=self.paths.state,
            files=self.files,
            transport=self.machine.transport(context),
            life=life,
        )
        claimant = Claimant(
            board=self.board,
            channel=self.registry.channel,
            life=self.registry.life,
            refusal=self.paths.refused_as_copy,
            files=self.files,
            clock=self.clock,
            easytier=self.parts.process,
        )
        self._deaths = EasyTierDeaths(
            key=self.key,
            network_id=membership.network_id,
            send=self._outbox.put,
            close=self.parts.close_paths,
            record=self.paths.easytier_peer_id,
            clock=self.clock,
            inbox=self._easytier_deaths,
            refusals=self.registry.refusals,
            board=self.board,
        )
        channel = self.registry.channel
        self.renewal = Renewal(board=self.board, store=self.store, channel=channel, clock=self.clock)
        hook = HoldHook(self.config, self.clock)
        self._secret_epochs = SecretEpochs(
            board=self.board,
            store=self.store,
            registry=self.registry,
            hook=hook,
            conditions=self.conditions,
            clock=self.clock,
        )
        new_connections = NewConnections(board=self.board, guard=self.parts.overlay.guard, clock=self.clock)
        trial = SecretTrial(board=self.board, overlay=self.parts, clock=self.clock)
        self._parts: list[Part[Any, Any]] = [
            StatusTeller(self.board, self.registry.publish_status, self.clock),
            SessionTeller(self.board),
            RelayFollower(self.board, self.store),
            claimant,
            Doubts(board=self.board, channel=channel, clock=self.clock),
            leases,
            self.renewal,
            self._secret_epochs,
            RobotHold(board=self.board, hook=hook, clock=self.clock),
            *([trial] if self.config.overlay.kind == "easytier" else []),
            *([new_connections] if self.config.overlay.kind == "easytier" and self.config.firewall.enabled else []),
            *([self._punch_limit] if self.config.overlay.kind == "easytier" and self.config.firewall.enabled else []),
        ]
        self.board.require_writers(_UNWRITTEN[self.role])

    def start_parts(self, tasks: asyncio.TaskGroup) -> None:
        super().start_parts(tasks)
        assert self.registry is not None
        assert self.reports is not None
        tasks.create_task(self.meter.run(), name="meter")
        tasks.create_task(self._follow_uplink(), name="uplink")
        tasks.create_task(self._deaths.run(), name="easytier-deaths")
        tasks.create_task(self.registry.run(), name="registry")
        for part in self._parts:
            tasks.create_task(run_part(part, self.board, self.conditions, self.clock), name=part.name)
        tasks.create_task(self.reports.run(), name="reports")

    async def _follow_uplink(self) -> NoReturn:
        """Ask all nodes when this machine's uplink may have changed: they may be reached no more."""
        while True:
            await self._uplink_changed.wait(None)
            self.peers.ask_now()

    async def _become_member(self) -> Membership:
        """The membership on disk, or a new one by the token; waits for a relay that does not answer."""
        backoff, outage = Backoff(first_s=1.0, cap_s=15.0), Outage(self.clock)
        while self.membership is None:
            if self._enrolment is None:
                raise ConfigError(
                    f"this machine has not joined a network ({self.paths.membership} does not exist)",
                    hint=HOW_TO_JOIN,
                    reason="NotJoined",
                )
            try:
                await enrol(self._enrolment, self.role, self.key, self.paths, self.config, self.clock, self.machine)
                self.store.reload()
            except EdgelinkError as error:
                self.conditions.set_error("Leased", error)
                if not error.retryable:
                    raise
                if outage.is_news(error.condition_reason):
                    log.warning("node.enrolment_failed", error=str(error))
                await self.clock.sleep(backoff.next_s())
        require_role(self.membership, self.role)
        return self.membership

    async def _renew(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /renew``; see :meth:`Renewal.serve`."""
        if self.renewal is None:
            raise RegistryUnavailableError("this node has not enrolled yet")
        return await self.renewal.serve(caller, body)

    async def gather_reports(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``POST /reports`` on the head; see :meth:`ReportExchange.gather`."""
        if self.reports is None:
            raise RegistryUnavailableError("this node has not enrolled yet")
        async for part in self.reports.gather(caller, body):
            yield part

    def sample(self) -> dict[str, Any]:
        rtt_ms = {name: round(rtt, 1) for name, rtt in self.peers.rtt_ms.items()}
        return {**super().sample(), "rtt_ms": rtt_ms, "lost_pings": dict(self.peers.lost)}

    def routes(self) -> Iterator[Route]:
        yield from super().routes()
        yield route("POST", "/renew", self._renew)

    def samples(self) -> Iterable[Sample]:
        return member_samples(self.registry, self.peers, self.pairs.figures)

    def occupants(self) -> Occupants:
        """Who works under this node's overlay address."""
        return NoOccupants()

    def known_nodes(self) -> list[KnownNode]:
        return members_of(self.board.facts.directory, self.board.facts.cluster_spec)

    def details(self) -> dict[str, Any]:
        directory = self.board.facts.directory
        head = directory.head if directory else None
        return {
            "node_rank": None,
            "preferred_rank": self.membership.lease.preferred_rank if self.membership else None,
            "head": {"hostname": head.hostname, "overlay_ip": str(head.overlay_ip)} if head else None,
            "rtt_ms": self.peers.rtt_ms,
            "refused": dict(self.registry.refusals.counts) if self.registry else {},
        }
