"""Wakes those who keep an nftables table of ours when somebody changes it, by the kernel's own announcements."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Iterator

from edgelink.log import get_logger
from edgelink.reconcile import Wakeup

# From linux/netlink.h, nfnetlink.h and nf_tables.h.
_NETLINK_NETFILTER = 12
_NFNLGRP_NFTABLES = 7
_NFNL_SUBSYS_NFTABLES = 10
_NFTA_TABLE = 1  # the table's name, the same number in messages of tables, chains, rules, sets and elements
_LAST_WITH_TABLE = 14  # NFT_MSG_DELSETELEM
_HEADER = struct.Struct("=IHHII")
_FAMILY_BYTES = 4  # struct nfgenmsg
_ATTRIBUTE = struct.Struct("=HH")
_BUFFER_BYTES = 1 << 16
_log = get_logger("firewall")


class NftWatch:
    """Sets wake-ups when a table that somebody named here is changed or taken away, in this network namespace."""

    def __init__(self) -> None:
        self._watchers: dict[str, tuple[Wakeup, ...]] = {}

    def watch(self, table: str, *wakeups: Wakeup) -> None:
        """Set ``wakeups`` after changes to ``table``, our own ones too."""
        self._watchers[table] = wakeups

    async def run(self) -> None:
        """Listen; ends by cancellation only. Where the kernel does not tell, which is logged, nobody is woken."""
        try:
            events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, _NETLINK_NETFILTER)
        except OSError as error:
            _log.warning("firewall.not_watched", error=str(error))
            return
        loop = asyncio.get_running_loop()
        with events:
            try:
                events.bind((0, 1 << (_NFNLGRP_NFTABLES - 1)))
            except OSError as error:
                _log.warning("firewall.not_watched", error=str(error))
                return
            loop.add_reader(events, self._drain, events)
            try:
                await asyncio.Event().wait()
            finally:
                loop.remove_reader(events)

    def _drain(self, events: socket.socket) -> None:
        try:
            data = events.recv(_BUFFER_BYTES)
        except BlockingIOError:
            return
        except OSError:  # ENOBUFS: some were lost
            self.changed(self._watchers)
        else:
            self.changed(tables_in(data))

    def changed(self, tables: Iterable[str]) -> None:
        """Wake those who watch one of ``tables``."""
        for table in tables:
            for wakeup in self._watchers.get(table, ()):
                wakeup.set()


def tables_in(data: bytes) -> Iterator[str]:
    """The tables that netlink messages are about; pure."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, *_ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        body = data[at + _HEADER.size + _FAMILY_BYTES : at + length]
        if kind >> 8 == _NFNL_SUBSYS_NFTABLES and kind & 0xFF <= _LAST_WITH_TABLE and len(body) >= _ATTRIBUTE.size:
            size, attribute = _ATTRIBUTE.unpack_from(body)
            if attribute == _NFTA_TABLE:
                yield body[_ATTRIBUTE.size : size].rstrip(b"\0").decode(errors="replace")
        at += (length + 3) & ~3
