"""The registry on its own relay: network and broker, and the relay's daemon as what its own registry says of it."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgelink.api import metrics
from edgelink.api.metrics import Sample
from edgelink.api.server import Route
from edgelink.config import Config
from edgelink.config.models import hostname_like
from edgelink.daemon.base import Base
from edgelink.daemon.overlay_parts import OverlayParts
from edgelink.errors import NotRecordedError, RegistryError
from edgelink.log import get_logger, hide
from edgelink.member.access_watch import AccessTold
from edgelink.member.admission import ADMISSION
from edgelink.member.membership_store import MEMBERSHIP
from edgelink.member.network_watch import known_state
from edgelink.member.registry_client import ACCESS, ALTERNATIONS, DIRECTORY, USABLE_IPS
from edgelink.member.session_parts import REVOKED_IPS
from edgelink.outage import Outage
from edgelink.overlay.easytier_deaths import EasyTierDeaths
from edgelink.overlay.link import LinkState, only_address
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership, put_membership, update_membership
from edgelink.protocol.outgoing import Outbox
from edgelink.protocol.payloads import Role
from edgelink.protocol.tls import client_context
from edgelink.reconcile import Nudge
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.founding import NetworkRequest
from edgelink.relay.knocker import Knocker
from edgelink.relay.records import Network
from edgelink.relay.registry_routes import RegistryRoutes
from edgelink.relay.registry_service import RegistryService
from edgelink.relay.relay_addresses import guessed_address, relay_addresses, stun_server
from edgelink.relay.relay_secrets import RelaySecrets
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenRequest
from edgelink.telemetry.report_exchange import ReportExchange

log = get_logger("bootstrap")

# Facts that nobody writes here. A relay is nobody's member: its lease and secret are what its registry says, and it has
# no session. It asks no other node, so that it hears of no answer and misses nobody.
_UNWRITTEN = {
    *("lease_in_use", "kept_secret", "tries_next_secret", "secret_changed_s", "cluster_spec", "holders"),
    *("answering", "silent", "last_answer_s", "nobody_answers", "impostors", "restart_for_pair", "run"),
}


@dataclass(frozen=True)
class Confirmed:
    """Whether EasyTier runs as wanted, with the network's secret."""

    easytier_as_wanted: bool | None


