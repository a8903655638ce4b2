"""Every packet that a node sends through its router, and a DNS server that answers every name."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from typing import NamedTuple

from pyroute2 import netns

from edgelink.lab import Lab
from edgelink.lab.namespaces import netns_path

RELAY, RELAY_NAME = "203.0.113.10", "vpn.example.com"
EVERYTHING_ELSE = "203.0.113.99"  # what every other name leads to, in the lab's Internet
STUN_PORTS = {3478, 18000}
_ETH_P_ALL, _ETH_P_ARP, _PACKET_OUTGOING = 0x0003, 0x0806, 4
_SOL_PACKET, _PACKET_STATISTICS, _SO_RCVBUFFORCE = 263, 6, 33
_BUFFER_BYTES = 64 << 20  # a training's packets come in bursts


class Packet(NamedTuple):
    protocol: str
    target: str
    port: int


class Watch:
    """A router's device: every IP packet that comes in by it, and a DNS server at the router's address on it."""

    def __init__(self, lab: Lab, router: str, device: str, address: str) -> None:
        self._packets: dict[Packet, None] = {}
        self.names: list[str] = []
        self._link = _inside(lab, router, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0))
        self._link.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._link.bind((device, _ETH_P_ALL))
        self._dns = _inside(lab, router, lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self._dns.bind((address, 53))
        for end in (self._link, self._dns):
            end.setblocking(False)
        self._looking = threading.Lock()
        self._stop_reader, self._stop_writer = os.pipe()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        self._resolver = address

    def be_resolver_of(self, lab: Lab, node: str) -> None:
        (lab.node_directory(node) / "resolv.conf").write_text(f"nameserver {self._resolver}\n")

    @property
    def packets(self) -> list[Packet]:
        """Each kind once, in the order in which they were first seen, until now: more may come at any moment."""
        return list(self._packets)

    def forget(self) -> None:
        """All that has come until now, also what has not been looked at yet."""
        with self._looking:
            while ready := select.select([self._link, self._dns], [], [], 0)[0]:
                self._look(ready)
            self._packets.clear()
            self.names.clear()

    def dropped(self) -> int:
        """Packets that came faster than they were looked at, since this was last asked."""
        _, dropped = struct.unpack("=II", self._link.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))
        return int(dropped)

    def stun(self) -> list[Packet]:
        return [packet for packet in self.packets if packet.port in STUN_PORTS]

    def close(self) -> None:
        os.close(self._stop_writer)
        self._thread.join()
        for end in (self._link, self._dns):
            end.close()
        os.close(self._stop_reader)

    def _serve(self) -> None:
        while True:
            ready, _, _ = select.select([self._link, self._dns, self._stop_reader], [], [])
            if self._stop_reader in ready:
                return
            with self._looking, contextlib.suppress(BlockingIOError):  # whoever forgets has looked at it
                self._look(ready)

    def _look(self, ready: Sequence[object]) -> None:
        if self._link in ready:
            data, (_, kind, direction, *_) = self._link.recvfrom(2048)
            if direction != _PACKET_OUTGOING and kind != _ETH_P_ARP:
                self._packets.setdefault(_parsed(data, kind))
        if self._dns in ready:
            query, asker = self._dns.recvfrom(2048)
            name, answer = _answered(query)
            self.names.append(name)
            self._dns.sendto(answer, asker)


def _inside(lab: Lab, node: str, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket of the node's network; the thread that enters it is thrown away."""

    def run() -> socket.socket:
        netns.setns(str(netns_path(lab.name, node)))
        return make()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


def _parsed(data: bytes, kind: int) -> Packet:
    if kind != 0x0800:
        return Packet(f"ethertype {kind:#06x}", "", 0)
    header = (data[0] & 15) * 4
    protocol = {1: "icmp", 6: "tcp", 17: "udp"}.get(data[9], str(data[9]))
    port = struct.unpack_from("!H", data, header + 2)[0] if protocol in ("tcp", "udp") else 0
    return Packet(protocol, str(IPv4Address(data[16:20])), port)


def _answered(query: bytes) -> tuple[str, bytes]:
    """The name in a query, and the answer: an address for A, nothing for all else."""
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    name, question = ".".join(labels), query[12 : at + 5]
    (kind,) = struct.unpack_from("!H", query, at + 1)
    record = b""
    if kind == 1:
        address = RELAY if name == RELAY_NAME else EVERYTHING_ELSE
        record = struct.pack("!HHHIH", 0xC00C, 1, 1, 5, 4) + IPv4Address(address).packed
    return name, query[:2] + struct.pack("!HHHHH", 0x8180, 1, int(bool(record)), 0, 0) + question + record
