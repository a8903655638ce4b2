"""A full TCP connect scan, what UDP sockets there are and which of them answer, and what gets through a firewall, run
inside a lab node."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from edgelink.lab import Lab
from edgelink.process.port_ranges import merged

_KNOCK = Path(__file__).with_name("knock.py")
_KNOCKS_FROM = 53  # a port that many a firewall lets pass
_KNOCKS_PER_S = 10_000
_MOST_ROUNDS = 10  # what a full queue has dropped is sent again

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

# Before any rule of a firewall, and after all of them.
_DOORS = """table ip doors_{protocol}
delete table ip doors_{protocol}
table ip doors_{protocol} {{
  set arrived {{ type inet_service; size 65536; flags dynamic; }}
  set let_in {{ type inet_service; size 65536; flags dynamic; }}
  chain before {{
    type filter hook prerouting priority -400
    {knock} add @arrived {{ {protocol} dport }}
  }}
  chain after {{
    type filter hook input priority 400
    {knock} add @let_in {{ {protocol} dport }}
  }}
}}
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


def ports_let_in(
    lab: Lab,
    source: tuple[str, str],
    target: tuple[str, str],
    protocol: str,
    *,
    some: Collection[int] = range(65536),
) -> set[int]:
    """The ports at which a first packet gets as far as to where sockets are, when each has arrived.

    ``source`` and ``target`` are a lab node and its overlay address each.
    """
    table = f"doors_{protocol}"
    knock = f'iifname "et0" ip saddr {source[1]} {protocol} sport {_KNOCKS_FROM}'
    knocking = ["python", str(_KNOCK), protocol, source[1], target[1], str(_KNOCKS_FROM), str(_KNOCKS_PER_S)]
    lab.exec(target[0], ["nft", "-f", "-"], stdin=_DOORS.format(knock=knock, protocol=protocol), check=True)

    def ports(name: str) -> set[int]:
        argv = ["nft", "-j", "list", "set", "ip", table, name]
        shown = json.loads(lab.exec(target[0], argv, capture=True, check=True).stdout)
        return set(shown["nftables"][1]["set"].get("elem", []))

    try:
        for _ in range(_MOST_ROUNDS):
            if not (missing := set(some) - ports("arrived")):
                return ports("let_in")
            ports_wanted = " ".join(map(str, sorted(missing)))
            lab.exec(source[0], knocking, stdin=ports_wanted, capture=True, check=True, timeout_s=120)
        raise AssertionError(f"no packet has arrived for {len(missing)} ports, such as {sorted(missing)[:5]}")
    finally:
        lab.exec(target[0], ["nft", "delete", "table", "ip", table], check=True)


def documented_inside(machine: str, protocol: str) -> tuple[tuple[int, int], ...]:
    """The ranges of ports that docs/reference/ports.md names for members, for a kind of machine."""
    page = Path(__file__).parent.parent / "docs/reference/ports.md"
    rows = re.findall(r"^\| ([^|]+) \| members \| (tcp|udp) ([\d, -]+) \|", page.read_text(), re.MULTILINE)
    ranges = [
        each.strip().partition("-")
        for who, kind, ports in rows
        if machine in who.split(", ") and kind == protocol
        for each in ports.split(",")
    ]
    return merged((int(first), int(last or first)) for first, _, last in ranges)


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
