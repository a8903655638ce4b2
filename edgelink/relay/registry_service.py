"""The registry's side of MQTT, in the relay's daemon: keeps the broker running and speaks for the authority on it.

Each session with the broker begins by bringing its users in step with the store and publishing what everyone may
know (directory, leases); then it serves enrolments. What the store says and the broker was not told, because someone
died in between, is mended at the beginning of the next session.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from typing import NoReturn, Protocol

from pydantic import ValidationError

from edgelink.backoff import Backoff
from edgelink.clock import Clock
from edgelink.condition_table.informing import ECHO_ANSWERED
from edgelink.conditions import Status
from edgelink.errors import (
    EdgelinkError,
    RegistryAuthError,
    RegistryError,
    RegistryUnavailableError,
    UntrustedError,
    first_error,
)
from edgelink.fault_points import reached
from edgelink.log import get_logger
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.outgoing import Outbox
from edgelink.protocol.payloads import Envelope, Lease, NodeStatus
from edgelink.protocol.refusals import Refusals, refusal_reason
from edgelink.protocol.report_seam import Reports
from edgelink.protocol.requests import Claim, Done, EchoUp, EchoWord, NodeRequest, Renew, Speak
from edgelink.protocol.statuses import SILENCE_S, StatusBoard
from edgelink.protocol.token import Token
from edgelink.protocol.topics import ANY, Topics
from edgelink.protocol.transport import Login, Message, Session, Transport
from edgelink.reconcile import Wakeup
from edgelink.relay.authority import Authority
from edgelink.relay.broker_users import BrokerUsers
from edgelink.relay.claim_desk import ClaimDesk
from edgelink.relay.dynamic_security import RESPONSE_TOPIC
from edgelink.relay.enrol_queue import EnrolQueue
from edgelink.relay.fleet import FleetEntry, Imported
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.publications import Publications
from edgelink.relay.records import AccessRule, BrokerUser, Released
from edgelink.relay.renewals import Renewals
from edgelink.relay.request_desk import Answered, RequestDesk
from edgelink.relay.rotation_driver import RotationDriver
from edgelink.relay.rotations import Revoked
from edgelink.relay.status_gate import StatusGate
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenRequest
from edgelink.tasks import apart
from edgelink.timeouts import timeout

_LOOK_S = 30.0  # tokens expire without anybody saying so
_GRANT_TIMEOUT_S = 5.0

log = get_logger("registry")


class ManagedBroker(Protocol):
    """What the service needs of :class:`edgelink.relay.broker.Broker`."""

    address: str

    @property
    def login(self) -> Login:
        """The registry's own credentials, as they are now."""

    async def run(self) -> None:
        """Keep the broker running."""

    async def restart(self) -> None:
        """Start it anew with the store's present users."""


class _OutOfStepError(RegistryUnavailableError):
    """The broker has to start with fresh files: it lacks users whose passwords only their owners know, or rights."""


