"""That an EasyTier has ended is told to all who may hold a connection to it, who then give it up (ADR 0017).

By TCP the kernel tells them. By UDP, as on the direct paths through NAT and with a relay that is reached so, nobody
does, and they would go on sending to the dead one for seconds. Each node tells of its own EasyTier only, signed with
its key; what is told is true for ever, because EasyTier draws its peer id anew at each start. It goes over the broker,
which is reached without the overlay.

Acting on one costs processes, and a node may state as many as it likes: so few of each count, and few are seen to at
once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.errors import EdgelinkError, NotRecordedError, UntrustedError
from edgelink.facts.board import Board
from edgelink.files import write_atomic
from edgelink.log import get_logger
from edgelink.overlay.config_file import OverlaySpec
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Directory, DirectoryEntry, EasyTierDeath
from edgelink.protocol.refusals import Refusals, refusal_reason
from edgelink.protocol.request_limit import RequestLimit
from edgelink.protocol.topics import Topics
from edgelink.protocol.words import word_of
from edgelink.reconcile import Wakeup

_MAX_WAITING = 100
_MAX_REMEMBERED = 1000
_AT_ONCE = 16  # each is one process of easytier-cli at a time, for seconds where connections have to be closed

log = get_logger("overlay")

Send = Callable[[str, bytes], None]
ClosePaths = Callable[[str, IPv4Address], Awaitable[list[str]]]


@dataclass(frozen=True)
class Inputs:
    """What tells that our EasyTier has ended, and who may say so of another."""

    directory: Directory | None
    easytier_ends: int
    easytier_peer_id: str
    overlay_spec: OverlaySpec | None

    @property
    def may_use_udp(self) -> bool:
        """Whether there may be connections that nobody else closes."""
        return self.overlay_spec is None or self.overlay_spec.may_use_udp


class EasyTierDeaths:
    """One node's part in it.

    Args:
        send: publish on a topic, once.
        close: close the connections to a peer id of the node with that overlay address; tells the other ends.
        inbox: what other nodes say of theirs.
        refusals: counts what is not believed.
        record: where the peer id of our own EasyTier is kept, for a daemon that finds it gone.
    """

    def __init__(
        self,
        *,
        key: NodeKey,
        network_id: str,
        send: Send,
        close: ClosePaths,
        record: Path,
        clock: Clock,
        inbox: Inbox,
        refusals: Refusals,
        board: Board[Any],
    ) -> None:
        self._board = board
        self._ends = 0  # that were told
        self._changed = Wakeup()
        board.read(Inputs, "easytier deaths", self._changed)
        self._refusals = refusals
        self._inbox = inbox
        self._key = key
        self._network_id = network_id
        self._topics = Topics(network_id)
        self._send = send
        self._close = close
        self._record = record
        self._own = self._recorded()
        self._gone = ""  # the id of the one that ended last, which is on the board until another one says its own
        self._taken: deque[tuple[str, str]] = deque(maxlen=_MAX_REMEMBERED)
        self._rate_limit = RequestLimit(clock)
        self._waiting: asyncio.Queue[tuple[DirectoryEntry, str]] = asyncio.Queue(_MAX_WAITING)

    def look(self) -> None:
        """See whether our EasyTier has ended, or says that it has another id: then the one before has ended."""
        now = self._board.select(Inputs)
        if now.easytier_ends != self._ends:
            self._ends = now.easytier_ends
            self._tell_of_end()
        own = now.easytier_peer_id
        if not own or own in (self._own, self._gone):
            return
        self._tell_of_end()
        self._own = own
        try:
            write_atomic(self._record, own)
        except NotRecordedError as error:
            log.warning("overlay.peer_id_not_kept", path=str(self._record), error=str(error))

    def _tell_of_end(self) -> None:
        """Tell everybody who may have a path to our EasyTier that it has ended."""
        peer_id, self._own = self._own, ""
        if not peer_id:
            return
        self._gone = peer_id
        with suppress(OSError):
            self._record.unlink(missing_ok=True)
        if not self._board.select(Inputs).may_use_udp:
            return
        envelope = self._key.sign(Kind.EASYTIER_DEATH, EasyTierDeath(network_id=self._network_id, peer_id=peer_id))
        self._send(self._topics.easytier(self._key.node_id), envelope.model_dump_json().encode())

    def take(self, node_id: str, payload: bytes) -> None:
        """What is said on a node's topic. Raises UntrustedError, pydantic's ValidationError."""
        now = self._board.select(Inputs)
        directory = now.directory
        entry = directory.entry(node_id) if directory else None
        if directory is None or entry is None or node_id == self._key.node_id or not now.may_use_udp:
            return
        death = word_of(entry, payload, Kind.EASYTIER_DEATH, EasyTierDeath, directory)
        if (node_id, death.peer_id) in self._taken or self._waiting.full():
            return
        if self._rate_limit.exceeded(None, node_id) is not None:
            raise UntrustedError(f"EasyTier does not end as often as {entry.hostname} says", reason="RateLimited")
        self._taken.append((node_id, death.peer_id))
        self._waiting.put_nowait((entry, death.peer_id))

    async def run(self) -> None:
        """Act on what was told; ends by cancellation only."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_for_ever())
            tasks.create_task(self._take_for_ever())
            for _ in range(_AT_ONCE):
                tasks.create_task(self._bury_for_ever())

    async def _look_for_ever(self) -> NoReturn:
        while True:
            self.look()
            await self._changed.wait(None)

    async def _take_for_ever(self) -> NoReturn:
        while True:
            for node_id, payload in self._inbox.take_all():
                try:
                    self.take(node_id, payload)
                except (UntrustedError, ValidationError) as error:
                    self._refusals.note(refusal_reason(error), self._topics.easytier(node_id), error=str(error))
            await self._inbox.wakeup.wait(None)

    async def _bury_for_ever(self) -> NoReturn:
        while True:
            await self._bury(*await self._waiting.get())

    async def _bury(self, entry: DirectoryEntry, peer_id: str) -> None:
        try:
            closed = await self._close(peer_id, entry.overlay_ip)
        except EdgelinkError as error:  # EasyTier finds out by itself, later
            log.warning("overlay.dead_path_stays", node=entry.hostname, error=str(error))
            return
        event = "overlay.dead_path_closed" if closed else "overlay.dead_path_gone"  # EasyTier was quicker
        log.info(event, node=entry.hostname, other_ends=closed)

    def _recorded(self) -> str:
        try:
            text = self._record.read_text().strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return text if text.isascii() and text.isdigit() and len(text) <= 20 else ""
