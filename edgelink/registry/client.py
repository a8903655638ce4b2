"""A node's standing connection to the registry: what it reports, and the signed documents it follows.

Everything received is verified before it is believed: directory and lease by the registry's key, the cluster spec by
the key that the directory names for the head. Documents that are malformed, forged, or older than what is known are
counted and otherwise ignored. The last known ones stay valid while the relay is away.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.errors import EdgelinkError, RegistryAuthError, UntrustedError, first_error
from edgelink.files import write_atomic
from edgelink.log import get_logger
from edgelink.reconcile import Wakeup
from edgelink.registry.keys import Kind, NodeKey, open_envelope
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import ClusterSpec, Directory, Envelope, Lease, NodeStatus, Role
from edgelink.registry.statuses import SILENCE_S, StatusBoard
from edgelink.registry.tls import client_context
from edgelink.registry.topics import ANY, Topics
from edgelink.registry.transport import Login, Message, MqttTransport, Session, Transport

STATUS_INTERVAL_S = 0.5  # a burst of condition changes becomes one message
_DIRECTORY_CACHE = "directory.json"
_CLUSTER_CACHE = "cluster-spec.json"
_STABLE_S = 10.0  # a session that lasted this long starts the back-off anew

log = get_logger("registry")


class _Outgoing:
    """The newest payload of one retained topic; older ones that were not sent yet are dropped."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._payload: bytes | None = None
        self._changed = Wakeup()

    @property
    def is_empty(self) -> bool:
        return self._payload is None

    def put(self, payload: bytes) -> None:
        self._payload = payload
        self._changed.set()

    async def send_for_ever(self, session: Session, clock: Clock, interval_s: float) -> NoReturn:
        """Send what is there (a new session's broker may have lost it), then every change."""
        sent: bytes | None = None
        while True:
            if self._payload is not None and self._payload != sent:
                sent = self._payload
                await session.publish(self.topic, sent, retain=True)
                await clock.sleep(interval_s)
            await self._changed.wait(None)