class RegistryService:
    """Runs in :meth:`run` until cancelled. ``statuses`` is what the nodes last said of themselves."""

    def __init__(
        self,
        *,
        authority: Authority,
        store: RegistryStore,
        network_id: str,
        broker: ManagedBroker,
        transport: Transport,
        clock: Clock,
        on_change: Callable[[], None],
        on_secret_step: Callable[[], None],
        is_listed: Callable[[IPv4Address], bool],
        outbox: Outbox,
        reports: Reports,
        easytier_deaths: Inbox,
    ) -> None:
        """Arguments that need a word.

        on_secret_step: called after each step of a change of the network's secret, before the nodes are told.
        is_listed: says whether the relay's EasyTier lists an overlay address.
        outbox: what is published once, in this session or the next.
        reports: makes the relay's report when the head asks.
        easytier_deaths: gets what nodes say of their EasyTier, not verified.
        """
        self.ready = asyncio.Event()  # set while a session serves enrolments
        self.last_error: EdgelinkError | None = None
        self._authority = authority
        self._store = store
        self._topics = Topics(network_id)
        self._broker = broker
        self._transport = transport
        self._clock = clock
        self._on_change = on_change
        self._board = StatusBoard()
        self._status_gate = StatusGate(clock)
        self.refusals = Refusals("registry.refused")
        self.publications = Publications(authority, self._topics, clock)
        self._enrolments = EnrolQueue(self._topics, self.refusals, clock)
        self._passwords: dict[str, str] = {}  # of users made since the broker was last brought in step
        self._changed = Wakeup()
        self._in_step = asyncio.Lock()
        self._session: tuple[Session, BrokerUsers] | None = None
        self.rotation = RotationDriver(
            authority.rotations, self._topics, self.refusals, clock, self._board, self.hold_s, on_secret_step
        )
        self._renewals = Renewals(store, authority.keys, clock)
        self.desk = RequestDesk(
            store,
            authority.keys,
            self._topics,
            self.refusals,
            clock,
            handlers={"renew": self._renew, "claim": self._judge, "echo-up": self._echo_up},
        )
        self.claims = ClaimDesk(store, self.refusals, clock, ask=self._ask_status, is_listed=is_listed)
        self._outbox = outbox
        self._reports = reports
        self._easytier_deaths = easytier_deaths
        self._serving_since_s: float | None = None
        self._left = store.departures.all()

    @property
    def statuses(self) -> dict[str, NodeStatus]:
        return self._board.statuses

    @property
    def is_connected(self) -> bool:
        return self.ready.is_set()

    def unheard(self) -> set[str]:
        """Who holds a lease and may be online although it has said nothing: the session with the broker is young."""
        since_s = self._serving_since_s
        if since_s is not None and self._clock.monotonic_s() >= since_s + SILENCE_S:
            return set()
        leases = self._store.leases()
        return {lease.node_id for lease in leases} - {*self.statuses, self._authority.own_node_id}

    def hold_s(self, *, without: str = "") -> float:
        """Return how long a change of the secret may have to wait for robots in motion at most.

        Infinite while a node may be online that has not been heard of. ``without``: a node that is not waited for, by
        hostname or node_id.
        """
        nodes = [lease.node_id for lease in self._store.leases() if without not in (lease.hostname, lease.node_id)]
        if not self.unheard().isdisjoint(nodes):
            return math.inf
        told = [self.statuses[node_id] for node_id in nodes if node_id in self.statuses]
        return max((status.hold_s for status in told if status.online), default=0.0)

    async def run(self) -> None:
        """Keep the broker and our session with it; ends by cancellation, which leaves the broker running."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._broker.run(), name="broker")
            tasks.create_task(self._serve_for_ever(), name="registry")

    async def create_token(self, request: TokenRequest) -> Token:
        """A new token that opens the broker when this returns; if the broker is away, as soon as it is back.

        Raises:
            ConfigError, LeaseConflictError: it could never be used as asked.
        """
        token = self._authority.create_token(request)
        self._passwords[token.broker_username] = token.secret
        await self.refresh()
        return token

    async def import_fleet(self, entries: Sequence[FleetEntry], *, ttl_s: float, dry_run: bool) -> list[Imported]:
        """Tokens for many machines, which open the broker like those of :meth:`create_token`.

        See :func:`edgelink.relay.fleet.import_fleet`.
        """
        imported = self._authority.import_fleet(entries, ttl_s=ttl_s, dry_run=dry_run)
        tokens = [item.token for item in imported if item.token is not None]
        self._passwords |= {token.broker_username: token.secret for token in tokens}
        if tokens:
            await self.refresh()
        return imported

    async def revoke_token(self, token_id: str) -> None:
        """Make the token useless, at once."""
        self._authority.revoke_token(token_id)
        await self.refresh()

    async def release(self, node: str, *, at_once: bool = False, caller: str = "") -> Released:
        """Take a node's lease away and put it off the broker: the operator's explicit command.

        See :meth:`edgelink.relay.authority.Authority.release`.
        """
        released = self._authority.release(node, at_once=at_once, caller=caller)
        await self.refresh()
        return released

    async def change_lease(self, node: str, change: LeaseChange, *, caller: str = "") -> Lease:
        """Sign a node another lease, and tell everybody: the operator's explicit command.

        See :meth:`edgelink.relay.lease_changes.LeaseChanges.change`.
        """
        lease = self._authority.change_lease(node, change, caller=caller)
        await self.refresh()
        return lease

    async def allow_access(self, rules: Sequence[AccessRule], *, caller: str = "") -> tuple[list[AccessRule], bool]:
        """Open ports and tell the nodes; see :meth:`edgelink.relay.access.AccessRules.allow`.

        Return the rules that are new, and whether the broker has the nodes' documents. If not, it gets them later.
        """
        new = self._authority.access.allow(rules, caller=caller)
        return new, await self._tell_access()

    async def deny_access(self, rules: Sequence[AccessRule], *, caller: str = "") -> bool:
        """Take rules away and tell the nodes; see :meth:`edgelink.relay.access.AccessRules.deny`."""
        self._authority.access.deny(rules, caller=caller)
        return await self._tell_access()

    async def _tell_access(self) -> bool:
        self._on_change()  # the relay itself is meant as well
        return await self.refresh()

    async def revoke(
        self, node: str, *, hold_s: float, own_node_id: str, all_tokens: bool, caller: str = ""
    ) -> tuple[Revoked, bool]:
        """Put a node out for ever and begin to change the secret that it knows; see :meth:`Rotations.revoke`.

        Whether it is off the broker, too; if not, it will be as soon as the broker answers.
        """
        revoked = self._authority.rotations.revoke(
            node, hold_s=hold_s, own_node_id=own_node_id, all_tokens=all_tokens, caller=caller
        )
        self._on_change()  # the relay itself drops the node's address
        with suppress(EdgelinkError):  # an honest node hears it from us before it is put off the broker
            await self.rotation.tell_state()
        is_off_broker = await self.refresh()
        self.rotation.look()
        self._on_change()
        return revoked, is_off_broker

    async def refresh(self) -> bool:
        """Tell the broker what the store says now; False: it does not answer, the next session begins with that."""
        try:
            async with timeout(_GRANT_TIMEOUT_S):
                await self._bring_in_step()
        except (EdgelinkError, TimeoutError) as error:
            log.warning("registry.refresh_later", error=str(error) or "the broker does not answer")
            self._changed.set()
            return False
        return True

    async def _serve_for_ever(self) -> NoReturn:
        backoff = Backoff(first_s=0.05, cap_s=1.0)  # the broker is on this machine
        last_failure = ""
        while True:
            try:
                await apart(self._serve())
            except* EdgelinkError as errors:
                failure = first_error(errors)
                if self.ready.is_set():
                    backoff.reset()
                    last_failure = ""
                if failure.condition_reason != last_failure:
                    last_failure = failure.condition_reason
                    log.warning("registry.session_lost", reason=last_failure, error=str(failure))
                self.last_error = failure
            finally:
                self._session = self._serving_since_s = None
                self.ready.clear()
                self._on_change()
            if isinstance(self.last_error, _OutOfStepError):
                await self._restart_broker()
            await self._clock.sleep(backoff.next_s())

    async def _restart_broker(self) -> None:
        try:
            await self._broker.restart()
        except EdgelinkError as error:  # the broker's own loop tries again
            self.last_error = error

    async def _serve(self) -> None:
        async with self._transport.connect(self._broker.address, self._broker.login) as session:
            users = BrokerUsers(session, self._topics)
            self.publications.begin_session()
            self._board.begin_session()
            self._status_gate.begin_session()
            self.claims.begin_session()
            self.desk.begin_session()
            try:
                await session.subscribe(
                    RESPONSE_TOPIC,
                    self._topics.enrol_request(ANY, ANY),
                    self._topics.status(ANY),
                    self._topics.report_request,
                    self._topics.easytier(ANY),
                    *self.desk.subscriptions,
                )
            except RegistryAuthError as error:
                raise _OutOfStepError("the broker that runs is another version's, with other rights") from error
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._receive(session, users), name="registry-receive")
                self._session = (session, users)
                await self._bring_in_step()
                self.last_error = None
                self._serving_since_s = self._clock.monotonic_s()
                self.ready.set()
                log.info("registry.serving", broker=self._broker.address)
                self._on_change()
                tasks.create_task(self._serve_enrolments(session, users), name="registry-enrol")
                tasks.create_task(self.publications.run(session), name="registry-publish")
                tasks.create_task(self._outbox.send_for_ever(session), name="registry-send")
                tasks.create_task(self._keep_in_step(), name="registry-users")
                silence = self._board.forget_silent(self._clock, self._on_change)
                tasks.create_task(silence, name="registry-silence")
                tasks.create_task(self._status_gate.run(self._take_late_status), name="registry-statuses")
                tasks.create_task(self.rotation.run(session), name="registry-rotation")
                tasks.create_task(self.desk.run(session), name="registry-desk")

    async def _receive(self, session: Session, users: BrokerUsers) -> None:
        async for message in session.messages():
            try:
                self._take(message, users)
            except EdgelinkError:
                raise
            except Exception:  # retained, it would end every daemon that comes after this one, too
                log.exception("registry.message_not_taken", topic=message.topic)

    def _take(self, message: Message, users: BrokerUsers) -> None:
        if message.topic == RESPONSE_TOPIC:
            users.receive(message.payload)
        elif (node_id := self._topics.parse_status(message.topic)) is not None:
            if self._status_gate.passes(node_id, message):
                self._take_status(node_id, message)
            else:
                self.refusals.note("RateLimited", node_id, what="status")
        elif message.topic == self._topics.report_request:
            self._take_report_request(message)
        elif (node_id := self._topics.parse_easytier(message.topic)) is not None:
            self._easytier_deaths.put(node_id, message.payload)
        else:
            _ = self.desk.receive(message) or self._enrolments.receive(message)

    def _take_late_status(self, node_id: str, message: Message) -> None:
        try:
            self._take_status(node_id, message)
        except EdgelinkError:
            raise
        except Exception:  # as one that came in time
            log.exception("registry.message_not_taken", topic=message.topic)

    def _take_status(self, node_id: str, message: Message) -> None:
        before = self.statuses.get(node_id)
        status = self._board.receive(node_id, message.payload)
        if _of_secret(before) != _of_secret(self.statuses.get(node_id)):
            self.rotation.statuses_changed()
        lease = self._store.lease(node_id)
        if status is None and message.payload:
            self.refusals.note("StatusUnusable", node_id)
        elif status is not None and lease is not None:
            self.claims.hear(lease, status, is_retained=message.retain)
            self._authority.changes.keep_resting([status])
            self._note_departure(status)
        self._on_change()

    def _note_departure(self, status: NodeStatus) -> None:
        """A node that says that it leaves has left until it is online again. A Last Will says neither."""
        if status.has_left or (status.online and status.node_id in self._left):
            with suppress(RegistryError):  # where it cannot be written now: the broker keeps the node's word
                if self._store.set_left(status.node_id, has_left=status.has_left):
                    log.info("registry.left" if status.has_left else "registry.back", node_id=status.node_id)
                    self._changed.set()
                self._left = self._store.departures.all()

    def _ask_status(self, lease: Lease) -> None:
        self._outbox.put(self._topics.node_reply(lease.node_id), self.desk.unasked(lease.node_id, Speak()))

    def _judge(self, lease: Lease, request: NodeRequest) -> Answered:
        assert isinstance(request.ask, Claim)
        return Answered(self.claims.decide(lease, request.ask))

    def _echo_up(self, _lease: Lease, request: NodeRequest) -> Answered:
        assert isinstance(request.ask, EchoUp)
        status = self.statuses.get(request.ask.of)
        says = status.conditions if status is not None and status.online else ()
        is_up = any(said.type == ECHO_ANSWERED.name and said.status is Status.TRUE for said in says)
        return Answered(EchoWord(is_up=is_up))

    def _renew(self, lease: Lease, request: NodeRequest) -> Answered:
        """The broker learns of the new password once the node knows that it counts: the node is put off by that."""
        assert isinstance(request.ask, Renew)
        password = self._renewals.renew(request, request.ask)
        if password is None:
            return Answered(Done())
        log.info("registry.password_renewed", node_id=lease.node_id, hostname=lease.hostname)
        self._passwords[lease.node_id] = password
        return Answered(Done(), wakes=self._changed)

    def _take_report_request(self, message: Message) -> None:
        try:
            self._reports.take_request(message.payload)
        except (UntrustedError, ValidationError) as error:
            self.refusals.note(refusal_reason(error), message.topic, error=str(error))

    async def _serve_enrolments(self, session: Session, users: BrokerUsers) -> NoReturn:
        while True:
            await self._enrolments.wakeup.wait(None)
            while (asked := self._enrolments.take()) is not None:
                await self._enrol(session, users, asked)
                self._on_change()

    async def _enrol(self, session: Session, users: BrokerUsers, asked: list[tuple[Envelope, str]]) -> None:
        """Decide (the store commits), let the nodes into the broker, and only then tell them so."""
        results = self._authority.enrol_all([(envelope, token_id) for envelope, token_id in asked])
        replies: list[tuple[str, bytes]] = []
        passwords: dict[str, str] = {}
        admitted: list[BrokerUser] = []
        for (envelope, token_id), result in zip(asked, results, strict=True):
            node_id = envelope.signer
            user = None if result.broker_password is None else self._store.broker_user(node_id)
            if user is None or result.broker_password is None:
                self.refusals.note(result.reply.error_reason or "Refused", token_id, error=result.reply.error)
            else:
                log.info("registry.enrolled", node_id=node_id, token_id=token_id)
                admitted.append(user)
                passwords[user.username] = result.broker_password
            topic = self._topics.enrol_reply(token_id, node_id)
            replies.append((topic, result.reply.model_dump_json().encode()))
        if admitted:
            self._passwords |= passwords  # should the session end here, the next one needs them
            async with self._in_step:
                if not await users.put(admitted, passwords):
                    raise _OutOfStepError("the broker does not know all users of the registry")
            for name in passwords:
                self._passwords.pop(name, None)
            tokens = [self._store.tokens.get(token_id) for token_id in {token_id for _, token_id in asked}]
            if any(token is not None and token.replaces for token in tokens):
                await self._bring_in_step()  # whose place was taken is put off the broker before the other is let in
            else:
                await self.publications.publish_soon(session)
                self.rotation.members_changed()
        await asyncio.gather(*(session.publish(topic, payload) for topic, payload in replies))
        if admitted:
            reached("enrol.replied")

    async def _keep_in_step(self) -> NoReturn:
        while True:
            await self._changed.wait(_LOOK_S)
            self._authority.changes.keep_resting(self.statuses.values())
            await self._bring_in_step()

    async def _bring_in_step(self) -> None:
        """Broker's users, then directory and leases, as the store says; only what changed is sent."""
        async with self._in_step:
            if self._session is None:
                raise RegistryUnavailableError("there is no session with the broker")
            session, users = self._session
            passwords = dict(self._passwords)
            if not await users.sync(self._store.broker_users(), passwords):
                raise _OutOfStepError("the broker does not know all users of the registry")
            self._passwords = {name: pw for name, pw in self._passwords.items() if name not in passwords}
            reached("told.users")
            await self.publications.publish(session, self._board.statuses)
            reached("told.documents")
        self.rotation.members_changed()


def _of_secret(status: NodeStatus | None) -> tuple[object, ...]:
    """What a status says of the network's secret."""
    return () if status is None else (status.secret_epoch, status.hold_s, status.known_network, status.online)
