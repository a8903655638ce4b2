"""Enrolment requests that wait for the registry: each node's newest, no more than it can take."""

from __future__ import annotations

from itertools import islice

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.protocol.payloads import Envelope
from edgelink.protocol.refusals import Refusals
from edgelink.protocol.request_limit import RequestLimit
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.reconcile import Wakeup

_MAX_WAITING = 1024
_BATCH = 32  # enrolments that go to disk together


class EnrolQueue:
    """What is dropped here is sent again by whoever means it."""

    def __init__(self, topics: Topics, refusals: Refusals, clock: Clock) -> None:
        self.wakeup = Wakeup()
        self._topics = topics
        self._refusals = refusals
        self._rate_limit = RequestLimit(clock)
        self._requests: dict[str, bytes] = {}  # by topic, so that each node waits once

    def receive(self, message: Message) -> bool:
        """Take a request; False when the message is none."""
        ids = self._topics.parse_enrol_request(message.topic)
        if ids is None:
            return False
        token_id, node_id = ids
        if self._requests.get(message.topic) == message.payload:
            return True  # waits already
        if (limit := self._rate_limit.exceeded(token_id, node_id)) is not None:
            self._refusals.note("RateLimited", token_id, limit=limit)
        elif len(self._requests) >= _MAX_WAITING:
            self._refusals.note("TooManyWaiting", token_id, waiting=len(self._requests))
        else:
            self._requests[message.topic] = message.payload
            self.wakeup.set()
        return True

    def take(self) -> list[tuple[Envelope, str]] | None:
        """The next ones, with the token that each was sent under; None when nobody waits."""
        if not self._requests:
            return None
        batch = [(topic, self._requests.pop(topic)) for topic in list(islice(self._requests, _BATCH))]
        return [parsed for topic, payload in batch if (parsed := self._parsed(topic, payload)) is not None]

    def _parsed(self, topic: str, payload: bytes) -> tuple[Envelope, str] | None:
        token_id, node_id = self._topics.parse_enrol_request(topic) or ("", "")
        try:
            envelope = Envelope.model_validate_json(payload)
        except ValidationError:
            self._refusals.note("Malformed", token_id, what="enrolment request")
            return None
        if envelope.signer != node_id:
            self._refusals.note("OnAnothersTopic", token_id, what="enrolment request", node_id=node_id)
            return None
        return envelope, token_id
