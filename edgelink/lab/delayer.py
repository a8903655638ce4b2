"""Holds each packet that a lab's router forwards as long as its links are long. A script, run by ``python -IS``.

For kernels without netem. The router's nftables rules hand packets to an NFQUEUE; the kernel keeps them and tells
their number and devices, and gets the word to let each go when its time has come. Nothing of a packet is copied here,
and what was segmented in hardware is one packet: the cost is by packet, not by byte.

Argument: the file with the delays, JSON ``{device: [one_way_ms, jitter_ms]}``; read again at SIGHUP. A packet waits
for the link it comes in by and for the one it leaves by, those without an entry cost nothing; its order among the
packets of the same two links is kept, whatever the jitter. Imports nothing of EdgeLink and nothing outside the standard
library.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import time
from pathlib import Path

# From linux/netlink.h, linux/netfilter/nfnetlink.h and linux/netfilter/nfnetlink_queue.h.
NETLINK_NETFILTER = 12
NLM_F_REQUEST, NLM_F_ACK, NLMSG_ERROR = 1, 4, 2
NFNL_SUBSYS_QUEUE = 3
NFQNL_MSG_PACKET, NFQNL_MSG_VERDICT, NFQNL_MSG_CONFIG = 0, 1, 2
NFQA_PACKET_HDR, NFQA_VERDICT_HDR, NFQA_IFINDEX_INDEV, NFQA_IFINDEX_OUTDEV = 1, 2, 5, 6
NFQA_CFG_CMD, NFQA_CFG_PARAMS, NFQA_CFG_QUEUE_MAXLEN, NFQA_CFG_MASK, NFQA_CFG_FLAGS = 1, 2, 3, 4, 5
NFQNL_CFG_CMD_BIND, NFQNL_COPY_META = 1, 1
NFQA_CFG_F_GSO = 1 << 2
NF_ACCEPT = 1
SO_RCVBUFFORCE, SOL_NETLINK, NETLINK_NO_ENOBUFS = 33, 270, 5

QUEUE = 11010
_MAXLEN = 100_000  # packets that are on their way: a second of 100 Mbit/s in small ones
_BUFFER_BYTES = 64 << 20
_now_s = time.monotonic  # noqa: TID251 -- a script of its own has no clock to take
_BATCH = 256  # packets taken before the due ones are looked at again


def message(kind: int, attributes: bytes, flags: int = NLM_F_REQUEST) -> bytes:
    """One netlink message to the queue."""
    body = struct.pack("!BBH", 0, 0, QUEUE) + attributes
    return struct.pack("=IHHII", 16 + len(body), NFNL_SUBSYS_QUEUE << 8 | kind, flags, 0, 0) + body


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def open_queue() -> socket.socket:
    """Raises OSError where the kernel has no NFQUEUE, or another process has this queue."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    netlink.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, _BUFFER_BYTES)
    netlink.bind((0, 0))
    bind = attribute(NFQA_CFG_CMD, struct.pack("!BxH", NFQNL_CFG_CMD_BIND, 0))
    # What is not read in time is held up, not lost: the queue's own length is the limit.
    settings = (
        attribute(NFQA_CFG_PARAMS, struct.pack("!IB", 0, NFQNL_COPY_META))
        + attribute(NFQA_CFG_QUEUE_MAXLEN, struct.pack("!I", _MAXLEN))
        + attribute(NFQA_CFG_FLAGS, struct.pack("!I", NFQA_CFG_F_GSO))
        + attribute(NFQA_CFG_MASK, struct.pack("!I", NFQA_CFG_F_GSO))
    )
    for attributes in (bind, settings):
        netlink.send(message(NFQNL_MSG_CONFIG, attributes, NLM_F_REQUEST | NLM_F_ACK))
        answer = netlink.recv(65536)
        (kind,) = struct.unpack_from("=H", answer, 4)
        (error,) = struct.unpack_from("=i", answer, 16)
        if kind == NLMSG_ERROR and error:
            raise OSError(-error, os.strerror(-error), "NFQUEUE")
    netlink.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
    netlink.setblocking(False)
    return netlink


