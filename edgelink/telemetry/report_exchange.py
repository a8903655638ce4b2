"""`edgelink report --all`: the head asks, every node answers with its excerpt, sealed to the head (ADR 0019).

The request is signed by the head's key; a node answers to no other, to each request once, to none that is old, and not
more often than every half minute, so that a broker that plays requests again gains nothing. The answer is signed by the
node and can be read by the head only, which takes one of each node and trusts nothing that is in it.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import secrets
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from edgelink.api.server import Caller
from edgelink.clock import Clock
from edgelink.errors import DeadlineError, UntrustedError
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.log import get_logger
from edgelink.protocol.keys import Kind, NodeKey, open_envelope, seal
from edgelink.protocol.payloads import Envelope, ReportReply, ReportRequest
from edgelink.protocol.topics import Topics
from edgelink.protocol.words import word_of
from edgelink.rate import RateLimit
from edgelink.timeouts import timeout

_MAX_GZIP_BYTES = 150 * 1024  # base64 and its envelope stay below the broker's limit
_MAX_TEXT_BYTES = 8 * 1024 * 1024
_MAX_FILES = 200
_MAX_NAME = 200
_GZIP = 31  # zlib's word for "with gzip's header"
PAUSE_S = 30.0  # between two answers of a node
_PATIENCE_S = 20.0
_MAX_AGE = timedelta(minutes=10)  # the clocks of head and node may differ by as much
_MAX_REMEMBERED = 1000  # requests; at one in half a minute far more than fit into that time
_FIRST_YEAR = 2024  # a clock that shows less was never set: many boards start in 1970

Collect = Callable[[float], Callable[[], dict[str, str]]]

log = get_logger("report")


@dataclass
class _Gathering:
    """The answers to one request, at most one of each node."""

    awaited: set[str]  # ids of the nodes that have not answered yet
    replies: asyncio.Queue[tuple[str, str]] = field(default_factory=asyncio.Queue)


class ReportExchange:
    """One node's part in it.

    Args:
        send: publish on a topic, once.
    """

    def __init__(
        self,
        *,
        key: NodeKey,
        network_id: str,
        board: Board[Facts],
        send: Callable[[str, bytes], None],
        clock: Clock,
    ) -> None:
        self._key = key
        self._network_id = network_id
        self._topics = Topics(network_id)
        self._board = board
        self._send = send
        self._clock = clock
        self._answering = RateLimit(1 / PAUSE_S, 1)
        self._requests: asyncio.Queue[tuple[ReportRequest, str]] = asyncio.Queue()
        self._answered: deque[str] = deque(maxlen=_MAX_REMEMBERED)
        self._gatherings: dict[str, _Gathering] = {}  # by the request whose answers are awaited here
        self._asking = RateLimit(1 / PAUSE_S, 1)

    def take_request(self, payload: bytes) -> None:
        """Answer, if it is the head that asks. Raises UntrustedError, ValidationError."""
        directory = self._board.facts.directory
        head = directory.head if directory else None
        if directory is None or head is None or head.node_id == self._key.node_id:
            return
        request = word_of(head, payload, Kind.REPORT_REQUEST, ReportRequest, directory)
        if request.node_ids and self._key.node_id not in request.node_ids:
            return
        self._refuse_old(request)
        if request.request_id in self._answered:
            return
        if not self._answering.passes("head", self._clock.monotonic_s()):
            return
        self._answered.append(request.request_id)
        self._requests.put_nowait((request, head.verify_key))

    def _refuse_old(self, request: ReportRequest) -> None:
        now = self._clock.now()
        if now.year >= _FIRST_YEAR and abs(now - request.made_at) > _MAX_AGE:
            raise UntrustedError(
                f"a request for reports made at {request.made_at:%F %T} UTC, and here it is {now:%F %T} UTC",
                hint="it is an old one, sent again, or the clock of the head or of this node is wrong",
            )

    async def run(self, collect: Collect) -> None:
        """Answer what was asked, until the task is cancelled.

        Args:
            collect: makes what collects this node's bundle of the last so many seconds, in a thread.
        """
        while True:
            request, head_key = await self._requests.get()
            try:
                await self._answer(request, head_key, collect)
            except Exception:  # no report is worth a daemon
                log.exception("report.not_made")

    async def _answer(self, request: ReportRequest, head_key: str, collect: Collect) -> None:
        log.info("report.asked_for", by="the head", since_s=request.since_s)
        make = collect(request.since_s)
        sealed = await asyncio.to_thread(lambda: seal(head_key, pack(make())))
        reply = ReportReply(request_id=request.request_id, node_id=self._key.node_id, sealed=sealed)
        envelope = self._key.sign(Kind.REPORT, reply)
        self._send(self._topics.report(self._key.node_id), envelope.model_dump_json().encode())

    def take_reply(self, node_id: str, payload: bytes) -> None:
        """What a node says on its topic, for the head. Raises UntrustedError, ValidationError."""
        directory = self._board.facts.directory
        entry = directory.entry(node_id) if directory else None
        if entry is None or not any(node_id in gathering.awaited for gathering in self._gatherings.values()):
            return
        envelope = Envelope.model_validate_json(payload)
        reply = open_envelope(envelope, Kind.REPORT, ReportReply, entry.verify_key)
        if reply.node_id != node_id or envelope.signer != node_id:
            raise UntrustedError(f"a report on {node_id}'s topic that is not its own")
        gathering = self._gatherings.get(reply.request_id)
        if gathering is not None and node_id in gathering.awaited:
            gathering.awaited.discard(node_id)
            gathering.replies.put_nowait((entry.hostname, reply.sealed))

    async def gather(self, caller: Caller, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Serve ``POST /reports`` with body ``{"since_s": …, "hostname": …}``: each node's files as they come, then who
        is missing. With a hostname this node alone is asked.

        Raises:
            UsageError: the caller may not ask.
            DeadlineError: a node was asked a moment ago, and would not answer.
        """
        caller.require()
        directory, only = self._board.facts.directory, body.get("hostname")
        others = [e for e in directory.entries if e.node_id != self._key.node_id] if directory else []
        others = [entry for entry in others if only in (None, entry.hostname)]
        missing = {entry.hostname for entry in others}
        gathering = _Gathering({entry.node_id for entry in others})
        request = ReportRequest(
            network_id=self._network_id,
            request_id=secrets.token_hex(16),
            since_s=float(body.get("since_s", 3600.0)),
            made_at=self._clock.now(),
            node_ids=() if only is None else tuple(gathering.awaited),
        )
        self._refuse_soon([entry.node_id for entry in others])  # of several, who does not answer yet is missing
        envelope = self._key.sign(Kind.REPORT_REQUEST, request)
        self._gatherings[request.request_id] = gathering
        self._send(self._topics.report_request, envelope.model_dump_json().encode())
        deadline_s = self._clock.monotonic_s() + _PATIENCE_S
        try:
            while missing:
                # Not around the yield: it is whoever takes the files that would be interrupted there.
                async with timeout(deadline_s - self._clock.monotonic_s()):
                    hostname, sealed = await gathering.replies.get()
                try:
                    files = await asyncio.to_thread(self._open, sealed)
                except UntrustedError as error:
                    log.warning("report.refused", hostname=hostname, error=str(error))
                    continue
                missing.discard(hostname)
                yield {"hostname": hostname, "files": files}
        except TimeoutError:
            pass
        finally:
            del self._gatherings[request.request_id]
        yield {"missing": sorted(missing)}

    def _refuse_soon(self, node_ids: Sequence[str]) -> None:
        now_s = self._clock.monotonic_s()
        left_s = min((self._asking.wait_s(node_id, now_s) for node_id in node_ids), default=0.0)
        if left_s > 0:
            raise DeadlineError(
                f"they were asked for reports {PAUSE_S - left_s:.0f} s ago, and a node answers once in {PAUSE_S:.0f} s",
                hint=f"ask again in {left_s:.0f} s",
                reason="AskedJustNow",
            )
        for node_id in node_ids:
            self._asking.passes(node_id, now_s)  # who does not answer now was asked before

    def _open(self, sealed: str) -> dict[str, str]:
        return unpack(self._key.unseal(sealed))