class OwnRegistry:
    """The registry's parts. The relay's database is settled on the first start, and read ever after."""

    def __init__(self, base: Base, overlay: OverlayParts, device: LinkState, import_secret: Path | None) -> None:
        """``device`` is the overlay's. ``import_secret`` holds the secret of a network that was set up by hand.

        Raises:
            ConfigError: unusable settings, or an imported secret for a network that has another one.
            RegistryError: the state directory is damaged.
        """
        board, config, paths, clock = base.board, base.config, base.paths, base.clock
        self._base = base
        self.board, self.conditions, self.clock = board, base.conditions, clock
        # The registry's own database has all of it, so that the file is a copy for other commands.
        self._run_with = board.claim(MEMBERSHIP, "relay")
        self._put_alternations = board.claim(ALTERNATIONS, "relay")
        self._put_revoked = board.claim(REVOKED_IPS, "relay")
        self._put_directory = board.claim(DIRECTORY, "relay")
        self._put_usable = board.claim(USABLE_IPS, "relay")
        self._put_access = board.claim(ACCESS, "relay")
        # Its own registry says who is a copy, so it is none.
        board.claim(ADMISSION, "relay")(Admission(may_start=True, is_accepted=True))
        self._shown_changes = 0, 0  # of leases and secret, that the fact of usable addresses takes into account
        self._store_outage = Outage(clock)
        keys = AuthorityKeys.load_or_create(paths.authority_keys, clock)
        self.store = RegistryStore(paths.registry_database, clock, base.files)
        self.key = NodeKey.load_or_create(paths.node_key)
        self._is_first_start = self.store.network() is None
        self.authority = self._settle_network(keys, device, import_secret)
        lease = self._settle_membership().lease
        base.conditions.set_true("Leased", "Leased", f"{lease.hostname} holds {lease.overlay_ip}")
        self.broker = base.machine.broker(
            keys=keys,
            port=config.relay.broker_port,
            paths=paths,
            users=self.store.broker_users,
            clock=clock,
            on_change=self._registry_changed,
            launcher=base.launcher,
            files=base.files,
        )
        outbox, deaths = Outbox(), Inbox()
        network_id = keys.network_id
        self._reports = ReportExchange(board=board, key=self.key, network_id=network_id, send=outbox.put, clock=clock)
        self.registry = RegistryService(
            authority=self.authority,
            store=self.store,
            network_id=network_id,
            broker=self.broker,
            transport=base.machine.transport(client_context(keys.ca_pem, network_id)),
            clock=clock,
            on_change=self._registry_changed,
            on_secret_step=self._secret_changed,
            is_listed=overlay.is_listed,
            outbox=outbox,
            reports=self._reports,
            easytier_deaths=deaths,
        )
        board.read(Confirmed, "secret's change", Nudge(self.registry.rotation.look))
        self._deaths = EasyTierDeaths(
            key=self.key,
            network_id=network_id,
            send=outbox.put,
            close=overlay.close_paths,
            record=paths.easytier_peer_id,
            clock=clock,
            inbox=deaths,
            refusals=self.registry.refusals,
            board=board,
        )
        self._routes = RegistryRoutes(board, self.key.node_id, self.store, self.authority, self.registry, clock)
        self.secrets = RelaySecrets(self)
        if (known := known_state(paths.state)) is not None:
            self.secrets.recall(known)
        self._put_told()
        knocker = Knocker(
            key=self.key,
            network_id=network_id,
            overlay=lease.cidr,
            verify_key_of=self._verify_key_of,
            clock=clock,
        )
        self._stun = stun_server(config, base.conditions, clock, knocker.received)
        board.require_writers(_UNWRITTEN)

    @property
    def membership(self) -> Membership | None:
        """The membership that the relay runs with."""
        return self.board.facts.running

    # the first start

    def _settle_network(self, keys: AuthorityKeys, device: LinkState, import_secret: Path | None) -> Authority:
        config, relay = self._base.config, self._base.config.relay
        secret = import_secret.read_text().strip() if import_secret else None
        addresses = relay_addresses(config, self._hosts())
        authority = Authority(
            self.store,
            keys,
            self.clock,
            addresses=addresses.broker_addresses,
            overlay_peers=addresses.overlay_peers,
            stun_servers=addresses.stun_servers,
            quarantine_s=relay.quarantine,
        )
        relay_ip, is_existing = relay.overlay_ip, config.overlay.kind == "existing"
        if is_existing and self._is_first_start and relay_ip is None:
            relay_ip = only_address(config.overlay.device, device)
        network = authority.create_network(
            NetworkRequest(
                relay.network_name,
                relay.cidr,
                relay_ip,
                secret,
                relay_may_be_outside=is_existing,
                ranges=None if relay.ranges is None else {Role(name): pair for name, pair in relay.ranges.items()},
            )
        )
        warn_of_ignored_settings(config, network)
        return authority

    def _settle_membership(self) -> Membership:
        config, paths = self._base.config, self._base.paths
        previous = Membership.load(paths)
        membership = self.authority.relay_membership(
            self.key,
            own_hostname(config),
            previous=previous,
            addresses=(f"127.0.0.1:{config.relay.broker_port}",),
        )
        if membership != previous:  # a full disk is no reason not to go on as before
            membership = put_membership(paths, membership)
        self._run_with(membership)
        return membership

    def _hosts(self) -> tuple[str, ...]:
        """Where this relay is reached: as configured, else as before, since nodes follow it; a guess at first only."""
        recorded = self.store.relay_addresses().get(self.key.node_id)
        known = dict.fromkeys(address.rpartition(":")[0] for address in (recorded.broker_addresses if recorded else ()))
        return self._base.config.relay.advertise or tuple(known) or (guessed_address(),)

    # what the registry says

    def _verify_key_of(self, node_id: str) -> str | None:
        lease = self.store.lease(node_id)
        return None if lease is None else lease.verify_key

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
                update_membership(self._base.paths, following, self._base.files.require)

    def _secret_changed(self) -> None:
        self._follow_store()
        self.secrets.overlay_changed()

    def _registry_changed(self) -> None:
        conditions, broker, registry = self.conditions, self.broker, self.registry
        if broker.last_error is not None:
            conditions.set_error("BrokerRunning", broker.last_error)
        elif broker.pid is not None:
            conditions.set_true("BrokerRunning", "Running", f"the broker runs (mosquitto, pid {broker.pid})")
        if registry.is_connected:
            conditions.set_true("RegistryConnected", "Serving", "the registry serves enrolments")
        elif registry.last_error is not None:
            conditions.set_error("RegistryConnected", registry.last_error)
        self._put_alternations(registry.claims.alternations())
        try:
            self._follow_store()
            self._store_outage.over()
        except RegistryError as error:  # a disk that cannot be read for now is no reason to end what runs
            if self._store_outage.is_news(error.condition_reason):
                log.warning("bootstrap.registry_not_read", reason=error.condition_reason, error=str(error))

    # the daemon's life

    def start(self, tasks: asyncio.TaskGroup, bundle: Callable[[float], Callable[[], dict[str, str]]]) -> None:
        """``bundle`` makes what collects the relay's part of a report."""
        self.registry.rotation.look()  # ``SecretCurrent`` is said also while EasyTier does not start
        tasks.create_task(self.registry.run(), name="registry")
        tasks.create_task(self._reports.run(bundle), name="reports")
        tasks.create_task(self._deaths.run(), name="easytier-deaths")
        tasks.create_task(self._invite(), name="invite")
        self._base.run_reconcilers(tasks, [] if self._stun is None else [self._stun])

    async def _invite(self) -> None:
        """Once serving, say how machines join. A token is printed only to a person, never into a log."""
        await self.registry.ready.wait()
        if not (self._is_first_start and sys.stdout.isatty()):
            log.info("bootstrap.serving", how_to_join="edgelink token create --role head|edge")
            return
        await self._base.telling.was_ready.wait()  # so that no step of the start comes after it
        token = await self.registry.create_token(TokenRequest(Role.HEAD))
        sys.stdout.write(
            f"\nThe network is up. On the head, type within the hour:\n\nsudo edgelink up {token.encode()}\n\n"
            "For each further machine, make a token here: edgelink token create --role edge\n\n"
        )
        sys.stdout.flush()

    def close(self) -> None:
        """Stop answering STUN."""
        if self._stun is not None:
            self._stun.close()

    def routes(self) -> Iterator[Route]:
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
    """Return the relay's name in the network; always a valid one."""
    return config.hostname or hostname_like(socket.gethostname()) or "relay"


def warn_of_ignored_settings(config: Config, network: Network) -> None:
    """Say where the configuration has something else than the network's first start settled."""
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
