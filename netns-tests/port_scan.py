"""A full TCP connect scan, and what UDP sockets there are and which of them answer, run inside a lab node."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple

from edgelink.lab import Lab

# All ports of one address: as many connections at once as an address has ports in a block. A port that was dropped
# never answers: a block ends when nothing has come for a while; of a few ports, which may be asked over the overlay,
# for so long that a packet which was lost is sent again, after a second, and answered.
_TCP = """
import errno, resource, select, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
BLOCK = 16384 if most == resource.RLIM_INFINITY else max(512, min(16384, most - 256))
address, source, *some = sys.argv[1], sys.argv[2] or None, *map(int, sys.argv[3:])
wanted = some or range(1, 65536)
QUIET_S = 2.5 if some else 1.2
family, *_, target = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
found = []
for start in range(0, len(wanted), BLOCK):
    poll, waiting = select.poll(), {}  # not epoll: one system call for all instead of two for each
    for port in wanted[start : start + BLOCK]:
        probe = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        if source:
            probe.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            probe.bind((source, 0))
        status = probe.connect_ex((target[0], port, *target[2:]))
        if status == 0:
            found.append(port)
        elif status == errno.EINPROGRESS:
            waiting[probe.fileno()] = (probe, port)
            poll.register(probe, select.POLLOUT)
            continue
        probe.close()
    while waiting and (events := poll.poll(QUIET_S * 1000)):
        for number, _ in events:
            poll.unregister(number)
            probe, port = waiting.pop(number)
            if probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in (0, errno.ECONNRESET):
                found.append(port)
            probe.close()
    for probe, _ in waiting.values():
        probe.close()
print(*sorted(found))
"""

_UDP = """
import secrets, socket, struct, sys, time
address, *ports = sys.argv[1:]
stun = struct.pack("!HHI12s", 1, 0, 0x2112A442, secrets.token_bytes(12))
probes = (stun, b"", b"\\0", secrets.token_bytes(32), b"hello\\n", secrets.token_bytes(1200))
found = set()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.settimeout(0.2)
    for _ in range(2):
        for port in map(int, ports):
            for probe in probes:
                end.sendto(probe, (address, port))
        quiet_at = time.monotonic() + 1
        while time.monotonic() < quiet_at:
            try:
                _, (who, port) = end.recvfrom(2048)
            except TimeoutError:
                continue
            except OSError:
                continue
            if who == address:
                found.add(port)
print(*sorted(found))
"""


class UdpSocket(NamedTuple):
    address: str
    port: int
    remote_port: int


def open_tcp_ports(lab: Lab, seen_from: str, address: str, *, source: str = "", some: Iterable[int] = ()) -> set[int]:
    """The TCP ports of ``address`` that accept a connection from a lab node; of all, or of ``some``.

    ``source``: the address that the connections come from, where the node has several.
    """
    argv = ["python", "-c", _TCP, address, source, *map(str, some)]
    result = lab.exec(seen_from, argv, capture=True, check=True, timeout_s=120)
    return {int(port) for port in result.stdout.split()}


def answering_udp_ports(lab: Lab, seen_from: str, address: str, ports: Iterable[int]) -> set[int]:
    """Which of ``ports`` answer anything to STUN, to nothing, and to noise."""
    argv = ["python", "-c", _UDP, address, *map(str, sorted(ports))]
    return {int(port) for port in lab.exec(seen_from, argv, capture=True, check=True, timeout_s=60).stdout.split()}


def udp_sockets(lab: Lab, node: str) -> list[UdpSocket]:
    """All UDP sockets of a node by the kernel's table, those on loopback aside."""
    found = []
    for table in ("udp", "udp6"):
        for row in lab.exec(node, ["cat", f"/proc/net/{table}"], capture=True, check=True).stdout.splitlines()[1:]:
            local, remote = row.split()[1:3]
            address, _, port = local.partition(":")
            if address not in ("0100007F", "00000000000000000000000001000000"):
                found.append(UdpSocket(address, int(port, 16), int(remote.partition(":")[2], 16)))
    return found


def written(address: str) -> str:
    """An IPv4 address as people write it, of the kernel's table: of eight hexadecimal digits, the last byte first."""
    return ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) if len(address) == 8 else address


def addresses(lab: Lab, node: str, device: str) -> list[str]:
    """The addresses of a device of a node."""
    shown = lab.exec(node, ["ip", "-json", "address", "show", "dev", device], capture=True, check=True).stdout
    return [entry["local"] for entry in json.loads(shown)[0]["addr_info"]]