class Delayer:
    """Packets on their way, and how long each link is."""

    def __init__(self, file: Path, netlink: socket.socket) -> None:
        self._file = file
        self._netlink = netlink
        self._links: dict[str, tuple[float, float]] = {}
        self._by_index: dict[tuple[int, int], tuple[float, float]] = {}  # seconds of both links together, and jitter
        self._last_due_s: dict[tuple[int, int], float] = {}
        self._on_their_way: list[tuple[float, int]] = []  # (due, packet number)
        self.read()

    def read(self) -> None:
        values = json.loads(self._file.read_text())
        self._links = {device: (delay_ms / 1000, jitter_ms / 1000) for device, (delay_ms, jitter_ms) in values.items()}
        self._by_index.clear()  # devices come and go as machines are rebooted, and their numbers with them

    def run(self, changes: int) -> None:
        """Until killed; ``changes`` is readable when the file is to be read again."""
        own, waiting = self._netlink.fileno(), self._on_their_way
        while True:
            left_s = waiting[0][0] - _now_s() if waiting else None
            # select, unlike epoll, waits for less than a millisecond, too.
            ready, _, _ = select.select([own, changes], [], [], None if left_s is None else max(left_s, 0))
            if changes in ready:
                os.read(changes, 4096)
                self.read()
            if own in ready:
                self._take()
            self._let_go()

    def _take(self) -> None:
        for _ in range(_BATCH):
            try:
                data = self._netlink.recv(65536)
            except BlockingIOError:
                return
            now_s, at = _now_s(), 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET:
                    number, devices = parsed(data, at + 20, at + length)
                    heapq.heappush(self._on_their_way, (self._due_s(devices, now_s), number))
                at += (length + 3) & ~3

    def _due_s(self, devices: tuple[int, int], now_s: float) -> float:
        if devices not in self._by_index:
            ends = [self._links.get(_name(index), (0.0, 0.0)) for index in devices]
            self._by_index[devices] = sum(delay for delay, _ in ends), sum(jitter for _, jitter in ends)
        delay_s, jitter_s = self._by_index[devices]
        due_s = now_s + max(delay_s + random.uniform(-jitter_s, jitter_s), 0.0)  # noqa: S311
        due_s = self._last_due_s[devices] = max(due_s, self._last_due_s.get(devices, 0.0))
        return due_s

    def _let_go(self) -> None:
        verdicts, now_s = [], _now_s()
        while self._on_their_way and self._on_their_way[0][0] <= now_s:
            _, number = heapq.heappop(self._on_their_way)
            verdicts.append(_verdict(number))
        for first in range(0, len(verdicts), _BATCH):
            self._netlink.send(b"".join(verdicts[first : first + _BATCH]))


def parsed(data: bytes, at: int, end: int) -> tuple[int, tuple[int, int]]:
    """A packet's number, and the numbers of the devices it came in by and leaves by."""
    number = incoming = outgoing = 0
    while at + 4 <= end:
        length, kind = struct.unpack_from("=HH", data, at)
        if kind == NFQA_PACKET_HDR:
            (number,) = struct.unpack_from("!I", data, at + 4)
        elif kind == NFQA_IFINDEX_INDEV:
            (incoming,) = struct.unpack_from("!I", data, at + 4)
        elif kind == NFQA_IFINDEX_OUTDEV:
            (outgoing,) = struct.unpack_from("!I", data, at + 4)
        at += max((length + 3) & ~3, 4)
    return number, (incoming, outgoing)


def _verdict(number: int) -> bytes:
    return message(NFQNL_MSG_VERDICT, attribute(NFQA_VERDICT_HDR, struct.pack("!II", NF_ACCEPT, number)))


def _name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return ""


def main() -> None:
    changes, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGHUP, lambda *_: None)
    delayer = Delayer(Path(sys.argv[1]), open_queue())
    with contextlib.suppress(OSError):  # before what the machine is busy with: a late packet is a longer link
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    os.write(1, b"ready")
    os.dup2(2, 1)  # whoever waits for the word gets its end, too
    delayer.run(changes)


if __name__ == "__main__":
    main()
