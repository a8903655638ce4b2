"""The authority grants leases. There is one in a network, in the daemon of a relay.

It decides (:meth:`Authority.enrol`), signs, and has the store make it durable before anyone hears of it. It knows
nothing of MQTT: :mod:`edgelink.relay.registry_service` brings the requests and carries the replies.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import IPv4Address

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.config.models import DEFAULT_QUARANTINE_S
from edgelink.errors import ConfigError, EdgelinkError, LeaseConflictError, RegistryError
from edgelink.fault_points import reached
from edgelink.log import get_logger, hide
from edgelink.protocol.keys import Kind, NodeKey, request_id_of, seal
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import (
    MAX_RELAYS,
    MAX_UNLEASED,
    Directory,
    EnrolReply,
    EnrolRequest,
    Envelope,
    Lease,
    NodeSecrets,
    RelayAddresses,
    Role,
    unusable_fields,
)
from edgelink.protocol.roster_pages import pages_of, shortened
from edgelink.protocol.token import Token
from edgelink.relay.access import AccessRules
from edgelink.relay.allocator import AllocationRequest, allocate
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.enrol_checks import check_address, check_same, refuse_outdated, usable_token, verified_request
from edgelink.relay.fleet import FleetEntry, Imported, import_fleet
from edgelink.relay.founding import NetworkRequest, is_own_secret, settle_network
from edgelink.relay.lease_changes import LeaseChange, LeaseChanges
from edgelink.relay.passwords import broker_password_hash
from edgelink.relay.records import Network, Released, TokenRecord
from edgelink.relay.rotation import lease_epoch_after
from edgelink.relay.rotations import Rotations
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenIssuer, TokenRequest
from edgelink.relay.whole_directory import directory_of

_PASSWORD_BYTES = 24

log = get_logger("registry")


@dataclass(frozen=True)
class EnrolResult:
    """``broker_password`` (None with a refusal) is for the broker's ears; the node finds it in its sealed secrets."""

    reply: EnrolReply
    broker_password: str | None = field(default=None, repr=False)


