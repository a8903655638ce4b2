"""The relay with the registry: registry, broker and the overlay's meeting point."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgelink.api import metrics
from edgelink.api.metrics import Sample
from edgelink.api.server import Route
from edgelink.clock import Clock
from edgelink.condition_table import Place
from edgelink.conditions import Condition
from edgelink.config import Config, Paths
from edgelink.config.models import hostname_like
from edgelink.daemon.lifecycle import end_all, run_until_stopped
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ConfigError, NotRecordedError, RegistryError
from edgelink.files import private_directory
from edgelink.log import get_logger, hide
from edgelink.member.access_watch import AccessTold
from edgelink.member.admission import ADMISSION
from edgelink.member.enrolment import Enrolment
from edgelink.member.membership_store import MEMBERSHIP
from edgelink.member.network_watch import known_state
from edgelink.member.registry_client import ACCESS, ALTERNATIONS, DIRECTORY, USABLE_IPS
from edgelink.outage import Outage
from edgelink.overlay.easytier_deaths import EasyTierDeaths
from edgelink.overlay.link import LinkState, check_collision
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership, put_membership, update_membership
from edgelink.protocol.outgoing import Outbox
from edgelink.protocol.payloads import Role
from edgelink.protocol.tls import client_context
from edgelink.reconcile import run_reconciler
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.backup import has_registry
from edgelink.relay.founding import NetworkRequest
from edgelink.relay.knocker import Knocker
from edgelink.relay.records import Network
from edgelink.relay.registry_routes import RegistryRoutes
from edgelink.relay.registry_service import RegistryService
from edgelink.relay.relay_addresses import guessed_address, relay_addresses, stun_server
from edgelink.relay.relay_secrets import RelaySecrets
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenRequest
from edgelink.roles.additional_relay import AdditionalRelay, is_additional_relay
from edgelink.roles.daemon import Daemon
from edgelink.roles.overlay_parts import only_address
from edgelink.roles.session_parts import REVOKED_IPS
from edgelink.telemetry.others import KnownNode, members_of
from edgelink.telemetry.report_exchange import ReportExchange

log = get_logger("bootstrap")


async def run_bootstrap(
    config: Config, paths: Paths, clock: Clock, import_secret: Path | None, enrolment: Enrolment | None = None
) -> None:
    """Run the relay daemon until it is stopped; with ``enrolment``, as an additional relay of that network.

    Raises:
        ConfigError: unusable settings, or an imported secret for a network that has another one.
        OverlayAddressError: on first start, a CIDR that this machine already uses for something else.
        RegistryError: the state directory is damaged.
        UsageError: another relay daemon runs here.
    """
    if enrolment is None and not is_additional_relay(paths):
        await Relay(config, paths, clock, ThisMachine(), import_secret).run()
        return
    if has_registry(paths):
        raise ConfigError(
            f"this machine holds the registry of a network ({paths.registry_database})",
            hint="leave --join out; to make it an additional relay of another network, use an empty state directory",
        )
    addresses = relay_addresses(config, config.relay.advertise or (guessed_address(),))
    if enrolment is not None:
        enrolment = replace(enrolment, relay=addresses)
    await AdditionalRelay(config, paths, clock, ThisMachine(), addresses, enrolment).run()


class Relay(Daemon):
    """The relay daemon's parts."""

    def __init__(
        self, config: Config, paths: Paths, clock: Clock, machine: ThisMachine, import_secret: Path | None
    ) -> None:
        super().__init__(
            role="bootstrap",
            config=config,
            paths=paths,
            clock=clock,
            machine=machine,
            socket=paths.bootstrap_socket,
            place=Place.RELAY,
        )
        # The registry's own database has all of it, so that the file is a copy for other commands.
        self._run_with = self.board.claim(MEMBERSHIP, "relay")
        self._put_alternations = self.board.claim(ALTERNATIONS, "relay")
        self._put_revoked = self.board.claim(REVOKED_IPS, "relay")
        self._put_directory = self.board.claim(DIRECTORY, "relay")
        self._put_usable = self.board.claim(USABLE_IPS, "relay")
        self._put_access = self.board.claim(ACCESS, "relay")
        # Its own registry says who is a copy, so it is none.
        self.board.claim(ADMISSION, "relay")(Admission(may_start=True, is_accepted=True))
        self._shown_changes = 0, 0  # of leases and secret, that the fact of usable addresses takes into account
        self._import_secret = import_secret
        self._store_outage = Outage(clock)
        self._routes = RegistryRoutes(self)
        self.secrets = RelaySecrets(self)
        # A relay is nobody's member: its lease and secret are what its registry says, and it has no session. It asks no
        # other node, so that it hears of no answer and misses nobody.
        registrys = {"lease_in_use", "tries_next_secret", "secret_changed_s", "cluster_spec", "holders"}
        peers = {"answering", "silent", "last_answer_s", "nobody_answers", "impostors", "restart_for_pair"}
        self.board.require_writers(registrys | peers)

    async def run(self) -> None:
        """Settle the network, then serve it."""
        private_directory(self.paths.state)
        self.stop_request.listen_to_signals()
        await self._refuse_collision()
        device = await self.parts.links.observe(self.config.overlay.device)
        # This is also the lock against a second relay daemon on this state directory.
        async with self.api.serving(self.routes()):
            self._settle_network(device)
            await run_until_stopped(self.stop_request, self._live, self._stop_children)

    async def _refuse_collision(self) -> None:
        """On first start, while the network can still be given another CIDR. Raises OverlayAddressError."""
        if self.config.overlay.kind == "easytier" and not self.paths.registry_database.exists():
            networks = await self.parts.links.local_networks(self.config.overlay.device)
            check_collision(self.config.relay.cidr, networks)

    def _settle_network(self, device: LinkState) -> None:
        """Keys, network and our own lease: made on first start, read ever after. ``device`` is the overlay's."""
        relay = self.config.relay
        secret = self._import_secret.read_text().strip() if self._import_secret else None
        keys = AuthorityKeys.load_or_create(self.paths.authority_keys, self.clock)
        self.store = RegistryStore(self.paths.registry_database, self.clock, self.files)
        self.key = NodeKey.load_or_create(self.paths.node_key)
        addresses = relay_addresses(self.config, self._hosts())
        self.authority = Authority(
            self.store,
            keys,
            self.clock,
            addresses=addresses.broker_addresses,
            overlay_peers=addresses.overlay_peers,
            stun_servers=addresses.stun_servers,
            quarantine_s=relay.quarantine,
        )
        is_first_start = self.store.network() is None
        relay_ip, is_existing = relay.overlay_ip, self.config.overlay.kind == "existing"
        if is_existing and is_first_start and relay_ip is None:
            relay_ip = only_address(self.config.overlay.device, device)
        network = self.authority.create_network(
            NetworkRequest(
                relay.network_name,
                relay.cidr,
                relay_ip,
                secret,
                relay_may_be_outside=is_existing,
                ranges=None if relay.ranges is None else {Role(name): pair for name, pair in relay.ranges.items()},
            )
        )
        warn_of_ignored_settings(self.config, network)
        previous = Membership.load(self.paths)
        membership = self.authority.relay_membership(
            self.key,
            own_hostname(self.config),
            previous=previous,
            addresses=(f"127.0.0.1:{relay.broker_port}",),
        )
        if membership != previous:  # a full disk is no reason not to go on as before
            membership = put_membership(self.paths, membership)
        self._run_with(membership)
        lease = membership.lease
        self.conditions.set_true("Leased", "Leased", f"{lease.hostname} holds {lease.overlay_ip}")
        self.broker = self.machine.broker(
            keys=keys,
            port=relay.broker_port,
            paths=self.paths,
            users=self.store.broker_users,
            clock=self.clock,
            on_change=self._registry_changed,
            launcher=self.launcher,
            files=self.files,
        )
        outbox, deaths = Outbox(), Inbox()
        self.reports = ReportExchange(
            key=self.key,
            network_id=keys.network_id,
            directory=self.authority.full_directory,
            collect=self.bundle,
            send=outbox.put,
            clock=self.clock,
        )
        self.registry = RegistryService(
            authority=self.authority,
            store=self.store,
            network_id=keys.network_id,
            broker=self.broker,
            transport=self.machine.transport(client_context(keys.ca_pem, keys.network_id)),
            clock=self.clock,
            on_change=self._registry_changed,
            on_secret_step=self._secret_changed,
            is_listed=self.parts.is_listed,
            outbox=outbox,
            reports=self.reports,
            easytier_deaths=deaths,
        )
        self.deaths = EasyTierDeaths(
            key=self.key,
            network_id=keys.network_id,
            send=outbox.put,
            close=self.parts.close_paths,
            record=self.paths.easytier_peer_id,
            clock=self.clock,
            inbox=deaths,
            refusals=self.registry.refusals,
            board=self.board,
        )
        if (known := known_state(self.paths.state)) is not None:
            self.secrets.recall(known)
        self._put_told()
        self._is_first_start = is_first_start
        knocker = Knocker(
            key=self.key,
            network_id=keys.network_id,
            overlay=lease.cidr,
            verify_key_of=self._verify_key_of,
            clock=self.clock,
        )
        self.stun = stun_server(self.config, self.conditions, self.clock, knocker.received)

    def _verify_key_of(self, node_id: str) -> str | None:
        lease = self.store.lease(node_id)
        return None if lease is None else lease.verify_key

    def _hosts(self) -> tuple[str, ...]:
        """Where this relay is reached: as configured, else as before, since nodes follow it; a guess at first only."""
        recorded = self.store.relay_addresses().get(self.key.node_id)
        known = dict.fromkeys(address.rpartition(":")[0] for address in (recorded.broker_addresses if recorded else ()))
        return self.config.relay.advertise or tuple(known) or (guessed_address(),)

    def _put_told(self) -> None:
        """Put what a node is told by the registry, and this relay reads in its own database."""
        self._put_revoked(frozenset(self.authority.rotations.revoked_ips()))
        changes = self.store.epoch(), self.authority.network.secret_epoch
        if changes != self._shown_changes:  # this runs at every status of every node
            self._put_usable(self.authority.usable_ips())
            self._put_directory(self.authority.full_directory())
            self._shown_changes = changes
        document, _ = self.authority.access.documents().get(self.key.node_id, (None, None))
        self._put_access(AccessTold(document, document))

    def _follow_store(self) -> None:
        """Other relays may come and go at any time, EasyTier is told of them as it runs; another secret restarts it."""
        assert self.membership is not None
        self._put_told()
        others, network = self.authority.overlay_peers(self.key.node_id), self.authority.network

        def following(present: Membership) -> Membership:
            secrets = present.secrets.model_copy(update={"overlay_peers": others})
            held = replace(present.held, epoch=network.secret_epoch, secret=network.secret)
            return present.model_copy(update={"secrets": secrets}).holding(held)

        changed = following(self.membership)
        if changed != self.membership:
            hide(network.secret)
            self._run_with(changed)
            with suppress(NotRecordedError):  # StateRecorded tells of it; the store has all of it
                update_membership(self.paths, following, self.files.require)

    def _secret_changed(self) -> None:
        self._follow_store()
        self.secrets.overlay_changed()

    def condition_changed(self, condition: Condition) -> None:
        super().condition_changed(condition)
        if condition.type == "OverlayUp" and self.membership is not None:
            self.registry.rotation.look()  # which reads and writes the database: not in the middle of anything else

    async def _live(self, tasks: asyncio.TaskGroup) -> None:
        self.start_telling(tasks)
        self.start_parts(tasks)
        tasks.create_task(self.registry.run(), name="registry")
        tasks.create_task(self.reports.run(), name="reports")
        tasks.create_task(self.deaths.run(), name="easytier-deaths")
        tasks.create_task(self._invite(), name="invite")
        if self.stun is not None:
            tasks.create_task(run_reconciler(self.stun, self.conditions, self.clock), name="stun")

    async def _invite(self) -> None:
        """Once serving, say how machines join. A token is printed only to a person, never into a log."""
        await self.registry.ready.wait()
        if not (self._is_first_start and sys.stdout.isatty()):
            log.info("bootstrap.serving", how_to_join="edgelink token create --role head|edge")
            return
        await self._was_ready.wait()  # so that no step of the start comes after it
        token = await self.registry.create_token(TokenRequest(Role.HEAD))
        sys.stdout.write(
            f"\nThe network is up. On the head, type within the hour:\n\nsudo edgelink up {token.encode()}\n\n"
            "For each further machine, make a token here: edgelink token create --role edge\n\n"
        )
        sys.stdout.flush()

    async def _stop_children(self) -> None:
        self.put_is_stopping(True)
        if self.stun is not None:
            self.stun.close()
        await end_all(self.broker.stop, self.parts.stop)
        self.store.close()

    def _registry_changed(self) -> None:
        if self.broker.last_error is not None:
            self.conditions.set_error("BrokerRunning", self.broker.last_error)
        elif self.broker.pid is not None:
            self.conditions.set_true("BrokerRunning", "Running", f"the broker runs (mosquitto, pid {self.broker.pid})")
        if self.registry.is_connected:
            self.conditions.set_true("RegistryConnected", "Serving", "the registry serves enrolments")
        elif self.registry.last_error is not None:
            self.conditions.set_error("RegistryConnected", self.registry.last_error)
        self._put_alternations(self.registry.claims.alternations())
        try:
            self._follow_store()
            self._store_outage.over()
        except RegistryError as error:  # a disk that cannot be read for now is no reason to end what runs
            if self._store_outage.is_news(error.condition_reason):
                log.warning("bootstrap.registry_not_read", reason=error.condition_reason, error=str(error))

    def known_nodes(self) -> list[KnownNode]:
        return members_of(self.authority.full_directory(), None)

    def routes(self) -> Iterator[Route]:
        yield from super().routes()
        yield from self._routes.routes()
        yield from self.secrets.routes()

    def samples(self) -> Iterator[Sample]:
        yield metrics.CONNECTED(self.registry.is_connected)
        yield from metrics.of_fleet(self._routes.nodes())

    def details(self) -> dict[str, Any]:
        return {
            "node_rank": None,
            "broker_pid": self.broker.pid,
            "nodes": self._routes.nodes(),
            "refused": dict(self.registry.refusals.counts),
        }


def own_hostname(config: Config) -> str:
    """The relay's name in the network; always a valid one."""
    return config.hostname or hostname_like(socket.gethostname()) or "relay"


def warn_of_ignored_settings(config: Config, network: Network) -> None:
    """A network keeps what its first start settled; say so when the configuration has something else."""
    for key, wanted, settled in (
        ("network_name", config.relay.network_name, network.name),
        ("overlay_ip", str(config.relay.overlay_ip or network.relay_ip), str(network.relay_ip)),
        ("cidr", str(config.relay.cidr), str(network.cidr)),
    ):
        if wanted != settled:
            log.warning(
                "bootstrap.setting_ignored",
                setting=f"relay.{key}",
                wanted=wanted,
                settled=settled,
                why="settled by the first start",
            )
