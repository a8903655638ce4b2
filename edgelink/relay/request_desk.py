"""Where the registry answers what its nodes ask; see :mod:`edgelink.member.node_channel`.

Who asks is known by the signature, under the key of the node's lease. A request counts once: it has to carry a cookie
that this desk gave to this node a moment ago, and the replies of that time are remembered and given again. So neither
the node's clock nor the registry's disk is needed to tell an old request that a broker plays again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.cookies import Cookies
from edgelink.errors import EdgelinkError, UntrustedError
from edgelink.protocol.keys import Kind, open_envelope
from edgelink.protocol.payloads import Envelope, Lease
from edgelink.protocol.refusals import OUTDATED, Refusals, refusal_reason
from edgelink.protocol.request_limit import RequestLimit
from edgelink.protocol.requests import COOKIE_S, Again, Answer, NodeReply, NodeRequest, Refused
from edgelink.protocol.topics import ANY, Topics
from edgelink.protocol.transport import Message, Session
from edgelink.reconcile import Wakeup
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.store import RegistryStore

_MAX_WAITING = 1024


@dataclass(frozen=True)
class Answered:
    """``wakes`` is set once the reply is out: what it wakes may put the node off the broker."""

    answer: Answer
    wakes: Wakeup | None = None


Handler = Callable[[Lease, NodeRequest], Answered]
_Id = tuple[str, str]  # node id and nonce


class RequestDesk:
    """``handlers`` by the kind of what is asked; each decides, and has it on disk, before it returns.

    An EdgelinkError of a handler is a refusal, of which the node is told.
    """

    def __init__(
        self,
        store: RegistryStore,
        keys: AuthorityKeys,
        topics: Topics,
        refusals: Refusals,
        clock: Clock,
        handlers: Mapping[str, Handler],
    ) -> None:
        self._store = store
        self._keys = keys
        self._topics = topics
        self._refusals = refusals
        self._clock = clock
        self._handlers = dict(handlers)
        self._cookies = Cookies(COOKIE_S, clock)
        self._rate_limit = RequestLimit(clock)
        self._waiting: dict[_Id, NodeRequest] = {}
        self._replied: dict[_Id, tuple[float, bytes]] = {}  # when, and what
        self._wakeup = Wakeup()

    @property
    def subscriptions(self) -> tuple[str, ...]:
        """What the registry has to hear."""
        return (self._topics.node_request(ANY),)

    def begin_session(self) -> None:
        """What waits from the last one was asked of a session that is over: whoever means it asks again."""
        self._waiting.clear()

    def receive(self, message: Message) -> bool:
        """Take a request; False when the message is none. What is dropped is sent again by whoever means it."""
        node_id = self._topics.parse_node_request(message.topic)
        if node_id is None:
            return False
        if (limit := self._rate_limit.exceeded(None, node_id)) is not None:
            self._refusals.note("RateLimited", node_id, limit=limit, what="request")
        elif len(self._waiting) >= _MAX_WAITING:
            self._refusals.note("TooManyWaiting", node_id, waiting=len(self._waiting))
        else:
            try:
                self._take(node_id, Envelope.model_validate_json(message.payload))
            except (UntrustedError, ValidationError) as error:
                self._refusals.note(refusal_reason(error), node_id, what="request", error=str(error))
        return True

    def _take(self, node_id: str, envelope: Envelope) -> None:
        lease = self._store.lease(node_id)
        if lease is None:
            raise UntrustedError(f"{node_id} holds no lease", reason="NodeUnknown")
        request = open_envelope(envelope, Kind.NODE_REQUEST, NodeRequest, lease.verify_key)
        if (request.node_id, request.network_id) != (node_id, self._keys.network_id):
            raise UntrustedError(f"a request of {request.node_id} of network {request.network_id}")
        self._waiting[node_id, request.nonce] = request
        self._wakeup.set()

    async def run(self, session: Session) -> NoReturn:
        """Answer for the length of a session."""
        while True:
            while self._waiting:
                request = self._waiting.pop(next(iter(self._waiting)))
                lease = self._store.lease(request.node_id)
                if lease is None:
                    continue  # it was taken away while this waited
                payload, wakes = self._reply(lease, request)
                await session.publish(self._topics.node_reply(lease.node_id), payload)
                if wakes is not None:
                    wakes.set()
            await self._wakeup.wait(None)

    def _reply(self, lease: Lease, request: NodeRequest) -> tuple[bytes, Wakeup | None]:
        now_s, request_id = self._clock.monotonic_s(), (lease.node_id, request.nonce)
        self._forget_old(now_s)
        if (kept := self._replied.get(request_id)) is not None:
            return kept[1], None
        answered = self._answered(lease, request)
        payload = self._signed(lease.node_id, request.nonce, answered.answer)
        if not isinstance(answered.answer, Again | Refused):
            self._replied[request_id] = now_s, payload
        return payload, answered.wakes

    def _forget_old(self, now_s: float) -> None:
        """Replies to requests whose cookies count no more; the oldest come first."""
        while self._replied:
            oldest = next(iter(self._replied))
            if now_s < self._replied[oldest][0] + 2 * COOKIE_S:
                break
            del self._replied[oldest]

    def unasked(self, node_id: str, answer: Answer) -> bytes:
        """A reply to no request."""
        return self._signed(node_id, os.urandom(16).hex(), answer)

    def _signed(self, node_id: str, nonce: str, answer: Answer) -> bytes:
        reply = NodeReply(
            network_id=self._keys.network_id,
            node_id=node_id,
            nonce=nonce,
            cookie=self._cookies.of(node_id),
            answer=answer,
        )
        return self._keys.sign(Kind.NODE_REPLY, reply).model_dump_json().encode()

    def _answered(self, lease: Lease, request: NodeRequest) -> Answered:
        if not self._cookies.counts(request.cookie, request.node_id):
            if request.cookie:
                self._refusals.note(OUTDATED, lease.node_id, what="request")
            return Answered(Again())
        try:
            return self._handlers[request.ask.kind](lease, request)
        except EdgelinkError as error:
            self._refusals.note(error.condition_reason, lease.node_id, what=request.ask.kind, error=str(error))
            return Answered(
                Refused(error=error.message, error_reason=error.condition_reason, error_hint=error.hint),
            )