class Authority:
    """Grants and signs. ``addresses`` (the broker's) go into tokens, and with ``overlay_peers``, those of the other
    relays, to the nodes."""

    def __init__(
        self,
        store: RegistryStore,
        keys: AuthorityKeys,
        clock: Clock,
        *,
        addresses: tuple[str, ...] = (),
        overlay_peers: tuple[str, ...] = (),
        stun_servers: tuple[str, ...] = (),
        quarantine_s: float = DEFAULT_QUARANTINE_S,
    ) -> None:
        """``quarantine_s``: how long nobody gets what a released node held."""
        self._store = store
        self.keys = keys
        self._clock = clock
        self._addresses = addresses
        self._issuer = TokenIssuer(store, keys, clock, addresses)
        self._overlay_peers = overlay_peers
        self._stun_servers = stun_servers
        self.changes = LeaseChanges(store, keys, clock, quarantine_s)
        self.rotations = Rotations(store, keys, clock)
        self.access = AccessRules(store, keys)
        self.own_node_id: str | None = None  # of the relay that this registry runs on

    # the network

    def create_network(self, request: NetworkRequest) -> Network:
        """See :func:`edgelink.relay.founding.settle_network`."""
        return settle_network(self._store, self.keys, self._clock, request)

    @property
    def network(self) -> Network:
        return self._store.require_network()

    # tokens

    def create_token(self, request: TokenRequest) -> Token:
        """See :meth:`edgelink.relay.tokens.TokenIssuer.issue`."""
        return self._issuer.issue(request)

    def import_fleet(self, entries: Sequence[FleetEntry], *, ttl_s: float, dry_run: bool) -> list[Imported]:
        """See :func:`edgelink.relay.fleet.import_fleet`."""
        return import_fleet(self._store, self._issuer, entries, ttl_s=ttl_s, dry_run=dry_run)

    def tokens(self) -> list[TokenRecord]:
        return self._store.tokens.all()

    def revoke_token(self, token_id: str) -> None:
        self._store.tokens.revoke(token_id)

    # enrolment

    def enrol(self, envelope: Envelope, token_id: str) -> EnrolResult:
        """Answer one request that came in under ``token_id`` (the broker has checked that token's secret).

        The lease is on disk before this returns. The same node gets the same lease, and with the same token again and
        again until it expires, because a reply may be lost; the very same request gets the very same password, because
        a request may arrive twice. Refusals are replies, too, and so is a failing database: asking again is harmless.
        """
        request_id = request_id_of(envelope)
        try:
            request = verified_request(envelope, token_id)
            node_id = envelope.signer
            password = self.keys.derive_password(envelope.body.encode())  # base64 can say one signature in two ways
            lease = self._grant(request, node_id, password)
        except EdgelinkError as error:
            return EnrolResult(self._refusal(request_id, error))
        sealed = self._sealed_secrets(node_id, request.verify_key, password)
        reply = EnrolReply(request_id=request_id, lease=lease, sealed_secrets=sealed, sent_at=self._clock.now())
        return EnrolResult(reply, password)

    def _refusal(self, request_id: str, error: EdgelinkError) -> EnrolReply:
        return EnrolReply(
            request_id=request_id,
            error=error.message,
            error_reason=error.condition_reason,
            error_hint=error.hint,
            sent_at=self._clock.now(),
        )

    def enrol_all(self, requests: Sequence[tuple[Envelope, str]]) -> list[EnrolResult]:
        """Like :meth:`enrol` of each request under its token, and on disk together: that takes most of the time."""
        try:
            with self._store.transaction():
                results = [self._answer(envelope, token_id) for envelope, token_id in requests]
        except RegistryError as error:  # nothing of it is on disk
            return [EnrolResult(self._refusal(request_id_of(envelope), error)) for envelope, _ in requests]
        reached("enrol.committed")
        return results

    def _answer(self, envelope: Envelope, token_id: str) -> EnrolResult:
        """Like :meth:`enrol`, and what nobody thought of is a refusal of this one request: whoever sent it sends it
        again, and it would end every daemon that comes after this one, too."""
        try:
            with self._store.transaction():  # nothing stays of what fails half-way; all of the others does
                return self.enrol(envelope, token_id)
        except RegistryError:  # the database's: the others are not on disk, either
            raise
        except Exception:
            log.exception("registry.enrolment_failed", node_id=envelope.signer, token_id=token_id)
            error = RegistryError(
                "the relay's EdgeLink failed at this request", hint="the log of its daemon, on the relay, says at what"
            )
            return EnrolResult(self._refusal(request_id_of(envelope), error))

    def _grant(self, request: EnrolRequest, node_id: str, password: str) -> Envelope:
        hide(password)
        now = self._clock.now()
        with self._store.transaction():
            self._store.revocations.refuse(node_id)
            existing = self._store.lease(node_id)
            record = self._store.tokens.get(request.token_id)
            token = usable_token(record, request, node_id, now, self._store.lease)
            refuse_outdated(request, self._store.asked_at(node_id), now)
            if token.role is Role.RELAY and request.relay is None:
                raise ConfigError(
                    f"the token {token.token_id} is for a relay, which has to say where it is dialled",
                    hint="use it with `edgelink relay --join` on a machine with a public address",
                )
            reached("enrol.verified")
            if existing is None:
                self._store.put_lease(self._new_lease(request, token, node_id, now), action="granted")
                self._store.rotations.note_epochs({node_id: self.rotations.secret_epoch})
            else:
                check_same(existing, request, token)
                if token.role is Role.HEAD and existing.role is Role.RELAY:
                    self._store.put_lease(self._as_head(existing), action="relay became head, too")
            if token.role is Role.RELAY and request.relay is not None:
                self._store.set_relay_addresses(node_id, request.relay)
            if request.asked_at is not None:
                self._store.note_asked(node_id, request.asked_at)
            self._store.tokens.use(token.token_id, node_id)
            recorded = self._store.node_password(node_id)
            if recorded is None or not recorded.matches(password):
                self._store.set_node_password(node_id, broker_password_hash(password))
            envelope = self._store.lease_envelope(node_id)
            reached("enrol.granted")
        if envelope is None:
            raise RegistryError(f"the lease of {node_id} vanished while it was granted")
        return envelope

    def _new_lease(self, request: EnrolRequest, token: TokenRecord, node_id: str, now: datetime) -> Envelope:
        network = self.network
        replaced = self._vacate(token.replaces) if token.replaces is not None else None
        if token.replaces is not None:
            self._store.access.replace_node(token.replaces, node_id)
        asked = AllocationRequest(
            node_id=node_id,
            role=token.role,
            hostname=token.hostname or request.hostname,
            overlay_ip=token.overlay_ip or request.overlay_ip,
            rank=token.rank,
        )
        if replaced is not None:  # as it is now, whatever it was when the token was made
            asked = replace(
                asked,
                hostname=replaced.hostname,
                overlay_ip=replaced.overlay_ip,
                rank=replaced.preferred_rank,
            )
        check_address(request, token.overlay_ip if replaced is None else replaced.overlay_ip, network.cidr)
        not_free = self._issuer.not_free(except_token=token.token_id)
        holdings = self._store.holdings
        if token.role is Role.RELAY and sum(lease.is_relay for lease in holdings.leases) >= MAX_RELAYS:
            raise LeaseConflictError(
                f"this network has {MAX_RELAYS} relays already",
                hint="free the lease of one that is gone: `edgelink registry release NODE`",
            )
        given = allocate(asked, holdings, network.cidr, network.relay_ip, not_free, network.ranges)
        try:
            lease = Lease(
                network_id=network.network_id,
                node_id=node_id,
                hostname=asked.hostname,
                role=token.role,
                is_relay=token.role is Role.RELAY,
                overlay_ip=given.overlay_ip,
                cidr=network.cidr,
                preferred_rank=given.rank,
                verify_key=request.verify_key,
                labels={**request.labels, **token.labels},
                given_labels=_given_labels(token, replaced),
                granted_at=now,
            )
        except ValidationError as error:  # request and token are within the limits each, not always together
            raise ConfigError(
                f"what this machine and the token {token.token_id} ask for fits no lease: {unusable_fields(error)}",
                hint="labels (`--label`) are at most 32, those of the machine and of the token together; leave some "
                "out, or ask the operator for another token",
            ) from error
        return self._sign(lease)

    def _vacate(self, node_id: str) -> Lease | None:
        """Take the lease that another key is to have from this one, for good; None: it was released already."""
        self._store.quarantine.end(node_id)
        if self._store.lease(node_id) is None:
            return None
        lease = self._store.release(node_id, action="replaced")
        self._store.revocations.put(lease, "its lease went to another key, of the re-imaged machine")
        return lease

    def _as_head(self, relay: Lease) -> Envelope:
        """The relay's machine is the head, too: same address and hostname, and now a rank."""
        network = self.network
        asked = AllocationRequest(relay.node_id, Role.HEAD, relay.hostname)
        rank = allocate(asked, self._store.holdings, network.cidr, network.relay_ip).rank
        epoch = lease_epoch_after(relay.lease_epoch, self._store.generation())
        return self._sign(
            relay.model_copy(update={"role": Role.HEAD, "preferred_rank": rank, "lease_epoch": epoch}),
        )

    def _sealed_secrets(self, node_id: str, verify_key: str, password: str) -> str:
        # Signed inside the seal: else anyone who can publish could seal a network of his own to a node.
        signed = self.keys.sign(Kind.SECRETS, self._secrets(node_id, password))
        return seal(verify_key, signed.model_dump_json().encode())

    def overlay_peers(self, node_id: str) -> tuple[str, ...]:
        """What this node's EasyTier dials: all relays but itself."""
        urls = [] if node_id == self.own_node_id else [*self._overlay_peers]
        for relay_id, relay in self._store.relay_addresses().items():
            urls += () if relay_id in (node_id, self.own_node_id) else relay.overlay_peers
        return tuple(dict.fromkeys(urls))

    def _secrets(self, node_id: str, password: str) -> NodeSecrets:
        network = self.network
        return NodeSecrets(
            network_name=network.name,
            network_secret=network.secret,
            overlay_peers=self.overlay_peers(node_id),
            stun_servers=self._store.stun_servers(),
            broker_username=node_id,
            broker_password=password,
            generation=self._store.generation(),
            secret_epoch=network.secret_epoch,
        )

    def _sign(self, lease: Lease) -> Envelope:
        return self.keys.sign(Kind.LEASE, lease)

    # the relay's own lease

    def ensure_relay_lease(self, key: NodeKey, hostname: str) -> Lease:
        """The lease of the relay that the registry runs on: granted on first start, or as an additional relay.

        Raises:
            LeaseConflictError: another key holds it, or this one another lease.
        """
        with self._store.transaction():
            lease = self._relay_lease(key, hostname)
            self.own_node_id = lease.node_id
            if self._addresses or self._overlay_peers:
                own = RelayAddresses(
                    overlay_peers=self._overlay_peers,
                    broker_addresses=self._addresses,
                    stun_servers=self._stun_servers,
                )
                self._store.set_relay_addresses(lease.node_id, own)
        return lease

    def _relay_lease(self, key: NodeKey, hostname: str) -> Lease:
        network = self.network
        own = self._store.lease(key.node_id)
        if own is not None and own.is_relay:
            return own
        if own is not None:
            raise LeaseConflictError(
                f"this machine holds a lease already, as {own.role.value} {own.hostname} ({own.overlay_ip})",
                hint=f"free it first: `edgelink registry release {own.hostname}`",
            )
        given = allocate(
            AllocationRequest(key.node_id, Role.RELAY, hostname, is_founder=True),
            self._store.holdings,
            network.cidr,
            network.relay_ip,
        )
        lease = Lease(
            network_id=network.network_id,
            node_id=key.node_id,
            hostname=hostname,
            role=Role.RELAY,
            is_relay=True,
            overlay_ip=given.overlay_ip,
            cidr=network.cidr,
            preferred_rank=given.rank,
            verify_key=key.verify_key_b64,
            granted_at=self._clock.now(),
        )
        self._store.put_lease(self._sign(lease), action="granted")
        return lease

    def relay_membership(
        self,
        key: NodeKey,
        hostname: str,
        *,
        previous: Membership | None = None,
        addresses: tuple[str, ...] | None = None,
    ) -> Membership:
        """What the relay itself keeps: like any node's, but made without a token.

        The broker password of ``previous`` is kept while it is valid, so that a restart does not change it.
        """
        with self._store.transaction():
            lease = self.ensure_relay_lease(key, hostname)
            envelope = self._store.lease_envelope(lease.node_id) or self._sign(lease)
            recorded = self._store.node_password(lease.node_id)
            known = previous.broker_passwords if previous is not None and recorded is not None else ()
            password = next((text for text in known if recorded and recorded.matches(text)), "")
            if not password:
                password = secrets.token_urlsafe(_PASSWORD_BYTES)
                self._store.set_node_password(lease.node_id, broker_password_hash(password))
        hide(password)
        return Membership(
            network_id=lease.network_id,
            addresses=self._addresses if addresses is None else addresses,
            ca_pem=self.keys.ca_pem,
            registry_verify_key=self.keys.verify_key_b64,
            lease_envelope=envelope,
            secrets=self._secrets(lease.node_id, password),
        )

    # what everyone may know

    def full_directory(self) -> Directory:
        """Who holds which lease, and where the relays are; not as it is published."""
        return directory_of(self._store, self.keys.network_id, self._unleased_ips())

    def usable_ips(self) -> frozenset[IPv4Address] | None:
        """The overlay addresses that this relay lets in. None: others may be in use as well.

        After a restoration they may: who joined since the backup looks for this relay by the overlay, to join again.
        """
        unleased = self._unleased_ips()
        if unleased is None or self._store.generation():
            return None
        return frozenset(unleased).union(lease.overlay_ip for lease in self._store.holdings.leases)

    def _unleased_ips(self) -> tuple[IPv4Address, ...] | None:
        """Those of them that no lease has. None: more than can be told, or machines without a lease have the secret."""
        left = self.changes.left_ips() if is_own_secret(self.network.secret) else None
        return None if left is None or len(left) > MAX_UNLEASED else left

    def directory_and_roster(self) -> tuple[Envelope, dict[int, Envelope]]:
        """What is published of it: the directory, and the pages of a large network; the same epoch has the same
        leases."""
        full = self.full_directory()
        pages = pages_of(full.entries, full.network_id, self.network.cidr)
        signed = {number: self.keys.sign(Kind.ROSTER, page) for number, page in pages.items()}
        return self.keys.sign(Kind.DIRECTORY, shortened(full, signed)), signed

    def directory(self) -> Envelope:
        return self.directory_and_roster()[0]

    def lease_envelopes(self) -> dict[str, Envelope]:
        return self._store.lease_envelopes()

    # the operator's word

    def release(self, node: str, *, at_once: bool = False, caller: str = "") -> Released:
        """See :meth:`edgelink.relay.lease_changes.LeaseChanges.release`."""
        return self.changes.release(node, at_once=at_once, caller=caller)

    def change_lease(self, node: str, change: LeaseChange, *, caller: str = "") -> Lease:
        """See :meth:`edgelink.relay.lease_changes.LeaseChanges.change`."""
        return self.changes.change(node, change, self._issuer.not_free(), caller=caller)


def _given_labels(token: TokenRecord, replaced: Lease | None) -> tuple[str, ...]:
    """Return the names of the token's labels that the operator gave.

    A token for a node's place also carries what that node said of itself.
    """
    if token.replaces is None:
        return tuple(sorted(token.labels))
    return tuple(sorted(token.labels.keys() & set(replaced.given_labels))) if replaced is not None else ()
