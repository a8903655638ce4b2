"""A node's standing connection to the registry: what it reports, and the signed documents it follows.

Everything received is verified before it is believed: directory and lease by the registry's key, the cluster spec by
the key that the directory names for the head. Documents that are malformed, forged, or older than what is known are
counted and otherwise ignored. The last known ones stay valid while the relay is away.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pydantic import TypeAdapter, ValidationError

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.errors import EdgelinkError, RegistryAuthError, RegistryUnavailableError, UntrustedError, first_error
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.registry.keys import Kind, NodeKey, open_envelope
from edgelink.registry.membership import Membership
from edgelink.registry.network_watch import NetworkWatch
from edgelink.registry.outgoing import Outgoing
from edgelink.registry.payloads import (
    ClusterSpec,
    Directory,
    Envelope,
    Lease,
    NetworkAnswer,
    NodeId,
    NodeStatus,
    Role,
    RosterPage,
)
from edgelink.registry.refusals import Refusals, refusal_reason
from edgelink.registry.reports import Reports
from edgelink.registry.roster import Pages, completed, digest
from edgelink.registry.rotation import FOLLOWS_SECRETS
from edgelink.registry.statuses import SILENCE_S, StatusBoard
from edgelink.registry.tls import client_context
from edgelink.registry.token import split_address
from edgelink.registry.topics import ANY, Topics
from edgelink.registry.transport import Login, Message, MqttTransport, Session, Transport, apart

STATUS_INTERVAL_S = 0.5  # a burst of condition changes becomes one message
_MAX_TO_SEND = 8
_DIRECTORY_CACHE = "directory.json"
_PAGE_CACHE = "roster-{}.json"
_CLUSTER_CACHE = "cluster-spec.json"
_EPOCHS_CACHE = "cluster-epochs.json"
_EPOCHS = TypeAdapter(dict[NodeId, int])
_OUTDATED = "Outdated"  # what was true once, and may be played again
_STABLE_S = 10.0  # a session that lasted this long starts the back-off anew

log = get_logger("registry")


class _ReplacedRegistryError(RegistryUnavailableError):
    """What answers was the registry once."""

    reason = "RegistryReplaced"


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
        files: Files = AT_ONCE,
        reload: Callable[[], Membership | None] = lambda: None,
        overlay_is_up: Callable[[], bool] = lambda: False,
        transport: Transport | None = None,
    ) -> None:
        """``reload`` reads the membership anew when no broker accepts this one: `join` may have renewed it."""
        self._membership = membership
        self._node_id = key.node_id
        self._clock = clock
        self._on_change = on_change
        self._topics = Topics(membership.network_id)
        self._transport = transport or MqttTransport(client_context(membership.ca_pem, membership.network_id))
        self._board = StatusBoard()
        self._pending_cluster: Envelope | None = None
        self._spec_epochs: dict[str, int] = {}  # the newest by head: outlives the spec, which goes with its head
        self._own_spec: ClusterSpec | None = None  # of those that we signed, the one that has the newest epoch
        self._status = Outgoing(self._topics.status(key.node_id))
        self._cluster = Outgoing(self._topics.cluster)
        self._answer = Outgoing(self._topics.answer(key.node_id))
        self.network = NetworkWatch(membership, key, cache, files)
        self._to_send: asyncio.Queue[Message] = asyncio.Queue(_MAX_TO_SEND)
        self._unsent: Message | None = None  # its session ended before the broker had acknowledged it
        self.reports: Reports | None = None
        self.take_easytier_death: Callable[[str, bytes], None] = lambda _node_id, _payload: None
        self._cache = cache
        self._files = files
        self._reload = reload
        self._overlay_is_up = overlay_is_up
        self._outage = Outage(clock)
        self.refusals = Refusals("registry.message_ignored")
        self.directory: Directory | None = None
        self.cluster_spec: ClusterSpec | None = None
        self.live_directory: Directory | None = None  # what the registry itself said, in this session
        self.lease_envelope: Envelope | None = None  # the registry's newest statement of our lease
        self.is_connected = False
        self.address = ""  # of the broker that we are, or were last, connected to
        self.last_error: EdgelinkError | None = None
        self._pages = Pages()
        self._named: Directory | None = None  # the newest directory as it was signed; `directory` has all its pages
        self._served_by = ""  # the address at which the registry last told us its directory
        self._restore()
        self.publish_status(
            NodeStatus(
                node_id=key.node_id,
                online=True,
                phase="Starting",
                reported_at=clock.now(),
                features=(FOLLOWS_SECRETS,),
            )
        )

    @property
    def statuses(self) -> dict[str, NodeStatus]:
        """The newest status of each node; on the relay and the head only, empty elsewhere."""
        return self._board.statuses

    @property
    def ignored_messages(self) -> int:
        return self.refusals.total

    def publish_status(self, status: NodeStatus) -> None:
        """Report; coalesced, the latest wins. Also sent anew after each reconnect."""
        self._status.put(status.model_dump_json().encode())

    def publish_cluster(self, envelope: Envelope) -> None:
        """State the cluster (head only): a spec signed by our key; at once, and anew after each reconnect."""
        self._cluster.put(envelope.model_dump_json().encode())
        self._follow_spec(ClusterSpec.model_validate_json(envelope.body), envelope)

    def publish_answer(self, answer: NetworkAnswer) -> None:
        """Say how far we have followed the network's secret; at once, and anew after each reconnect."""
        self._answer.put(self.network.signed(answer))

    def epoch_taken(self, spec: ClusterSpec | None) -> int:
        """The newest epoch that another cluster spec of ours than ``spec`` has, as far as is known; 0: there is none.

        A head whose disk is an older copy learns so which numbers the edges have seen already.
        """
        newest = self._spec_epochs.get(self._node_id, 0)
        return 0 if spec is not None and spec.epoch == newest and self._own_spec in (None, spec) else newest

    def send(self, topic: str, payload: bytes) -> None:
        """Publish once, in this session or the next; dropped where too much waits already."""
        with suppress(asyncio.QueueFull):
            self._to_send.put_nowait(Message(topic, payload))

    async def run(self) -> None:
        """Keep a session with the registry, wherever it is; ends by cancellation only."""
        backoff = Backoff(first_s=0.2, cap_s=5.0)
        while True:
            for number, address in enumerate(self._addresses()):
                started_s = self._clock.monotonic_s()
                try:
                    await apart(self._follow(address))
                except* EdgelinkError as errors:
                    self._disconnected(address, first_error(errors), is_likely=number == 0)
                finally:
                    has_served = self.live_directory is not None and self._served_by == address
                    self.is_connected, self.live_directory = False, None
                if self._clock.monotonic_s() - started_s > _STABLE_S:
                    backoff.reset()
                if has_served:
                    break  # it was here a moment ago, so it comes back here as a rule: the others cost time-outs
            self._reload_membership()
            await self._clock.sleep(backoff.next_s())

    def renew(self, membership: Membership) -> None:
        """From the next connection on, use this membership: other addresses or credentials of the same lease."""
        self._membership = membership

    def _addresses(self) -> list[str]:
        """Where the registry may be: where it served us last, at any relay's address, or behind a relay's overlay IP.

        The last is for a registry that was restored at an address that nobody knows: another relay still leads there.
        """
        known = [*self._membership.addresses]
        if self._served_by in known:
            known.insert(0, self._served_by)
        if self.directory is not None and self._overlay_is_up():
            for entry in self.directory.relay_entries:
                relay = self.directory.relays.get(entry.node_id)
                if relay is None or entry.node_id == self._node_id:
                    continue
                ports = {split_address(address)[1] for address in relay.broker_addresses}
                known += [f"{entry.overlay_ip}:{port}" for port in sorted(ports)]
        return list(dict.fromkeys(known))

    async def _follow(self, address: str) -> None:
        """One session, until it is lost."""
        will = NodeStatus(node_id=self._node_id, online=False)
        last_will = Message(self._status.topic, will.model_dump_json().encode(), retain=True)
        async with self._transport.connect(address, self._login(), will=last_will) as session:
            await session.subscribe(*self._subscriptions())
            with suppress(RegistryAuthError):  # a relay that is older than this node knows nothing of some of them
                await session.subscribe(*self._newer_subscriptions())
            with suppress(RegistryAuthError):
                await session.subscribe(*self.network.subscriptions)
            if self._hears_all:
                with suppress(RegistryAuthError):  # nor of rosters
                    await session.subscribe(self._topics.roster(ANY))
            self._connected(address)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(session), name="registry-receive")
                tasks.create_task(
                    self._status.send_for_ever(session, self._clock, STATUS_INTERVAL_S), name="registry-status"
                )
                tasks.create_task(self._cluster.send_for_ever(session, self._clock, 0.0), name="registry-cluster")
                tasks.create_task(self._answer.send_for_ever(session, self._clock, 0.0), name="registry-answer")
                tasks.create_task(self._forget_silent(), name="registry-silence")
                tasks.create_task(self._send_once(session), name="registry-send")

    async def _send_once(self, session: Session) -> NoReturn:
        while True:
            unsent, self._unsent = self._unsent, None
            message = unsent or await self._to_send.get()
            if unsent is None:  # a session that ends meanwhile costs one more try, in the next
                self._unsent = message
            await session.publish(message.topic, message.payload)
            self._unsent = None

    def _login(self) -> Login:
        secrets = self._membership.secrets
        # Always the same, so that the broker ends our half-open former connection when we come back; and not to be
        # guessed, because whoever connects under this id would end ours.
        client_id = hashlib.sha256(b"edgelink client id\0" + secrets.broker_password.encode()).hexdigest()[:23]
        return Login(secrets.broker_username, secrets.broker_password, client_id)

    def _subscriptions(self) -> list[str]:
        topics = [self._topics.lease(self._node_id), self._topics.directory, self._topics.cluster]
        if self._hears_all:
            topics.append(self._topics.status(ANY))
        return topics

    @property
    def _hears_all(self) -> bool:
        """Relay and head are told of every node, also where that takes more than one message."""
        lease = self._membership.lease
        return lease.is_relay or lease.role in (Role.HEAD, Role.RELAY)

    def _newer_subscriptions(self) -> list[str]:
        is_head = self._membership.lease.role is Role.HEAD
        reports = [self._topics.report_request, *([self._topics.report(ANY)] if is_head else [])]
        return [*reports, self._topics.easytier(ANY)]

    def _connected(self, address: str) -> None:
        self._board.begin_session()
        self.is_connected, self.address, self.last_error = True, address, None
        away_s = self._outage.over()
        log.info("registry.connected", address=address, **({} if away_s is None else {"away_s": away_s}))
        self._on_change()

    def _disconnected(self, address: str, error: EdgelinkError, *, is_likely: bool) -> None:
        """That nobody answers is told of the likely address only: at the others the registry never was, as a rule."""
        was_connected, self.is_connected = self.is_connected, False
        if isinstance(error, _ReplacedRegistryError):
            self._served_by = ""
        elif isinstance(error, RegistryUnavailableError) and not (is_likely or was_connected):
            return
        has_other_words = str(error) != str(self.last_error)
        self.last_error = error
        # Once an address: a relay that goes away is lost, then refuses, then is silent, and all of it is one outage.
        if self._outage.is_news((address, error.condition_reason)):
            log.warning("registry.disconnected", reason=error.condition_reason, error=str(error))
        if has_other_words:
            self._on_change()

    def _reload_membership(self) -> None:
        """Without a session: an enrolment beside a running daemon gives the node a new password, and new addresses."""
        try:
            renewed = self._reload()
        except EdgelinkError as error:
            log.warning("registry.membership_unreadable", error=str(error))
            return
        if renewed is not None and renewed != self._membership and renewed.lease == self._membership.lease:
            self.renew(renewed)
            log.info("registry.membership_renewed")

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
        elif message.topic == self._topics.report_request:
            if self.reports is not None:
                self.reports.take_request(message.payload)
        elif (node_id := self._topics.parse_report(message.topic)) is not None:
            if self.reports is not None:
                self.reports.take_reply(node_id, message.payload)
        elif (node_id := self._topics.parse_easytier(message.topic)) is not None:
            self.take_easytier_death(node_id, message.payload)
        elif self.network.take(message):
            return
        elif not message.payload:
            return  # a cleared retained message says nothing
        elif message.topic == self._topics.directory:
            self._take_directory(Envelope.model_validate_json(message.payload))
        elif self._topics.is_roster(message.topic):
            self._take_page(Envelope.model_validate_json(message.payload))
        elif message.topic == self._topics.cluster:
            self._take_cluster_envelope(Envelope.model_validate_json(message.payload))
        elif message.topic == self._topics.lease(self._node_id):
            self._take_lease(Envelope.model_validate_json(message.payload))

    def _take_directory(self, envelope: Envelope) -> None:
        directory = open_envelope(envelope, Kind.DIRECTORY, Directory, self._membership.registry_verify_key)
        if directory.network_id != self._membership.network_id:
            raise UntrustedError(f"a directory of another network, {directory.network_id}")
        known = self._named
        if known is not None and directory.generation < known.generation:
            raise _ReplacedRegistryError(
                f"the registry at {self.address} was replaced by one that was restored from its backup",
                hint="stop that relay for good: what it grants does not count",
            )
        if known is not None and directory.generation == known.generation and directory.epoch < known.epoch:
            raise UntrustedError(f"directory {directory.epoch} is older than {known.epoch}", reason=_OUTDATED)
        if directory != known:
            self._keep(_DIRECTORY_CACHE, envelope.model_dump_json())
        self._named = directory
        self._complete_directory()
        if self.is_connected:
            self.live_directory, self._served_by = directory, self.address

    def _take_page(self, envelope: Envelope) -> None:
        """Part of the list of a large network; it counts when the directory names it, before or after."""
        page = open_envelope(envelope, Kind.ROSTER, RosterPage, self._membership.registry_verify_key)
        if page.network_id != self._membership.network_id:
            raise UntrustedError(f"a page of the roster of another network, {page.network_id}")
        if self._pages.put(digest(envelope), page, self._named):
            self._keep(_PAGE_CACHE.format(page.page), envelope.model_dump_json())
        self._complete_directory()

    def _complete_directory(self) -> None:
        """Who reads no roster goes by what the directory itself names: relays and head."""
        if self._named is None:
            return
        whole = completed(self._named, self._pages) if self._hears_all else self._named
        if whole is None:
            return  # a page is still to come
        self.directory, head = whole, whole.head
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
        spec = open_envelope(envelope, Kind.CLUSTER_SPEC, ClusterSpec, head.verify_key)
        if spec.network_id != self._membership.network_id or spec.head_node_id != head.node_id:
            raise UntrustedError("a cluster spec of another network or head")
        newest = self._spec_epochs.get(head.node_id, 0)
        self._note_epoch(spec)
        if envelope.signer == self._node_id and not self._cluster.is_empty:
            return  # our own words: what we say now counts, whatever its number
        if spec.epoch < newest:
            raise UntrustedError(f"cluster spec {spec.epoch} is older than {newest}", reason=_OUTDATED)
        self._follow_spec(spec, envelope)

    def _follow_spec(self, spec: ClusterSpec, envelope: Envelope) -> None:
        if spec == self.cluster_spec:
            return
        self.cluster_spec = spec
        self._keep(_CLUSTER_CACHE, envelope.model_dump_json())
        self._note_epoch(spec)

    def _note_epoch(self, spec: ClusterSpec) -> None:
        newest = self._spec_epochs.get(spec.head_node_id, 0)
        if spec.epoch < newest:
            return
        if spec.head_node_id == self._node_id and (
            self._own_spec is None or spec.epoch > newest or spec != self.cluster_spec
        ):
            self._own_spec = spec  # with the same number, what was heard counts against what we say
        if spec.epoch > newest:
            self._spec_epochs[spec.head_node_id] = spec.epoch
            self._keep(_EPOCHS_CACHE, _EPOCHS.dump_json(self._spec_epochs))

    def _take_lease(self, envelope: Envelope) -> None:
        lease = open_envelope(envelope, Kind.LEASE, Lease, self._membership.registry_verify_key)
        if lease.node_id != self._node_id or lease.network_id != self._membership.network_id:
            raise UntrustedError(f"a lease of another node, {lease.node_id}")
        self.lease_envelope = envelope

    def _keep(self, name: str, content: str | bytes) -> None:
        """For the next start of the daemon."""
        if self._cache is not None:
            self._files.keep(self._cache / name, content)

    def _restore(self) -> None:
        """What was known when the daemon ended; verified again, and replaced by whatever newer the registry says."""
        if self._cache is None:
            return
        takers: dict[str, Callable[[bytes], None]] = {
            _EPOCHS_CACHE: lambda text: self._spec_epochs.update(_EPOCHS.validate_json(text)),
            **{path.name: self._restore_page for path in sorted(self._cache.glob(_PAGE_CACHE.format("*")))},
            _DIRECTORY_CACHE: lambda text: self._take_directory(Envelope.model_validate_json(text)),
            _CLUSTER_CACHE: lambda text: self._take_cluster_envelope(Envelope.model_validate_json(text)),
        }
        for name, take in takers.items():
            try:
                take((self._cache / name).read_bytes())
            except FileNotFoundError:
                continue
            except (UntrustedError, ValidationError) as error:
                self._ignore(name, error)

    def _restore_page(self, text: bytes) -> None:
        self._take_page(Envelope.model_validate_json(text))

    def _ignore(self, topic: str, error: UntrustedError | ValidationError) -> None:
        self.refusals.note(refusal_reason(error), topic, error=str(error))
