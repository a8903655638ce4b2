"""A node renews its password at the broker, without a token.

::

    the next password is on our disk ──▶ the registry is asked ──▶ it is on its disk ──▶ the broker has it
    ──▶ our client, which tries the next one first, is let in with it ──▶ the former one is forgotten

So at any moment one of the two that are on our disk opens the broker, whoever dies when. What was begun is finished by
whatever daemon runs next; one that was begun is gone on with, never replaced by another.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from edgelink.api.server import Caller
from edgelink.clock import Clock
from edgelink.condition_table.required import REGISTRY_CONNECTED
from edgelink.errors import EdgelinkError, RegistryUnavailableError
from edgelink.facts.board import Board
from edgelink.facts.part import Action, Decision, Part
from edgelink.fault_points import reached
from edgelink.log import get_logger, hide
from edgelink.member.membership_store import MembershipStore
from edgelink.member.registry_client import Session
from edgelink.outage import Outage
from edgelink.protocol.keys import seal
from edgelink.protocol.membership import Membership
from edgelink.protocol.requests import Answer, Question, Renew
from edgelink.timeouts import timeout

WITHIN_S = 30.0
_PASSWORD_BYTES = 24

log = get_logger("node")


@dataclass(frozen=True)
class Inputs:
    """What a renewal depends on. ``own``: how often somebody has asked for a new password; each one is a new try."""

    membership: Membership | None
    session: Session
    own: int


@dataclass(frozen=True)
class AskRegistry(Action):
    """Ask the registry to take this password, sealed to its key."""

    password: str = field(repr=False)
    verify_key: str


@dataclass(frozen=True)
class Forget(Action):
    """Forget the former password: this one has opened the broker."""

    password: str = field(repr=False)


class Channel(Protocol):
    """What of :class:`edgelink.member.node_channel.NodeChannel` is needed here."""

    async def ask(self, ask: Question, *, in_one_session: bool = False) -> Answer:
        """The registry's answer. Raises RegistryError when there is none."""


class Renewal(Part[Inputs, AskRegistry | Forget]):
    """Renews the password of one node's daemon, and finishes what an earlier daemon has begun."""

    name = "renewal"
    condition: ClassVar[str] = REGISTRY_CONNECTED.name
    inputs = Inputs

    def __init__(self, *, board: Board[Any], store: MembershipStore, channel: Channel, clock: Clock) -> None:
        super().__init__(board, own=0)
        self.own: int
        self._board = board
        self._store = store
        self._channel = channel
        self._outage = Outage(clock)
        self._refusal: EdgelinkError | None = None
        self._waits_for: EdgelinkError | None = None  # why the step that is due has to be taken again
        self._asking: set[asyncio.Event] = set()  # of those who wait: a step was taken

    def plan(self, now: Inputs, at_s: float) -> Decision[AskRegistry | Forget]:
        membership = now.membership
        password = None if membership is None else membership.next_broker_password
        if membership is None or password is None or not now.session.is_connected:
            return Decision()
        if now.session.password == password:
            return Decision(does=Forget(password))
        return Decision(does=AskRegistry(password, membership.registry_verify_key))

    async def act(self, action: AskRegistry | Forget) -> None:
        try:
            await self._take_step(action)
            self._waits_for = None
            self._outage.over()
        except EdgelinkError as error:
            self._refusal, self._waits_for = (None, error) if error.retryable else (error, None)
            if self._outage.is_news(error.condition_reason):
                log.warning("node.renewal_waits", reason=error.condition_reason, error=str(error))
        for news in self._asking:
            news.set()

    async def serve(self, caller: Caller, body: dict[str, Any]) -> dict[str, Any]:
        """Answer ``{"timeout_s": …}`` when the new password has opened the broker."""
        caller.require()
        membership = await self.renew(float(body.get("timeout_s", WITHIN_S)))
        return {
            "version": 1,
            "hostname": membership.lease.hostname,
            "node_id": membership.lease.node_id,
            "broker": self._now.session.address or None,
        }

    async def renew(self, within_s: float) -> Membership:
        """Begin, or go on with what was begun, and return when the new password has opened the broker.

        Raises:
            RegistryUnavailableError: not within ``within_s``; it is gone on with.
            RegistryError: the registry refuses. NotRecordedError: no room on the disk; nothing was begun.
        """
        self._begin()
        self._refusal, news = None, asyncio.Event()
        self._asking.add(news)
        self.own += 1
        self.wakeup.set()
        try:
            async with timeout(within_s):
                while (membership := self._now.membership) is not None:
                    if membership.next_broker_password is None:
                        return membership
                    if self._refusal is not None:
                        raise self._refusal
                    await news.wait()
                    news.clear()
        except TimeoutError:
            pass
        finally:
            self._asking.discard(news)
        why = f": {self._waits_for.message}" if self._waits_for is not None else ""
        raise RegistryUnavailableError(
            f"the registry did not renew this node's password within {within_s:g} s{why}",
            hint="the daemon goes on with it by itself; `edgelink status` says whether the relay answers",
        )

    def _begin(self) -> None:
        def with_next(present: Membership) -> Membership:
            if present.next_broker_password is not None:
                return present
            password = secrets.token_urlsafe(_PASSWORD_BYTES)
            hide(password)
            return present.model_copy(update={"next_broker_password": password})

        self._store.change(with_next)
        reached("renew.begun")

    async def _take_step(self, action: AskRegistry | Forget) -> None:
        if isinstance(action, AskRegistry):
            sealed = seal(action.verify_key, action.password.encode())
            await self._channel.ask(Renew(sealed_password=sealed), in_one_session=True)
            return  # the broker ends our session now; the next one shows what counts

        def renewed(present: Membership) -> Membership:
            if present.next_broker_password != action.password:
                return present
            kept = present.secrets.model_copy(update={"broker_password": action.password})
            return present.model_copy(update={"secrets": kept, "next_broker_password": None})

        self._store.change(renewed)
        reached("renew.finished")
        log.info("node.password_renewed")

    @property
    def _now(self) -> Inputs:
        return self._board.select(Inputs, self.own)
