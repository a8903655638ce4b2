"""A node's standing connection to the registry: what it reports, and the signed documents it follows.

Everything received is verified before it is believed: directory and lease by the registry's key, the cluster spec by
the key that the directory names for the head. Documents that are malformed, forged, or older than what is known are
counted and otherwise ignored. The last known ones stay valid while the relay is away.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from pydantic import ValidationError

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.conditions import Phase
from edgelink.errors import EdgelinkError, RegistryAuthError, RegistryUnavailableError, UntrustedError, first_error
from edgelink.facts.board import Board, Fact, Table
from edgelink.files import AT_ONCE, Files
from edgelink.log import get_logger
from edgelink.member.access_watch import AccessTold, AccessWatch
from edgelink.member.documents import Documents, ReplacedRegistryError
from edgelink.member.lease_watch import HeardLease, LeaseWatch
from edgelink.member.network_watch import NetworkWatch
from edgelink.member.node_channel import NodeChannel
from edgelink.outage import Outage
from edgelink.protocol.alternation import Alternation
from edgelink.protocol.held_secret import NetworkTold
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Admission, Life
from edgelink.protocol.membership import Membership
from edgelink.protocol.outgoing import Outbox, Outgoing
from edgelink.protocol.payloads import ClusterSpec, Directory, Envelope, NodeStatus, Role
from edgelink.protocol.refusals import Refusals, refusal_reason
from edgelink.protocol.report_seam import Reports
from edgelink.protocol.statuses import StatusBoard
from edgelink.protocol.tls import client_context
from edgelink.protocol.token import split_address
from edgelink.protocol.topics import ANY, Topics
from edgelink.protocol.transport import KEEPALIVE_S, METERED_KEEPALIVE_S, Login, Message, MqttTransport, Transport
from edgelink.protocol.transport import Session as MqttSession
from edgelink.ray_cluster.cluster_spec import OwnEpoch
from edgelink.reconcile import Wakeup
from edgelink.tasks import apart

STATUS_INTERVAL_S = 0.5  # a burst of condition changes becomes one message
_LAST_WORD_S = 2.0  # a stop of Ray takes longer
_STABLE_S = 10.0  # a session that lasted this long starts the back-off anew

log = get_logger("registry")


@dataclass(frozen=True)
class Session:
    """The session with the registry's broker.

    Attributes:
        number: how many have begun in this daemon's life. A session that was lost and is back has another number.
        is_connected: it is there.
        address: the address of the broker that we are, or were last, connected to.
        password: the password with which it let us in.
        error: why there is none. None: no try has failed since the last session began.
        directory: what the registry itself has said in this session. None: nothing yet.
    """

    number: int = 0
    is_connected: bool = False
    address: str = ""
    password: str = field(default="", repr=False)
    error: EdgelinkError | None = None
    directory: Directory | None = None


SESSION: Final[Fact[Session]] = Fact("session")
NETWORK: Final[Fact[NetworkTold]] = Fact("network")
ACCESS: Final[Fact[AccessTold]] = Fact("access")
DIRECTORY: Final[Fact[Directory | None]] = Fact("directory")
CLUSTER_SPEC: Final[Fact[ClusterSpec | None]] = Fact("cluster_spec")
OWN_EPOCH: Final[Fact[OwnEpoch]] = Fact("own_epoch")
USABLE_IPS: Final[Fact[frozenset[IPv4Address] | None]] = Fact("usable_ips")
STATUSES: Final[Fact[Table[str, NodeStatus]]] = Fact("statuses")
ALTERNATIONS: Final[Fact[tuple[tuple[str, float], ...]]] = Fact("alternations")
WAITING: Final[Fact[frozenset[str]]] = Fact("waiting")
ONLINE: Final[Fact[frozenset[str]]] = Fact("online")
LOST: Final[Fact[frozenset[str]]] = Fact("lost")
STOPPED: Final[Fact[frozenset[str]]] = Fact("stopped")
METERED: Final[Fact[frozenset[str]]] = Fact("metered")
NEXT_LEASE: Final[Fact[HeardLease | None]] = Fact("next_lease")


@dataclass(frozen=True)
class Inputs:
    """What the session depends on."""

    membership: Membership | None
    admission: Admission
    overlay_is_up: bool
    is_metered: bool


class Store(Protocol):
    """What of :class:`edgelink.member.membership_store.MembershipStore` is needed here."""

    def reload(self) -> object:
        """Show the membership that is on disk. Raises EdgelinkError."""


class RegistryClient:
    """Follows the registry for ever in :meth:`run`, and writes what it learns on the board.

    ``easytier_deaths`` and ``silences`` get what nodes say on topics of their own, not verified.
    """

    name = "registry client"

    def __init__(
        self,
        board: Board[Any],
        key: NodeKey,
        clock: Clock,
        *,
        store: Store,
        outbox: Outbox,
        reports: Reports,
        easytier_deaths: Inbox,
        silences: Inbox,
        cache: Path | None = None,
        files: Files = AT_ONCE,
        transport: Transport | None = None,
        life: Life | None = None,
    ) -> None:
        """Arguments that need a word. The node is a member: the board has its membership.

        store: read anew when no broker accepts this membership: `join` may have renewed it.
        outbox: what is published once, in this session or the next.
        reports: makes and gathers reports.
        """
        self._board = board
        membership = self._membership
        self.life = life or Life()
        self._alternation = Alternation()
        self._node_id = key.node_id
        self._clock = clock
        self._topics = Topics(membership.network_id)
        self._transport = transport or MqttTransport(client_context(membership.ca_pem, membership.network_id))
        self._statuses = StatusBoard()
        self._status = Outgoing(self._topics.status(key.node_id))
        self._cluster = Outgoing(self._topics.cluster)
        self.channel = NodeChannel(membership, key, clock, outbox.put, self._status.repeat)
        self._network = NetworkWatch(membership, key, clock, cache, files)
        self._access = AccessWatch(membership, cache, files)
        self._outbox = outbox
        self._reports = reports
        self._easytier_deaths = easytier_deaths
        self._silences = silences
        self._store = store
        self._outage = Outage(clock)
        self.refusals = Refusals("registry.message_ignored")
        lease = membership.lease
        # Relay and head are told of every node, also where that takes more than one message.
        self._hears_all = lease.is_relay or lease.role in (Role.HEAD, Role.RELAY)
        self.documents = Documents(
            membership, hears_all=self._hears_all, refusals=self.refusals, cache=cache, files=files
        )
        self._own_lease = LeaseWatch(membership)
        self._session = Session()
        self._served_by = ""  # the address at which the registry last told us its directory
        self._may_speak = Wakeup()
        self._revision = 0  # of the statuses
        self._put_session = board.claim(SESSION, self.name)
        self._put_network = board.claim(NETWORK, self.name)
        self._put_access = board.claim(ACCESS, self.name)
        self._put_directory = board.claim(DIRECTORY, self.name)
        self._put_cluster_spec = board.claim(CLUSTER_SPEC, self.name)
        self._put_own_epoch = board.claim(OWN_EPOCH, self.name)
        self._put_usable_ips = board.claim(USABLE_IPS, self.name)
        self._put_statuses = board.claim(STATUSES, self.name)
        self._put_alternations = board.claim(ALTERNATIONS, self.name)
        self._put_waiting = board.claim(WAITING, self.name)
        self._put_online = board.claim(ONLINE, self.name)
        self._put_lost = board.claim(LOST, self.name)
        self._put_stopped = board.claim(STOPPED, self.name)
        self._put_metered = board.claim(METERED, self.name)
        self._put_next_lease = board.claim(NEXT_LEASE, self.name)
        board.read(Inputs, self.name, self._may_speak)
        self._show_documents()
        self.publish_status(
            NodeStatus(
                node_id=key.node_id,
                online=True,
                phase="Starting",
                reported_at=clock.now(),
            )
        )

    @property
    def is_connected(self) -> bool:
        return self._session.is_connected

    @property
    def address(self) -> str:
        """The address of the broker that we are, or were last, connected to."""
        return self._session.address

    def publish_status(self, status: NodeStatus) -> None:
        """Report; coalesced, the latest wins. Also sent anew after each reconnect."""
        self._status.put(status.model_copy(update={"instance": self.life.instance}).model_dump_json().encode())

    def publish_cluster(self, envelope: Envelope) -> None:
        """State the cluster (head only): a spec signed by our key; at once, and anew after each reconnect."""
        self._cluster.put(envelope.model_dump_json().encode())
        self.documents.state_cluster(envelope)
        self._show_documents()

    def settle_network(self) -> None:
        """Write down what waits where the disk had no room. Harmless at any time."""
        self._network.settle()
        self._access.settle()
        self._show_documents()

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
                    has_served = self._session.directory is not None and self._served_by == address
                    self._show_session(is_connected=False, directory=None)
                    self._put_stopped(frozenset())
                    self.channel.closed()
                if self._clock.monotonic_s() - started_s > _STABLE_S:
                    backoff.reset()
                if has_served:
                    break  # it was here a moment ago, so it comes back here as a rule: the others cost time-outs
            self._reload_membership()
            await self._clock.sleep(backoff.next_s())

    async def say_stopped(self) -> None:
        """Tell the network that this node is switched off on purpose. To be called after the end of :meth:`run`.

        It is the will of one more session, because a will is the last word that the broker keeps. Nobody is told where
        the broker does not answer, or this machine was not heard as the node before.
        """
        if not self.address or not self._known.admission.may_report(self._session.number):
            return
        stopped = NodeStatus(
            node_id=self._node_id, online=False, instance=self.life.instance, phase=Phase.STOPPING.value
        )
        will = Message(self._status.topic, stopped.model_dump_json().encode(), retain=True)
        with suppress(EdgelinkError):
            async with self._transport.connect(self.address, self._login(), will=will, timeout_s=_LAST_WORD_S):
                log.info("registry.said_stopped")

    @property
    def _known(self) -> Inputs:
        return self._board.select(Inputs)

    @property
    def _membership(self) -> Membership:
        membership = self._known.membership
        assert membership is not None
        return membership

    def _show_session(self, **change: Any) -> None:
        self._session = replace(self._session, **change)
        self._put_session(self._session)

    def _show_documents(self) -> None:
        told = self._network.told
        self._put_network(replace(told, is_on_disk=told.is_on_disk and self._access.is_on_disk))
        self._put_access(self._access.told)
        self._put_directory(self.documents.directory)
        self._put_own_epoch(self.documents.own_epoch)
        self._put_cluster_spec(self.documents.cluster_spec)
        self._put_usable_ips(self.documents.usable_ips)
        self._put_next_lease(self._own_lease.heard)

    def _show_statuses(self) -> None:
        self._revision += 1
        self._put_statuses(Table(self._statuses.statuses, self._revision))
        self._put_online(self._statuses.online)
        self._put_lost(self._statuses.lost)
        self._put_stopped(self._statuses.stopped)
        self._put_waiting(self._statuses.waiting)
        self._put_metered(self._statuses.metered)

    def _addresses(self) -> list[str]:
        """Where the registry may be: where it served us last, at any relay's address, or behind a relay's overlay IP.

        The last is for a registry that was restored at an address that nobody knows: another relay still leads there.
        """
        known = [*self._membership.addresses]
        if self._served_by in known:
            known.insert(0, self._served_by)
        directory = self.documents.directory
        if directory is not None and self._known.overlay_is_up:
            for entry in directory.relay_entries:
                relay = directory.relays.get(entry.node_id)
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
        is_metered = self._known.is_metered
        will = NodeStatus(node_id=self._node_id, online=False, instance=self.life.instance, metered=is_metered)
        last_will = Message(self._status.topic, will.model_dump_json().encode(), retain=True)
        login, keepalive_s = self._login(password), METERED_KEEPALIVE_S if is_metered else KEEPALIVE_S
        async with self._transport.connect(address, login, will=last_will, keepalive_s=keepalive_s) as session:
            await session.subscribe(*self._subscriptions())
            self.channel.opened()
            self._connected(address, password)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(session), name="registry-receive")
                for outgoing, interval_s in ((self._status, STATUS_INTERVAL_S), (self._cluster, 0)):
                    tasks.create_task(self._state(session, outgoing, interval_s), name=outgoing.topic)
                silence = self._statuses.forget_silent(self._clock, self._show_statuses)
                tasks.create_task(silence, name="registry-silence")
                tasks.create_task(self._outbox.send_for_ever(session), name="registry-send")

    async def _state(self, session: MqttSession, outgoing: Outgoing, interval_s: float) -> NoReturn:
        """Say what this node says of itself for others to keep, as soon as it has a voice."""
        while not self._known.admission.may_report(self._session.number):
            await self._may_speak.wait(None)
        await outgoing.send_for_ever(session, self._clock, interval_s)

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
        topics += [self._topics.report_request, self._topics.easytier(ANY), self._topics.silence(ANY)]
        topics += [*self._network.subscriptions, self._access.topic, *self.channel.subscriptions]
        if self._hears_all:
            topics += [self._topics.status(ANY), self._topics.roster(ANY)]
        if self._membership.lease.role is Role.HEAD:
            topics.append(self._topics.report(ANY))
        return topics

    def _connected(self, address: str, password: str) -> None:
        self._statuses.begin_session()
        number = self._session.number + 1
        self._show_session(number=number, is_connected=True, address=address, password=password, error=None)
        away_s = self._outage.over()
        log.info("registry.connected", address=address, **({} if away_s is None else {"away_s": away_s}))

    def _disconnected(self, address: str, error: EdgelinkError, *, is_likely: bool) -> None:
        """That nobody answers is told of the likely address only: at the others the registry never was, as a rule."""
        was_connected = self._session.is_connected
        if isinstance(error, ReplacedRegistryError):
            self._served_by = ""
        elif isinstance(error, RegistryUnavailableError) and not (is_likely or was_connected):
            return
        if str(error) != str(self._session.error):
            self._show_session(error=error)
        # Once an address: a relay that goes away is lost, then refuses, then is silent, and all of it is one outage.
        if self._outage.is_news((address, error.condition_reason)):
            log.warning("registry.disconnected", reason=error.condition_reason, error=str(error))

    def _reload_membership(self) -> None:
        """Without a session: an enrolment beside a running daemon gives the node a new password, and new addresses."""
        before = self._membership
        try:
            self._store.reload()
        except EdgelinkError as error:
            log.warning("registry.membership_unreadable", error=str(error))
        if self._membership != before:
            log.info("registry.membership_renewed")

    async def _receive(self, session: MqttSession) -> None:
        async for message in session.messages():
            try:
                self._take(message)
            except (UntrustedError, ValidationError) as error:
                self._ignore(message.topic, error)
            except EdgelinkError:
                raise
            except Exception:  # retained, it would end every daemon that comes after this one, too
                log.exception("registry.message_not_taken", topic=message.topic)

    def _take(self, message: Message) -> None:
        node_id = self._topics.parse_status(message.topic)
        if node_id is not None:
            self._take_status(node_id, message.payload)
        elif message.topic == self._topics.report_request:
            self._reports.take_request(message.payload)
        elif (node_id := self._topics.parse_report(message.topic)) is not None:
            self._reports.take_reply(node_id, message.payload)
        elif (node_id := self._topics.parse_easytier(message.topic)) is not None:
            self._easytier_deaths.put(node_id, message.payload)
        elif (node_id := self._topics.parse_silence(message.topic)) is not None:
            self._silences.put(node_id, message.payload)
        elif not self.channel.take(message):
            self._take_document(message)

    def _take_document(self, message: Message) -> None:
        try:
            if (
                self._network.take(message)
                or self._access.take(message)
                or self._own_lease.take(message, self._membership)
            ):
                return
            if self.documents.take(message, self.address):
                is_directory = bool(message.payload) and message.topic == self._topics.directory
                if is_directory and self.is_connected:
                    self._served_by = self.address
                    self._show_session(directory=self.documents.named)
        finally:
            self._show_documents()

    def _take_status(self, node_id: str, payload: bytes) -> None:
        status = self._statuses.receive(node_id, payload)
        self._show_statuses()
        if status is None and payload:
            raise UntrustedError(f"the status on {node_id}'s topic is malformed or not its own")
        if status is None or not status.online or status.instance is None:
            return
        if self._alternation.note(node_id, status.instance, self._clock.monotonic_s()):
            directory = self.documents.directory
            names = {entry.node_id: entry.hostname for entry in directory.entries} if directory else {}
            found = self._alternation.alternated().items()
            self._put_alternations(tuple((names.get(other, other), at_s) for other, at_s in found))

    def _ignore(self, topic: str, error: UntrustedError | ValidationError) -> None:
        self.refusals.note(refusal_reason(error), topic, error=str(error))
