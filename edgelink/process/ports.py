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
                if not _is_loopback(message[8 : 12 if family == socket.AF_INET else 24].tobytes()):
                    yield ListeningSocket(inode, port, uid)
                answer = answer[(length + 3) & ~3 :]


def _listening_by_proc() -> list[ListeningSocket]:
    found = []
    for table, loopback in (("tcp", _is_loopback_v4), ("tcp6", _is_loopback_v6)):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                address, _, port = fields[1].rpartition(":")
                if fields[3] == _LISTEN["tcp"] and not loopback(address):
                    found.append(ListeningSocket(int(fields[9]), int(port, 16), int(fields[7])))
    return found


def holders_of(inodes: Collection[int]) -> dict[int, set[int]]:
    """All processes that hold each of these sockets, as far as they can be told."""
    found: defaultdict[int, set[int]] = defaultdict(set)
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    for pid in procfs.all_pids() if wanted else ():
        for link in wanted.keys() & _open_files(pid):
            found[wanted[link]].add(pid)
    return found


def ports_of_root(programs: Collection[str]) -> dict[str, frozenset[int]]:
    """The TCP ports that root's programs of these names listen on, loopback included, by name."""
    inodes: dict[int, str] = {}
    for pid in procfs.all_pids():
        name = procfs.command_of(pid)
        if name in programs and _is_roots(pid):
            inodes |= dict.fromkeys(socket_inodes(pid), name)
    found: defaultdict[str, set[int]] = defaultdict(set)
    for _, port, _, state, inode in _tcp_rows() if inodes else ():
        if state == _LISTEN["tcp"] and inode in inodes:
            found[inodes[inode]].add(port)
    return {name: frozenset(ports) for name, ports in found.items()}


def _is_roots(pid: int) -> bool:
    with suppress(OSError):
        return Path("/proc", str(pid)).stat().st_uid == 0
    return False


def accepted(local: IPv4Address) -> list[Accepted]:
    """The established connections that others have made to ``local``."""
    rows = list(_tcp_rows())
    listening = {port for _, port, _, state, _ in rows if state == _LISTEN["tcp"]}
    found = [
        (port, remote, f"socket:[{inode}]")
        for address, port, remote, state, inode in rows
        if state == _ESTABLISHED and address == local and port in listening and remote is not None
    ]
    holders = _holders(link for _, _, link in found)
    return [
        Accepted(port, procfs.command_of(holders[link]) if link in holders else "", remote)
        for port, remote, link in found
    ]


def _tcp_rows() -> Iterator[tuple[IPv4Address | None, int, IPv4Address | None, str, int]]:
    """Local address and port, remote address, state, and inode of each TCP socket. None: an IPv6 address."""
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                local, _, port = fields[1].partition(":")
                remote = fields[2].partition(":")[0]
                yield _ipv4(local), int(port, 16), _ipv4(remote), fields[3], int(fields[9])


def _ipv4(words: str) -> IPv4Address | None:
    """An address of the kernel's table. An IPv6 socket shows its IPv4 connections as ``::ffff:a.b.c.d``."""
    if len(words) == 8:
        return IPv4Address(int(words, 16).to_bytes(4, sys.byteorder))
    parts = [int(words[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, 32, 8)]
    return IPv6Address(b"".join(parts)).ipv4_mapped


def _holders(links: Iterable[str]) -> dict[str, int]:
    """A process that holds each of these open files, as far as it can be told."""
    wanted = set(links)
    holders: dict[str, int] = {}
    for pid in procfs.all_pids() if wanted else ():
        for link in wanted & _open_files(pid):
            holders.setdefault(link, pid)
    return holders


def _is_loopback_v4(address: str) -> bool:
    return IPv4Address(int(address, 16).to_bytes(4, sys.byteorder)).is_loopback


def _is_loopback_v6(address: str) -> bool:
    words = [int(address[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, 32, 8)]
    return _is_loopback(b"".join(words))


def _is_loopback(address: bytes) -> bool:
    return ip_address(address).is_loopback


def connections_of(pid: int) -> list[Connection]:
    """The connections that a process holds; empty when it is gone or not ours to see."""
    sockets = socket_inodes(pid)
    found = []
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _ESTABLISHED and int(fields[9]) in sockets:
                (local, port), (remote, _) = (_endpoint(field) for field in fields[1:3])
                found.append(Connection(local, port, remote))
    return found


def socket_inodes(pid: int) -> set[int]:
    """The inodes of the sockets that a process holds; empty when it is gone or not ours to see."""
    return {int(link[8:-1]) for link in _open_files(pid) if link.startswith("socket:[")}


def _endpoint(field: str) -> tuple[IPv4Address, int]:
    """``0100007F:1F90``: the address in the machine's byte order, the port in plain hexadecimal."""
    address, _, port = field.partition(":")
    return IPv4Address(int(address, 16).to_bytes(4, sys.byteorder)), int(port, 16)


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
    by_link = {f"socket:[{inode}]": key for key in set(wanted) for inode in _listening_inodes(*key, address)}
    found: dict[tuple[Protocol, int], int | None] = dict.fromkeys(by_link.values())
    for pid in procfs.all_pids() if by_link else ():
        for link in by_link.keys() & _open_files(pid):
            found[by_link[link]] = pid
    return found


def _listening_inodes(protocol: Protocol, port: int, address: IPv4Address | None) -> set[str]:
    inodes = set()
    for table in (protocol, f"{protocol}6"):
        with suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] != _LISTEN[protocol] or int(fields[1].rpartition(":")[2], 16) != port:
                    continue
                is_v4 = table == protocol
                if address is None or not is_v4 or _endpoint(fields[1])[0] in (address, _EVERYWHERE):
                    inodes.add(fields[9])
    return inodes


def _open_files(pid: int) -> set[str]:
    directory = f"/proc/{pid}/fd"
    links = set()
    with suppress(OSError):
        for entry in os.listdir(directory):  # noqa: PTH208
            with suppress(OSError):
                links.add(os.readlink(f"{directory}/{entry}"))  # noqa: PTH115 (thousands of them)
    return links
