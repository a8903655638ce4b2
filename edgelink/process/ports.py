"""Which process holds a port of this machine, and which connections a process holds."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from edgelink.process import procfs

Protocol = Literal["tcp", "udp"]
_ESTABLISHED = "01"
_EVERYWHERE = IPv4Address(0)
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DONE = 4, 20, 3  # linux/netlink.h, linux/sock_diag.h
_DUMP = 0x301  # NLM_F_REQUEST | NLM_F_DUMP
_HEADER_BYTES, _ANSWER_BYTES, _ANSWER_S = 16, 65536, 5.0
_LISTEN = {"tcp": "0A", "udp": "07"}  # states of proc_net(5): LISTEN, and an unconnected UDP socket


class Connection(NamedTuple):
    """An established TCP connection (IPv4)."""

    local: IPv4Address
    local_port: int
    remote: IPv4Address


class Accepted(NamedTuple):
    """A TCP connection that somebody has made to a port of this machine (IPv4). ``name``: the program that has it."""

    port: int
    name: str
    remote: IPv4Address


class ListeningSocket(NamedTuple):
    """A socket that listens on TCP, on more than loopback. The kernel's own sockets share inode 0."""

    inode: int
    port: int
    uid: int


class Listener(NamedTuple):
    """A TCP port that somebody listens on, on more than loopback.

    ``pid`` is None where the process cannot be told: it is the kernel itself, or not ours to see. ``uid`` is the
    socket's own, which the kernel tells of every one.
    """

    port: int
    pid: int | None
    name: str
    uid: int


def port_of(url: str) -> int:
    """The port in a URL that was checked to have one; 0 for none."""
    return urlsplit(url).port or 0


def is_within(port: int, ranges: Iterable[Sequence[int]]) -> bool:
    """Whether it is in one of these ranges, each from its first port to its last."""
    return any(first <= port <= last for first, last in ranges)


def listeners() -> list[Listener]:
    """Who listens on TCP in this network namespace, loopback aside."""
    found = listening()
    held = holders_of({each.inode for each in found})
    return [
        Listener(each.port, pid, procfs.command_of(pid) if pid else "", each.uid)
        for each in found
        for pid in [min(held.get(each.inode, ()), default=None)]
    ]


def listening() -> list[ListeningSocket]:
    """The sockets that listen on TCP in this network namespace, loopback aside.

    Cheap enough for every other second: 0.3 ms for 300 of them. ``/proc/net/tcp`` takes 10 ms, as the kernel goes
    through the places of all connections that there might be, and pyroute2 14 ms.
    """
    try:
        return [each for family in (socket.AF_INET, socket.AF_INET6) for each in _dumped(family)]
    except OSError:  # a kernel without inet_diag
        return _listening_by_proc()


