"""The parts of a machine that joined the network of a registry elsewhere: head, edge, additional relay.

It enrols, keeps a session with the registry, and remembers on disk where the relays are, as the registry tells it.
:class:`MemberParts` are there from the start, :class:`Joined` once the machine is a member.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NoReturn

from edgelink.api import metrics
from edgelink.api.metrics import Sample
from edgelink.api.server import Caller, Route, route
from edgelink.backoff import Backoff
from edgelink.condition_table import Place
from edgelink.daemon.base import Base
from edgelink.daemon.host import Host
from edgelink.daemon.observation import Observation
from edgelink.daemon.overlay_parts import OverlayParts
from edgelink.errors import ConfigError, EdgelinkError, RegistryUnavailableError
from edgelink.facts.derive import derive_peers, derive_status
from edgelink.facts.part import Part
from edgelink.files import private_directory
from edgelink.log import get_logger
from edgelink.member.admission import Claimant
from edgelink.member.doubts import Doubts
from edgelink.member.enrolment import Enrolment, enrol, require_role
from edgelink.member.hold import HoldHook
from edgelink.member.lease_follower import LeaseFollower, Occupants, lease_in_words
from edgelink.member.membership_store import MembershipStore
from edgelink.member.registry_client import RegistryClient
from edgelink.member.renewal import Renewal
from edgelink.member.secret_epochs import RobotHold, SecretEpochs
from edgelink.member.secret_trial import SecretTrial
from edgelink.member.session_parts import (
    HOLDERS,
    REVOKED_IPS,
    ClusterTeller,
    Listed,
    NetworkOnly,
    RelayFollower,
    SessionTeller,
    StatusTeller,
    holders,
    revoked_ips,
)
from edgelink.outage import Outage
from edgelink.overlay.easytier_deaths import EasyTierDeaths
from edgelink.overlay.meter import Meter
from edgelink.overlay.new_connections import NewConnections
from edgelink.overlay.pair_words import PairWords
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
from edgelink.telemetry.report_exchange import ReportExchange
from edgelink.training.trainer.robot.directory import robot_moves

log = get_logger("node")


# Facts that nobody writes on a daemon of this kind: a run is granted on the head only, and a relay has no Ray.
_UNWRITTEN: dict[Place, set[str]] = {
    Place.HEAD: set(),
    Place.EDGE: {"run", "without_ray", "ray_members", "paused"},
    Place.ADDITIONAL_RELAY: {"run", "without_ray", "ray_members", "versions", "dead_ray", "paused"},
}


class MemberParts:
    """What is there before this machine is a member.

    Args:
        role: what its lease has to say.
        enrolment: how it becomes a member, if it is none yet.
    """

    def __init__(self, base: Base, overlay: OverlayParts, role: Role, enrolment: Enrolment | None) -> None:
        board, config = base.board, base.config
        self._base, self._overlay, self._role, self._enrolment = base, overlay, role, enrolment
        private_directory(base.paths.state)
        self.key = NodeKey.load_or_create(base.paths.node_key)
        self.store = MembershipStore(board, base.paths, base.files)
        self.store.reload()
        self.joined: Joined | None = None
        derive_peers(board, config)
        derive_status(board, config, self.key)
        self._meter = Meter(board=board, configured=config.overlay.metered)
        self.peers = Peers(
            board=board,
            conditions=base.conditions,
            clock=base.clock,
            ask=overlay.ask,
            look=overlay.traffic,
            why_silent=overlay.why_silent,
            close=overlay.close_connections_with,
        )
        self._uplink_changed = Wakeup()
        overlay.links.watch_uplinks(config.overlay.device, self._meter.wakeup, self._uplink_changed)
        self.outbox, self.silences, self.easytier_deaths = Outbox(), Inbox(), Inbox()
        self.pairs = Pairs(
            board=board,
            ask_now=self.peers.ask_now,
            overlay=overlay,
            words=PairWords(self.key, self.outbox.put, self.silences, base.clock),
            note=base.recorder.note,
            clock=base.clock,
            restarted_file=base.paths.pair_restart if config.overlay.heal_pairs else None,
            robot_moves=robot_moves,
        )
        self.punch_limit = PunchLimit(
            board=board,
            process=overlay.process,
            guard=overlay.overlay.guard,
            clock=base.clock,
            uplinks=base.machine.uplinks,
        )
        board.derive(HOLDERS, "address holders", Listed, holders)
        board.derive(REVOKED_IPS, "put out", NetworkOnly, revoked_ips)

    async def live(
        self, tasks: asyncio.TaskGroup, observation: Observation, host: Host, occupants: Occupants
    ) -> Joined:
        """Tell how the start goes, become a member, and start what every member has, the host's settings first."""
        observation.start_first(tasks)
        joined = await self.join(occupants)
        host.start(tasks)
        self._overlay.start(tasks)
        observation.start(tasks)
        self.start(tasks)
        joined.start(tasks, observation.bundle)
        self._base.run_parts(tasks, [self.peers])
        return joined

    async def join(self, occupants: Occupants) -> Joined:
        """Become a member, then make what needs a membership.

        Args:
            occupants: tells who works under this node's overlay address.
        """
        membership = await self._become_member()
        self._base.conditions.set_true("Leased", "Leased", lease_in_words(membership.lease))
        await self._meter.look()
        joined = self.build(membership, Life(await self._base.machine.parts(membership.network_id)), occupants)
        joined.secret_epochs.refuse_revoked()
        return joined

    def build(self, membership: Membership, life: Life, occupants: Occupants) -> Joined:
        """Make what needs a membership. Every fact of this node has its writer then."""
        self.joined = Joined(self._base, self._overlay, self, membership, life, occupants)
        self._base.board.require_writers(_UNWRITTEN[self._base.place])
        return self.joined

    def start(self, tasks: asyncio.TaskGroup) -> None:
        tasks.create_task(self._meter.run(), name="meter")
        tasks.create_task(self._follow_uplink(), name="uplink")

    async def _follow_uplink(self) -> NoReturn:
        """Ask all nodes when this machine's uplink may have changed: they may be reached no more."""
        while True:
            await self._uplink_changed.wait(None)
            self.peers.ask_now()

    async def _become_member(self) -> Membership:
        """The membership on disk, or a new one by the token; waits for a relay that does not answer."""
        base = self._base
        backoff, outage = Backoff(first_s=1.0, cap_s=15.0), Outage(base.clock)
        while (membership := base.board.facts.running) is None:
            if self._enrolment is None:
                raise ConfigError(
                    f"this machine has not joined a network ({base.paths.membership} does not exist)",
                    hint=HOW_TO_JOIN,
                    reason="NotJoined",
                )
            try:
                await self.enrol(self._enrolment)
                self.store.reload()
            except EdgelinkError as error:
                base.conditions.set_error("Leased", error)
                if not error.retryable:
                    raise
                if outage.is_news(error.condition_reason):
                    log.warning("node.enrolment_failed", error=str(error))
                await base.clock.sleep(backoff.next_s())
        require_role(membership, self._role)
        return membership

    async def enrol(self, enrolment: Enrolment) -> None:
        """Ask for a lease; see :func:`edgelink.member.enrolment.enrol`."""
        base = self._base
        await enrol(enrolment, self._role, self.key, base.paths, base.config, base.clock, base.machine)

    def routes(self) -> Iterator[Route]:
        yield route("POST", "/renew", self._renew)

    async def _renew(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Serve ``POST /renew``; see :meth:`Renewal.serve`."""
        return await self._require_joined().renewal.serve(caller, body)

    async def gather_reports(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``POST /reports`` on the head; see :meth:`ReportExchange.gather`."""
        async for part in self._require_joined().reports.gather(caller, body):
            yield part

    def _require_joined(self) -> Joined:
        if self.joined is None:
            raise RegistryUnavailableError("this node has not enrolled yet")
        return self.joined

    def details(self) -> dict[str, Any]:
        facts = self._base.board.facts
        head = facts.directory.head if facts.directory else None
        return {
            "node_rank": None,
            "preferred_rank": facts.running.lease.preferred_rank if facts.running else None,
            "head": {"hostname": head.hostname, "overlay_ip": str(head.overlay_ip)} if head else None,
            "rtt_ms": self.peers.rtt_ms,
            "refused": dict(self.joined.registry.refusals.counts) if self.joined else {},
        }

    def moment(self) -> dict[str, Any]:
        rtt_ms = {name: round(rtt, 1) for name, rtt in self.peers.rtt_ms.items()}
        return {"rtt_ms": rtt_ms, "lost_pings": dict(self.peers.lost)}

    def samples(self) -> Iterator[Sample]:
        yield metrics.CONNECTED(self.joined is not None and self.joined.registry.is_connected)
        yield from metrics.of_pings(self.peers.rtt_ms, self.peers.asked, self.peers.lost)
        yield from metrics.of_pairs(self.pairs.figures.lost, self.pairs.figures.healed)


class Joined:
    """What needs a membership: the session with the registry, and the parts that follow what it says."""

    def __init__(
        self,
        base: Base,
        overlay: OverlayParts,
        member: MemberParts,
        membership: Membership,
        life: Life,
        occupants: Occupants,
    ) -> None:
        board, config, clock, key = base.board, base.config, base.clock, member.key
        self._base, self.membership = base, membership
        leases = LeaseFollower(board=board, store=member.store, occupants=occupants, clock=clock)
        leases.begin()
        self.reports = ReportExchange(
            board=board, key=key, network_id=membership.network_id, send=member.outbox.put, clock=clock
        )
        self.registry = RegistryClient(
            board,
            key,
            clock,
            store=member.store,
            outbox=member.outbox,
            reports=self.reports,
            easytier_deaths=member.easytier_deaths,
            silences=member.silences,
            cache=base.paths.state,
            files=base.files,
            transport=base.machine.transport(client_context(membership.ca_pem, membership.network_id)),
            life=life,
        )
        channel = self.registry.channel
        claimant = Claimant(
            board=board,
            channel=channel,
            life=self.registry.life,
            refusal=base.paths.refused_as_copy,
            files=base.files,
            clock=clock,
            easytier=overlay.process,
        )
        self._deaths = EasyTierDeaths(
            key=key,
            network_id=membership.network_id,
            send=member.outbox.put,
            close=overlay.close_paths,
            record=base.paths.easytier_peer_id,
            clock=clock,
            inbox=member.easytier_deaths,
            refusals=self.registry.refusals,
            board=board,
        )
        self.renewal = Renewal(board=board, store=member.store, channel=channel, clock=clock)
        hook = HoldHook(config, clock)
        self.secret_epochs = SecretEpochs(
            board=board,
            store=member.store,
            registry=self.registry,
            hook=hook,
            conditions=base.conditions,
            clock=clock,
        )
        trial = SecretTrial(board=board, overlay=overlay, clock=clock)
        new_connections = NewConnections(board=board, guard=overlay.overlay.guard, clock=clock)
        self._parts: list[Part[Any, Any]] = [
            StatusTeller(board, self.registry.publish_status, clock),
            SessionTeller(board),
            RelayFollower(board, member.store),
            claimant,
            Doubts(board=board, channel=channel, clock=clock),
            leases,
            self.renewal,
            self.secret_epochs,
            RobotHold(board=board, hook=hook, clock=clock),
        ]
        if base.place is Place.HEAD:
            self._parts.append(ClusterTeller(board, self.registry.publish_cluster))
        if config.overlay.kind == "easytier":
            self._parts.append(trial)
            if config.firewall.enabled:
                self._parts += [new_connections, member.punch_limit]

    def start(self, tasks: asyncio.TaskGroup, bundle: Callable[[float], Callable[[], dict[str, str]]]) -> None:
        """``bundle`` makes what collects this node's part of a report."""
        tasks.create_task(self._deaths.run(), name="easytier-deaths")
        tasks.create_task(self.registry.run(), name="registry")
        self._base.run_parts(tasks, self._parts)
        tasks.create_task(self.reports.run(bundle), name="reports")
