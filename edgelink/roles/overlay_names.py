"""Keeps the names of the overlay's addresses in this machine's hosts file, as the registry's directory has them."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from edgelink.clock import Clock
from edgelink.errors import NotRecordedError
from edgelink.facts.board import Board
from edgelink.log import get_logger
from edgelink.process import hosts_file
from edgelink.reconcile import Wakeup
from edgelink.registry.payloads import Directory

_REST_S = 2.0  # between two writes
_LOOK_AT_FILE_S = 60.0  # somebody else may have written it anew
_log = get_logger("hosts")


@dataclass(frozen=True)
class Inputs:
    """What the names depend on."""

    directory: Directory | None


class OverlayNames:
    """``hosts``: None where there is none to be kept. ``declined``: what we once wrote is taken out again."""

    name: ClassVar[str] = "overlay-names"

    def __init__(self, hosts: Path | None, board: Board[Any], clock: Clock, *, declined: bool) -> None:
        self._hosts = hosts
        self._board = board
        self._changed = Wakeup()
        board.read(Inputs, self.name, self._changed)
        self._clock = clock
        self._declined = declined
        self._written: dict[IPv4Address, str] | None = None
        self._refused = ""

    async def run(self) -> NoReturn:
        """Follow the directory; ends by cancellation only."""
        while True:
            self.follow()
            await self._clock.sleep(_REST_S)
            if not await self._changed.wait(_LOOK_AT_FILE_S):
                self._written = None

    def follow(self) -> None:
        """Write what has changed; what cannot be written is said once."""
        directory = self._board.select(Inputs).directory
        if self._hosts is None or (directory is None and not self._declined):
            return  # what was written by the daemon before holds until we know better
        entries = () if directory is None or self._declined else directory.entries
        names = {entry.overlay_ip: entry.hostname for entry in entries}
        if names == self._written:
            return
        try:
            if hosts_file.set_names(self._hosts, names):
                _log.info("hosts.written", file=str(self._hosts), names=len(names))
            self._refused = ""
        except NotRecordedError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                _log.warning("hosts.not_written", error=str(error), hint="`host.hosts: leave` declines it")
        self._written = names