def _dumped(family: int) -> Iterator[ListeningSocket]:
    """As sock_diag(7) tells. Raises OSError."""
    body = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 0, 1 << int(_LISTEN["tcp"], 16))
    header = struct.pack("=IHHII", _HEADER_BYTES + len(body), _SOCK_DIAG_BY_FAMILY, _DUMP, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(_ANSWER_S)
        kernel.send(header + body)
        while True:
            answer = memoryview(kernel.recv(_ANSWER_BYTES))
            while answer:
                length, kind = struct.unpack_from("=IH", answer)
                if kind == _DONE:
                    return
                if kind != _SOCK_DIAG_BY_FAMILY:
                    raise OSError("the kernel tells nothing of listening sockets")
                message = answer[_HEADER_BYTES:length]
                (port,), (uid, inode) = struct.unpack_from("!H", message, 4), struct.unpack_from("=II", message, 64)
                if not ip_address(message[8 : 12 if family == socket.AF_INET else 24].tobytes()).is_loopback:
                    yield ListeningSocket(inode, port, uid)
                answer = answer[(length + 3) & ~3 :]


def _listening_by_proc() -> list[ListeningSocket]:
    rows = _rows("tcp", "tcp6")
    return [ListeningSocket(row.inode, row.port, row.uid) for row in rows if row.listens and not row.local.is_loopback]


def holders_of(inodes: Collection[int]) -> dict[int, set[int]]:
    """All processes that hold each of these sockets, as far as they can be told."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    for pid in procfs.all_pids() if inodes else ():
        for inode in socket_inodes(pid).intersection(inodes):
            found[inode].add(pid)
    return found


def ports_of_root(programs: Collection[str]) -> dict[str, frozenset[int]]:
    """The TCP ports that root's programs of these names listen on, loopback included, by name."""
    inodes: dict[int, str] = {}
    for pid in procfs.all_pids():
        name = procfs.command_of(pid)
        if name in programs and _is_roots(pid):
            inodes |= dict.fromkeys(socket_inodes(pid), name)
    found: defaultdict[str, set[int]] = defaultdict(set)
    for row in _rows("tcp", "tcp6") if inodes else ():
        if row.listens and row.inode in inodes:
            found[inodes[row.inode]].add(row.port)
    return {name: frozenset(ports) for name, ports in found.items()}


def _is_roots(pid: int) -> bool:
    with suppress(OSError):
        return Path("/proc", str(pid)).stat().st_uid == 0
    return False


def accepted(local: IPv4Address) -> list[Accepted]:
    """The established connections that others have made to ``local``."""
    rows = list(_rows("tcp", "tcp6"))
    listening = {row.port for row in rows if row.listens}
    # An IPv6 socket shows its IPv4 connections as ``::ffff:a.b.c.d``.
    found = [
        (row, remote)
        for row in rows
        if row.state == _ESTABLISHED and _ipv4(row.local) == local and row.port in listening
        for remote in [_ipv4(row.remote)]
        if remote is not None
    ]
    held = holders_of({row.inode for row, _ in found})
    return [
        Accepted(row.port, procfs.command_of(next(iter(held[row.inode]))) if row.inode in held else "", remote)
        for row, remote in found
    ]


class _Row(NamedTuple):
    """A line of the kernel's tables of sockets (proc_net(5))."""

    local: IPv4Address | IPv6Address
    port: int
    remote: IPv4Address | IPv6Address
    state: str
    uid: int
    inode: int

    @property
    def listens(self) -> bool:
        return self.state == _LISTEN["tcp"]


def _rows(*tables: str, directory: str = "/proc/net") -> Iterator[_Row]:
    """The sockets of these tables, such as ``tcp`` and ``tcp6``. Nothing where they cannot be seen."""
    for table in tables:
        with suppress(OSError):
            for line in Path(directory, table).read_text().splitlines()[1:]:
                fields = line.split()
                local, _, port = fields[1].partition(":")
                remote = fields[2].partition(":")[0]
                uid, inode = int(fields[7]), int(fields[9])
                yield _Row(_address(local), int(port, 16), _address(remote), fields[3], uid, inode)


def _address(words: str) -> IPv4Address | IPv6Address:
    """``0100007F``: in the machine's byte order, four bytes each."""
    parts = [int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(words), 8)]
    return IPv4Address(parts[0]) if len(parts) == 1 else IPv6Address(b"".join(parts))


def _ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    return address if isinstance(address, IPv4Address) else address.ipv4_mapped


def connections_of(pid: int) -> list[Connection]:
    """The connections that a process holds; empty when it is gone or not ours to see."""
    sockets = socket_inodes(pid)
    return [
        Connection(row.local, row.port, row.remote)
        for row in _rows("tcp", directory=f"/proc/{pid}/net")
        if isinstance(row.local, IPv4Address) and isinstance(row.remote, IPv4Address)
        if row.state == _ESTABLISHED and row.inode in sockets
    ]


def socket_inodes(pid: int) -> set[int]:
    """The inodes of the sockets that a process holds; empty when it is gone or not ours to see."""
    directory, links = f"/proc/{pid}/fd", set()
    with suppress(OSError):
        for entry in os.listdir(directory):  # noqa: PTH208
            with suppress(OSError):
                links.add(os.readlink(f"{directory}/{entry}"))  # noqa: PTH115 (thousands of them)
    return {int(link[8:-1]) for link in links if link.startswith("socket:[")}


def is_port_free(protocol: Protocol, address: str, port: int) -> bool:
    """Whether we could listen there now."""
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, kind) as probe:
        if protocol == "tcp":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # leftovers in TIME_WAIT are no holders
        try:
            probe.bind((address, port))
            if protocol == "tcp":
                probe.listen(1)
        except OSError:
            return False
    return True


def port_holder(protocol: Protocol, port: int, address: IPv4Address | None = None) -> str:
    """The process that listens on ``port``, as ``name (pid N)``; ``another process`` when it cannot be told.

    With an ``address`` only who listens there or everywhere counts.
    """
    pid = holders([(protocol, port)], address).get((protocol, port))
    return "another process" if pid is None else f"{procfs.command_of(pid)} (pid {pid})"


def holders(
    wanted: Iterable[tuple[Protocol, int]], address: IPv4Address | None = None
) -> dict[tuple[Protocol, int], int | None]:
    """Those of the ports that somebody listens on, with a process that does; None when it cannot be told."""
    keys = set(wanted)
    by_inode = {
        row.inode: (protocol, row.port)
        for protocol in {protocol for protocol, _ in keys}
        for row in _rows(protocol, f"{protocol}6")
        if row.state == _LISTEN[protocol] and (protocol, row.port) in keys
        if address is None or isinstance(row.local, IPv6Address) or row.local in (address, _EVERYWHERE)
    }
    held = holders_of(by_inode.keys())
    found: dict[tuple[Protocol, int], int | None] = dict.fromkeys(by_inode.values())
    return found | {by_inode[inode]: max(pids) for inode, pids in held.items()}