class RegistryClient:
    """Follows the registry for ever in :meth:`run`; everything else is a plain attribute of what is known."""

    def __init__(
        self,
        membership: Membership,
        key: NodeKey,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        cache: Path | None = None,
        reload: Callable[[], Membership | None] = lambda: None,
        transport: Transport | None = None,
    ) -> None:
        """``reload`` reads the membership anew when the broker refuses this one: `join` may have renewed it."""
        self._membership = membership
        self._node_id = key.node_id
        self._clock = clock
        self._on_change = on_change
        self._topics = Topics(membership.network_id)
        self._transport = transport or MqttTransport(client_context(membership.ca_pem, membership.network_id))
        self._board = StatusBoard()
        self._pending_cluster: Envelope | None = None
        self._directory_epoch = 0
        self._status = _Outgoing(self._topics.status(key.node_id))
        self._cluster = _Outgoing(self._topics.cluster)
        self._cache = cache
        self._reload = reload
        self._told: set[str] = set()
        self._logged_bad: set[tuple[str, str]] = set()
        self.directory: Directory | None = None
        self.cluster_spec: ClusterSpec | None = None
        self.lease_envelope: Envelope | None = None  # the registry's newest statement of our lease
        self.is_connected = False
        self.address = ""  # of the broker that we are, or were last, connected to
        self.last_error: EdgelinkError | None = None
        self.ignored_messages = 0
        self._restore()
        self.publish_status(NodeStatus(node_id=key.node_id, online=True, phase="Starting", reported_at=clock.now()))

    @property
    def statuses(self) -> dict[str, NodeStatus]:
        """The newest status of each node; on the relay and the head only, empty elsewhere."""
        return self._board.statuses

    def publish_status(self, status: NodeStatus) -> None:
        """Report; coalesced, the latest wins. Also sent anew after each reconnect."""
        self._status.put(status.model_dump_json().encode())

    def publish_cluster(self, envelope: Envelope) -> None:
        """State the cluster (head only): a spec signed by our key; at once, and anew after each reconnect."""
        self._cluster.put(envelope.model_dump_json().encode())
        self.cluster_spec = ClusterSpec.model_validate_json(envelope.body)
        self._keep(_CLUSTER_CACHE, envelope)

    async def run(self) -> None:
        """Keep a session with the relay; ends by cancellation only."""
        backoff = Backoff(first_s=0.2, cap_s=5.0)
        while True:
            for address in self._membership.addresses:
                started_s = self._clock.monotonic_s()
                try:
                    await self._follow(address)
                except* EdgelinkError as errors:
                    self._disconnected(first_error(errors))
                    self._renew_credentials()
                finally:
                    self.is_connected = False
                if self._clock.monotonic_s() - started_s > _STABLE_S:
                    backoff.reset()
            await self._clock.sleep(backoff.next_s())

    async def _follow(self, address: str) -> None:
        """One session, until it is lost."""
        will = NodeStatus(node_id=self._node_id, online=False)
        last_will = Message(self._status.topic, will.model_dump_json().encode(), retain=True)
        async with self._transport.connect(address, self._login(), will=last_will) as session:
            await session.subscribe(*self._subscriptions())
            self._connected(address)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(session), name="registry-receive")
                tasks.create_task(
                    self._status.send_for_ever(session, self._clock, STATUS_INTERVAL_S), name="registry-status"
                )
                tasks.create_task(self._cluster.send_for_ever(session, self._clock, 0.0), name="registry-cluster")
                tasks.create_task(self._forget_silent(), name="registry-silence")

    def _login(self) -> Login:
        secrets = self._membership.secrets
        # Always the same, so that the broker ends our half-open former connection when we come back; and not to be
        # guessed, because whoever connects under this id would end ours.
        client_id = hashlib.sha256(b"edgelink client id\0" + secrets.broker_password.encode()).hexdigest()[:23]
        return Login(secrets.broker_username, secrets.broker_password, client_id)

    def _subscriptions(self) -> list[str]:
        topics = [self._topics.lease(self._node_id), self._topics.directory, self._topics.cluster]
        lease = self._membership.lease
        if lease.is_relay or lease.role in (Role.HEAD, Role.RELAY):
            topics.append(self._topics.status(ANY))
        return topics

    def _connected(self, address: str) -> None:
        self._board.begin_session()
        self.is_connected, self.address, self.last_error = True, address, None
        self._told.clear()
        log.info("registry.connected", address=address)
        self._on_change()

    def _disconnected(self, error: EdgelinkError) -> None:
        self.is_connected, self.last_error = False, error
        if str(error) not in self._told:  # an outage is told once an address, not once a try
            self._told.add(str(error))
            log.warning("registry.disconnected", reason=error.condition_reason, error=str(error))
            self._on_change()

    def _renew_credentials(self) -> None:
        """After a refusal: each enrolment gives the node a new password, also one beside a running daemon."""
        if not isinstance(self.last_error, RegistryAuthError):
            return
        try:
            renewed = self._reload()
        except EdgelinkError as error:
            log.warning("registry.membership_unreadable", error=str(error))
            return
        present = self._membership
        if renewed is None or renewed.lease != present.lease or renewed.secrets == present.secrets:
            return  # another lease takes effect at the next start only: the overlay has this one's address
        self._membership = renewed
        log.info("registry.credentials_renewed")

    async def _forget_silent(self) -> None:
        await self._clock.sleep(SILENCE_S)
        if self._board.forget_silent():
            self._on_change()

    async def _receive(self, session: Session) -> None:
        async for message in session.messages():
            try:
                self._take(message)
            except (UntrustedError, ValidationError) as error:
                self._ignore(message.topic, error)
            else:
                self._on_change()

    def _take(self, message: Message) -> None:
        node_id = self._topics.parse_status(message.topic)
        if node_id is not None:
            if not self._board.receive(node_id, message.payload):
                raise UntrustedError(f"the status on {node_id}'s topic is malformed or not its own")
        elif not message.payload:
            return  # a cleared retained message says nothing
        elif message.topic == self._topics.directory:
            self._take_directory(Envelope.model_validate_json(message.payload))
        elif message.topic == self._topics.cluster:
            self._take_cluster_envelope(Envelope.model_validate_json(message.payload))
        elif message.topic == self._topics.lease(self._node_id):
            self._take_lease(Envelope.model_validate_json(message.payload))

    def _take_directory(self, envelope: Envelope) -> None:
        directory = open_envelope(envelope, Kind.DIRECTORY, Directory, self._membership.registry_verify_key)
        if directory.network_id != self._membership.network_id:
            raise UntrustedError(f"a directory of another network, {directory.network_id}")
        if directory.epoch < self._directory_epoch:
            raise UntrustedError(f"directory {directory.epoch} is older than {self._directory_epoch}")
        if directory != self.directory:
            self._keep(_DIRECTORY_CACHE, envelope)
        self.directory, self._directory_epoch = directory, directory.epoch
        head = directory.head
        if self.cluster_spec is not None and (head is None or head.node_id != self.cluster_spec.head_node_id):
            self.cluster_spec = None  # the operator made another node the head
        self._take_cluster()

    def _take_cluster_envelope(self, envelope: Envelope) -> None:
        self._pending_cluster = envelope
        self._take_cluster()

    def _take_cluster(self) -> None:
        """Believe the newest cluster spec as soon as the directory tells whose key must have signed it."""
        envelope = self._pending_cluster
        head = self.directory.head if self.directory is not None else None
        if envelope is None or head is None or envelope.signer != head.node_id:
            return
        self._pending_cluster = None
        if envelope.signer == self._node_id and not self._cluster.is_empty:
            return  # our own words, which we know better
        spec = open_envelope(envelope, Kind.CLUSTER_SPEC, ClusterSpec, head.verify_key)
        if spec.network_id != self._membership.network_id or spec.head_node_id != head.node_id:
            raise UntrustedError("a cluster spec of another network or head")
        if self.cluster_spec is not None and spec.epoch < self.cluster_spec.epoch:
            raise UntrustedError(f"cluster spec {spec.epoch} is older than {self.cluster_spec.epoch}")
        if spec != self.cluster_spec:
            self._keep(_CLUSTER_CACHE, envelope)
        self.cluster_spec = spec

    def _take_lease(self, envelope: Envelope) -> None:
        lease = open_envelope(envelope, Kind.LEASE, Lease, self._membership.registry_verify_key)
        if lease.node_id != self._node_id or lease.network_id != self._membership.network_id:
            raise UntrustedError(f"a lease of another node, {lease.node_id}")
        self.lease_envelope = envelope

    def _keep(self, name: str, envelope: Envelope) -> None:
        """For the next start of the daemon; a full disk is no reason to end this one."""
        if self._cache is None:
            return
        try:
            write_atomic(self._cache / name, envelope.model_dump_json())
        except OSError as error:
            log.warning("registry.cache_not_written", path=str(self._cache / name), error=str(error))

    def _restore(self) -> None:
        """What was known when the daemon ended; verified again, and replaced by whatever the registry says now."""
        if self._cache is None:
            return
        takers = {_DIRECTORY_CACHE: self._take_directory, _CLUSTER_CACHE: self._take_cluster_envelope}
        for name, take in takers.items():
            try:
                take(Envelope.model_validate_json((self._cache / name).read_bytes()))
            except FileNotFoundError:
                continue
            except (UntrustedError, ValidationError) as error:
                self._ignore(name, error)
        self._directory_epoch = 0  # a registry restored from a backup may be a little behind our memory of it

    def _ignore(self, topic: str, error: Exception) -> None:
        self.ignored_messages += 1
        what = (topic, type(error).__name__)
        if what not in self._logged_bad:
            self._logged_bad.add(what)
            log.warning("registry.message_ignored", topic=topic, error=str(error))