def pack(files: Mapping[str, str], max_bytes: int = _MAX_GZIP_BYTES) -> bytes:
    """``files`` compressed to at most ``max_bytes``: of texts that are too long their ends are kept."""
    longest = max((len(text) for text in files.values()), default=0)
    while True:
        cut = {name: text if len(text) <= longest else "…" + text[-longest:] for name, text in files.items()}
        text = json.dumps(cut).encode()
        packed = gzip.compress(text, mtime=0)
        if (len(packed) <= max_bytes and len(text) <= _MAX_TEXT_BYTES) or longest == 0:
            return packed
        longest = longest * 2 // 3


def unpack(packed: bytes) -> dict[str, str]:
    """What :func:`pack` made. Raises UntrustedError for anything else, and for names that lead elsewhere."""
    try:
        files = json.loads(zlib.decompressobj(_GZIP).decompress(packed, _MAX_TEXT_BYTES))
    except (zlib.error, ValueError, RecursionError, MemoryError) as error:
        raise UntrustedError(f"a report cannot be read: {type(error).__name__}") from error
    if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
        raise UntrustedError("a report is not an object of texts")
    if len(files) > _MAX_FILES or any(len(name) > _MAX_NAME or not name.isprintable() for name in files):
        raise UntrustedError(f"a report has more than {_MAX_FILES} files, or names that are none")
    if any(name.startswith("/") or ".." in name.split("/") for name in files):
        raise UntrustedError("a report names files outside of itself")
    return files
