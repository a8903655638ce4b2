"""Keeps the names of the overlay's addresses in this machine's hosts file, as the registry's directory has them.

Each node is there as NAME.edgelink.internal. It is there as NAME, too, unless the machine or its resolver means
something else by that: they are asked at the start, and each hour.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from edgelink.clock import Clock
from edgelink.errors import NotRecordedError
from edgelink.facts.board import Board
from edgelink.log import get_logger
from edgelink.process import hosts_file
from edgelink.protocol.payloads import Directory
from edgelink.reconcile import Wakeup

_REST_S = 2.0  # between two writes
_LOOK_AT_FILE_S = 60.0  # somebody else may have written it anew
_ASK_AGAIN_S = 3600.0  # what the resolver knows
_ASKING_S = 5.0  # where DNS does not answer, one name takes ten
_MOST_SHORT = 64  # nodes; of a larger network the resolver would be asked too much
_log = get_logger("hosts")


@dataclass(frozen=True)
class Inputs:
    """What the names depend on."""

    directory: Directory | None


class OverlayNames:
    """``hosts``: None where there is none to be kept. ``declined``: what we once wrote is taken out again.

    ``is_known_name``: whether this machine means something else by a name than a node's address.
    """

    name: ClassVar[str] = "overlay-names"

    def __init__(
        self,
        hosts: Path | None,
        board: Board[Any],
        clock: Clock,
        *,
        declined: bool,
        is_known_name: Callable[[str, IPv4Address], Awaitable[bool]],
    ) -> None:
        self._hosts = hosts
        self._board = board
        self._changed = Wakeup()
        board.read(Inputs, self.name, self._changed)
        self._clock = clock
        self._declined = declined
        self._is_known_name = is_known_name
        self._short = frozenset() if hosts is None else hosts_file.short_names(hosts)
        self._asked_s: dict[tuple[IPv4Address, str], float] = {}
        self._written: tuple[dict[IPv4Address, str], frozenset[str]] | None = None
        self._refused = ""

    async def run(self) -> NoReturn:
        """Follow the directory; ends by cancellation only."""
        while True:
            self.follow()
            await self._clock.sleep(_REST_S)
            if await self.ask():
                continue
            if not await self._changed.wait(_LOOK_AT_FILE_S):
                self._written = None

    async def ask(self) -> bool:
        """Ask for some seconds which of the nodes' names are free. Return False where none is to be asked about now."""
        names = self._names()
        if self._hosts is None or names is None or len(names) > _MOST_SHORT:
            return False
        since_s = self._clock.monotonic_s()
        due = [each for each in names.items() if since_s >= self._asked_s.get(each, -_ASK_AGAIN_S) + _ASK_AGAIN_S]
        for address, name in due:
            is_known = await self._is_known_name(name, address)
            self._short = self._short - {name} if is_known else self._short | {name}
            self._asked_s[address, name] = now_s = self._clock.monotonic_s()
            if now_s >= since_s + _ASKING_S:  # what has changed meanwhile is to be written
                break
        return bool(due)

    def _names(self) -> dict[IPv4Address, str] | None:
        """None: they are not known yet, and what was written by the daemon before holds until they are."""
        directory = self._board.select(Inputs).directory
        if self._declined:
            return {}
        return None if directory is None else {entry.overlay_ip: entry.hostname for entry in directory.entries}

    def follow(self) -> None:
        """Write what has changed; what cannot be written is said once."""
        names = self._names()
        if self._hosts is None or names is None:
            return
        short = self._short.intersection(names.values()) if len(names) <= _MOST_SHORT else frozenset()
        if (names, short) == self._written:
            return
        try:
            if hosts_file.set_names(self._hosts, names, short):
                _log.info("hosts.written", file=str(self._hosts), names=len(names))
            self._refused = ""
        except NotRecordedError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.warning("hosts.not_written", error=str(error), hint="`host.hosts: leave` declines it")
        self._written = names, short
