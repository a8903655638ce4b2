"""What nodes say to each other, over the broker, of pairs that may be dead; each word is signed by its node."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.errors import UntrustedError
from edgelink.log import get_logger
from edgelink.outage import Outage
from edgelink.overlay.pair_heal import Word
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Directory, PairSilence
from edgelink.protocol.request_limit import RequestLimit
from edgelink.protocol.topics import Topics
from edgelink.protocol.words import word_of
from edgelink.reconcile import Wakeup

_log = get_logger("overlay")


class PairWords:
    """Says whom this node misses, and hears who misses this node."""

    def __init__(self, key: NodeKey, send: Callable[[str, bytes], None], inbox: Inbox, clock: Clock) -> None:
        """``send`` publishes on a topic; ``inbox`` has what comes on the topics of others."""
        self.node_id = key.node_id
        self._key = key
        self._send = send
        self._inbox = inbox
        self._clock = clock
        self._rate_limit = RequestLimit(clock)
        self._disbelieved = Outage(clock)

    @property
    def come(self) -> Wakeup:
        """Set when a word has come."""
        return self._inbox.wakeup

    def say(self, silence: PairSilence) -> None:
        """Tell a node that this one misses it."""
        envelope = self._key.sign(Kind.PAIR_SILENCE, silence)
        self._send(Topics(silence.network_id).silence(self.node_id), envelope.model_dump_json().encode())

    def heard(self, directory: Directory) -> dict[str, Word]:
        """Return what has come about this node since the last call, by the hostname of who says it."""
        found: dict[str, Word] = {}
        for node_id, payload in self._inbox.take_all():
            try:
                found |= self._taken(node_id, payload, directory)
            except (UntrustedError, ValidationError) as error:
                if self._disbelieved.is_news(node_id):
                    _log.warning("overlay.silence_not_believed", node_id=node_id, error=str(error))
        return found

    def _taken(self, node_id: str, payload: bytes, directory: Directory) -> dict[str, Word]:
        """Return a word that came on a node's topic. Raises UntrustedError, pydantic's ValidationError."""
        entry = directory.entry(node_id)
        if entry is None or node_id == self.node_id:
            return {}
        if self._rate_limit.exceeded(None, node_id) is not None:
            raise UntrustedError(f"{entry.hostname} misses others more often than it says", reason="RateLimited")
        said = word_of(entry, payload, Kind.PAIR_SILENCE, PairSilence, directory)
        if said.peer != self.node_id:
            return {}
        at_s = self._clock.monotonic_s()
        return {entry.hostname: Word(at_s, said.silent_for_s, said.relay_answers_for_s, said.lists_peer)}
