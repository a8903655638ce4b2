"""A node asks the registry: one signed request, one signed reply; see :mod:`edgelink.relay.request_desk`.

Both go through the broker, which can lose or delay them and nothing else: a reply counts for the one request that it
names, and a request carries the registry's cookie, so that it does not count when it is played again later.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from edgelink.clock import Clock
from edgelink.errors import RegistryUnavailableError, UntrustedError
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership, refusal
from edgelink.protocol.payloads import Envelope
from edgelink.protocol.requests import COOKIE_S, Again, Answer, NodeReply, NodeRequest, Question, Refused, Speak
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.timeouts import timeout

ASK_AGAIN_S = 2.0  # a request is lost when the relay's daemon restarts at that moment


_TRIES = 3  # with a cookie that had just counted
_REMEMBERED = 32  # requests that may still be replied to twice


class NodeChannel:
    """One node's channel, for all its sessions."""

    def __init__(
        self,
        membership: Membership,
        key: NodeKey,
        clock: Clock,
        send: Callable[[str, bytes], None],
        speak: Callable[[], None],
    ) -> None:
        """
        Args:
            send: publishes once, in this session or the next.
            speak: says that this node is there, because the registry wants to know.
        """
        self._network_id = membership.network_id
        self._verify_key = membership.registry_verify_key
        self._topics = Topics(membership.network_id)
        self._key = key
        self._clock = clock
        self._send = send
        self._cookie: tuple[str, float] | None = None  # and since when it is known
        self._waiting: dict[str, asyncio.Future[NodeReply]] = {}
        self._bound: set[asyncio.Future[NodeReply]] = set()  # of those, what is not waited for in another session
        self._asked: deque[str] = deque(maxlen=_REMEMBERED)
        self._opened = asyncio.Event()
        self._speak = speak

    @property
    def subscriptions(self) -> tuple[str, ...]:
        return (self._topics.node_reply(self._key.node_id),)

    def opened(self) -> None:
        """A session has begun, in which we hear replies."""
        self._opened.set()

    def closed(self) -> None:
        """The session is over; another registry may answer in the next."""
        self._cookie = None
        self._opened.clear()
        for reply in self._bound:
            if not reply.done():
                reply.set_exception(RegistryUnavailableError("the session ended before the registry had replied"))

    def take(self, message: Message) -> bool:
        """Believe a reply; False when the message is none.

        Raises:
            UntrustedError, ValidationError: it is forged, malformed, or to nothing that was asked.
        """
        if message.topic not in self.subscriptions:
            return False
        envelope = Envelope.model_validate_json(message.payload)
        reply = open_envelope(envelope, Kind.NODE_REPLY, NodeReply, self._verify_key)
        if (reply.node_id, reply.network_id) != (self._key.node_id, self._network_id):
            raise UntrustedError(f"a reply to {reply.node_id} of network {reply.network_id}")
        if isinstance(reply.answer, Speak):
            self._speak()
            return True
        waiting = self._waiting.get(reply.nonce)
        if waiting is None and reply.nonce not in self._asked:
            raise UntrustedError("a reply to a request that this daemon did not make", reason="NotAsked")
        if waiting is not None and not waiting.done():
            self._cookie = reply.cookie, self._clock.monotonic_s()
            waiting.set_result(reply)
        return True

    async def ask(self, ask: Question, *, within_s: float = 10.0, in_one_session: bool = False) -> Answer:
        """The registry's answer, never :class:`Again` or :class:`Refused`.

        Args:
            within_s: how long to wait, for a session with the broker as well.
            in_one_session: give up when the session ends: the next one shows by itself what became of it.

        Raises:
            RegistryUnavailableError: there is no answer in time; what was asked may have been done.
            RegistryError: the registry refuses.
        """
        try:
            async with timeout(within_s):
                for _ in range(_TRIES):
                    answer = (await self._exchange(ask, in_one_session=in_one_session)).answer
                    if isinstance(answer, Refused):
                        raise refusal(answer)
                    if not isinstance(answer, Again):
                        return answer
        except TimeoutError:
            pass
        raise RegistryUnavailableError(
            f"the registry did not answer within {within_s:g} s",
            hint="check `edgelink status` here (RegistryConnected) and on the relay",
        )

    async def _exchange(self, ask: Question, *, in_one_session: bool) -> NodeReply:
        request = NodeRequest(
            network_id=self._network_id,
            node_id=self._key.node_id,
            nonce=secrets.token_hex(16),
            cookie=self._present_cookie(),
            made_at=self._clock.now(),
            ask=ask,
        )
        payload = self._key.sign(Kind.NODE_REQUEST, request).model_dump_json().encode()
        reply: asyncio.Future[NodeReply] = asyncio.get_running_loop().create_future()
        self._waiting[request.nonce] = reply
        self._asked.append(request.nonce)
        if in_one_session:
            self._bound.add(reply)
        try:
            while True:
                await self._opened.wait()
                self._send(self._topics.node_request(self._key.node_id), payload)
                with suppress(TimeoutError):
                    async with timeout(ASK_AGAIN_S):
                        return await asyncio.shield(reply)
        finally:
            del self._waiting[request.nonce]
            self._bound.discard(reply)

    def _present_cookie(self) -> str:
        """None at all rather than an old one, which looks like an old request."""
        if self._cookie is None or self._clock.monotonic_s() >= self._cookie[1] + COOKIE_S:
            return ""
        return self._cookie[0]
