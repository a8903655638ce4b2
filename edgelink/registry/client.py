"""A node's standing connection to the registry: what it reports, and the signed documents it follows.

Everything received is verified before it is believed: directory and lease by the registry's key, the cluster spec by
the key that the directory names for the head. Documents that are malformed, forged, or older than what is known are
counted and otherwise ignored. The last known ones stay valid while the relay is away.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.errors import EdgelinkError, RegistryAuthError, RegistryUnavailableError, UntrustedError, first_error
from edgelink.facts.board import Board
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.registry.claims import Alternation, Life
from edgelink.registry.documents import Documents, ReplacedRegistryError
from edgelink.registry.keys import NodeKey
from edgelink.registry.lease_watch import FOLLOWS_LEASES, LeaseWatch
from edgelink.registry.membership import Membership
from edgelink.registry.network_watch import NetworkWatch
from edgelink.registry.node_channel import NodeChannel
from edgelink.registry.outgoing import Outbox, Outgoing
from edgelink.registry.payloads import (
    ClusterSpec,
    Directory,
    Envelope,
    NetworkAnswer,
    NodeStatus,
    Role,
)
from edgelink.registry.refusals import Refusals, refusal_reason
from edgelink.registry.reports import Reports
from edgelink.registry.rotation import FOLLOWS_SECRETS
from edgelink.registry.statuses import StatusBoard
from edgelink.registry.tls import client_context
from edgelink.registry.token import split_address
from edgelink.registry.topics import ANY, Topics
from edgelink.registry.transport import Login, Message, MqttTransport, Session, Transport
from edgelink.tasks import apart

FEATURES = (FOLLOWS_SECRETS, FOLLOWS_LEASES)  # what a node of this version can follow
STATUS_INTERVAL_S = 0.5  # a burst of condition changes becomes one message
_MAX_SILENCES = 100
_STABLE_S = 10.0  # a session that lasted this long starts the back-off anew

log = get_logger("registry")


@dataclass(frozen=True)
class Inputs:
    """What the session depends on."""

    membership: Membership | None


class RegistryClient:
    """Follows the registry for ever in :meth:`run`; everything else is a plain attribute of what is known."""

    def __init__(
        self,
        board: Board[Any],
        key: NodeKey,
        clock: Clock,
        on_change: Callable[[], None],
        *,
        cache: Path | None = None,
        files: Files = AT_ONCE,
        reload: Callable[[], object] = lambda: None,
        overlay_is_up: Callable[[], bool] = lambda: False,
        transport: Transport | None = None,
        life: Life | None = None,
    ) -> None:
        """``reload`` reads the membership anew when no broker accepts this one: `join` may have renewed it."""
        self._board = board
        membership = self._membership
        self.life = life or Life()
        self.may_report = asyncio.Event()  # cleared by who does not know yet whether this machine is the node
        self.may_report.set()
        self.session_begun: Callable[[], None] = lambda: None
        self._alternation = Alternation()
        self._node_id = key.node_id
        self._clock = clock
        self._on_change = on_change
        self._topics = Topics(membership.network_id)
        self._transport = transport or MqttTransport(client_context(membership.ca_pem, membership.network_id))
        self._statuses = StatusBoard()
        self._status = Outgoing(self._topics.status(key.node_id))
        self._cluster = Outgoing(self._topics.cluster)
        self._answer = Outgoing(self._topics.answer(key.node_id))
        self.channel = NodeChannel(membership, key, clock, self.send)
        self.channel.on_speak = self._status.repeat
        self.network = NetworkWatch(membership, key, cache, files)
        self._outbox = Outbox()
        self.reports: Reports | None = None
        self.take_easytier_death: Callable[[str, bytes], None] = lambda _node_id, _payload: None
        self._silences: deque[tuple[str, bytes]] = deque(maxlen=_MAX_SILENCES)
        self._reload = reload
        self._overlay_is_up = overlay_is_up
        self._outage = Outage(clock)
        self.refusals = Refusals("registry.message_ignored")
        self.documents = Documents(
            membership,
            hears_all=lambda: self._hears_all,
            states_cluster=lambda: not self._cluster.is_empty,
            refusals=self.refusals,
            cache=cache,
            files=files,
        )
        self.live_directory: Directory | None = None  # what the registry itself said, in this session
        self.own_lease = LeaseWatch(membership)
        self.is_connected = False
        self.address = ""  # of the broker that we are, or were last, connected to
        self.password = ""  # with which it let us in
        self.last_error: EdgelinkError | None = None
        self._served_by = ""  # the address at which the registry last told us its directory
        self.publish_status(
            NodeStatus(
                node_id=key.node_id,
                online=True,
                phase="Starting",
                reported_at=clock.now(),
                features=FEATURES,
            )
        )

    @property
    def directory(self) -> Directory | None:
        """Who holds which lease, as far as this node is told."""
        return self.documents.directory

    @property
    def cluster_spec(self) -> ClusterSpec | None:
        """The head's newest word of the Ray cluster."""
        return self.documents.cluster_spec

    @property
    def lease_envelope(self) -> Envelope | None:
        """The registry's newest statement of our lease, in this daemon's life."""
        return self.own_lease.envelope

    @property
    def statuses(self) -> dict[str, NodeStatus]:
        """The newest status of each node; on the relay and the head only, empty elsewhere."""
        return self._statuses.statuses

    def cloned(self) -> list[str]:
        """Hostnames of the nodes that speak with two voices; on the relay and the head only."""
        names = {entry.node_id: entry.hostname for entry in self.directory.entries} if self.directory else {}
        return [names.get(node_id, node_id) for node_id in self._alternation.cloned(self._clock.monotonic_s())]

    @property
    def ignored_messages(self) -> int:
        return self.refusals.total

    def take_silences(self) -> list[tuple[str, bytes]]:
        """What nodes have said since the last call of whom they miss: node id and message, not verified."""
        taken = list(self._silences)
        self._silences.clear()
        return taken

    def publish_status(self, status: NodeStatus) -> None:
        """Report; coalesced, the latest wins. Also sent anew after each reconnect."""
        self._status.put(status.model_copy(update={"instance": self.life.instance}).model_dump_json().encode())

    def publish_cluster(self, envelope: Envelope) -> None:
        """State the cluster (head only): a spec signed by our key; at once, and anew after each reconnect."""
        self._cluster.put(envelope.model_dump_json().encode())
        self.documents.state_cluster(envelope)

    def publish_answer(self, answer: NetworkAnswer) -> None:
        """Say how far we have followed the network's secret; at once, and anew after each reconnect."""
        self._answer.put(self.network.signed(answer))

    def epoch_taken(self, spec: ClusterSpec | None) -> int:
        """See :meth:`edgelink.registry.documents.Documents.epoch_taken`."""
        return self.documents.epoch_taken(spec)

    def send(self, topic: str, payload: bytes) -> None:
        """Publish once, in this session or the next; dropped where too much waits already."""
        self._outbox.put(topic, payload)

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
                    self.channel.closed()
                if self._clock.monotonic_s() - started_s > _STABLE_S:
                    backoff.reset()
                if has_served:
                    break  # it was here a moment ago, so it comes back here as a rule: the others cost time-outs
            self._reload_membership()
            await self._clock.sleep(backoff.next_s())

    @property
    def _membership(self) -> Membership:
        membership = self._board.select(Inputs).membership
        assert membership is not None  # a node has one before it has a client
        return membership

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
        """One session, until it is lost; with the next password first, if there is one: it may count already."""
        *upcoming, present = self._membership.broker_passwords
        for password in upcoming:
            with suppress(RegistryAuthError):
                await self._follow_as(address, password)
        await self._follow_as(address, present)

    async def _follow_as(self, address: str, password: str) -> None:
        will = NodeStatus(node_id=self._node_id, online=False, instance=self.life.instance)
        last_will = Message(self._status.topic, will.model_dump_json().encode(), retain=True)
        async with self._transport.connect(address, self._login(password), will=last_will) as session:
            await session.subscribe(*self._subscriptions())
            with suppress(RegistryAuthError):  # a relay that is older than this node knows nothing of some of them
                await session.subscribe(*self._newer_subscriptions())
            with suppress(RegistryAuthError):
                await session.subscribe(*self.network.subscriptions)
            if self._hears_all:
                with suppress(RegistryAuthError):  # nor of rosters
                    await session.subscribe(self._topics.roster(ANY))
            await self._open_channel(session)
            self.password = password
            self._connected(address)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(session), name="registry-receive")
                for outgoing, interval_s in ((self._status, STATUS_INTERVAL_S), (self._cluster, 0), (self._answer, 0)):
                    tasks.create_task(self._state(session, outgoing, interval_s), name=outgoing.topic)
                silence = self._statuses.forget_silent(self._clock, self._on_change)
                tasks.create_task(silence, name="registry-silence")
                tasks.create_task(self._outbox.send_for_ever(session), name="registry-send")

    async def _state(self, session: Session, outgoing: Outgoing, interval_s: float) -> NoReturn:
        """What this node says of itself for others to keep, as soon as it has a say."""
        await self.may_report.wait()
        await outgoing.send_for_ever(session, self._clock, interval_s)

    async def _open_channel(self, session: Session) -> None:
        try:
            await session.subscribe(*self.channel.subscriptions)
        except RegistryAuthError:  # an older relay's broker
            self.channel.opened(is_granted=False)
        else:
            self.channel.opened(is_granted=True)

    def _login(self, password: str | None = None) -> Login:
        """``password`` None: the present one."""
        password = password or self._membership.secrets.broker_password
        # Always the same, so that the broker ends our half-open former connection when we come back; another one than
        # that of a machine with a copy of our disk; and not to be guessed: who connects under this id would end ours.
        known = "\0".join(("edgelink client id", password, *self.life.machine))
        client_id = hashlib.sha256(known.encode()).hexdigest()[:23]
        return Login(self._membership.secrets.broker_username, password, client_id)

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
        return [*reports, self._topics.easytier(ANY), self._topics.silence(ANY)]

    def _connected(self, address: str) -> None:
        self._statuses.begin_session()
        self.session_begun()
        self.is_connected, self.address, self.last_error = True, address, None
        away_s = self._outage.over()
        log.info("registry.connected", address=address, **({} if away_s is None else {"away_s": away_s}))
        self._on_change()

    def _disconnected(self, address: str, error: EdgelinkError, *, is_likely: bool) -> None:
        """That nobody answers is told of the likely address only: at the others the registry never was, as a rule."""
        was_connected, self.is_connected = self.is_connected, False
        if isinstance(error, ReplacedRegistryError):
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
        before = self._membership
        try:
            self._reload()
        except EdgelinkError as error:
            log.warning("registry.membership_unreadable", error=str(error))
        if self._membership != before:
            log.info("registry.membership_renewed")

    async def _receive(self, session: Session) -> None:
        async for message in session.messages():
            try:
                self._take(message)
            except (UntrustedError, ValidationError) as error:
                self._ignore(message.topic, error)
            except EdgelinkError:
                raise
            except Exception:  # retained, it would end every daemon that comes after this one, too
                log.exception("registry.message_not_taken", topic=message.topic)
            else:
                self._on_change()

    def _take(self, message: Message) -> None:
        node_id = self._topics.parse_status(message.topic)
        if node_id is not None:
            self._take_status(node_id, message.payload)
        elif message.topic == self._topics.report_request:
            if self.reports is not None:
                self.reports.take_request(message.payload)
        elif (node_id := self._topics.parse_report(message.topic)) is not None:
            if self.reports is not None:
                self.reports.take_reply(node_id, message.payload)
        elif (node_id := self._topics.parse_easytier(message.topic)) is not None:
            self.take_easytier_death(node_id, message.payload)
        elif (node_id := self._topics.parse_silence(message.topic)) is not None:
            self._silences.append((node_id, message.payload))
        elif self.network.take(message) or self.channel.take(message) or self.own_lease.take(message, self._membership):
            return
        elif self.documents.take(message, self.address):
            is_directory = bool(message.payload) and message.topic == self._topics.directory
            if is_directory and self.is_connected:
                self.live_directory, self._served_by = self.documents.named, self.address

    def _take_status(self, node_id: str, payload: bytes) -> None:
        status = self._statuses.receive(node_id, payload)
        if status is None and payload:
            raise UntrustedError(f"the status on {node_id}'s topic is malformed or not its own")
        if status is not None and status.online and status.instance is not None:
            self._alternation.note(node_id, status.instance, self._clock.monotonic_s())

    def _ignore(self, topic: str, error: UntrustedError | ValidationError) -> None:
        self.refusals.note(refusal_reason(error), topic, error=str(error))
