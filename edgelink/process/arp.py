"""Whether a device on this LAN answers ARP now: what the kernel remembers of it may be older than its last breath."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Address

from edgelink.clock import Clock

_ETHERTYPE = 0x0806
_ETHERNET, _IPV4 = 1, 0x0800
_REQUEST, _REPLY = 1, 2
_PACKET = struct.Struct("!HHBBH6s4s6s4s")
_EVERYBODY = b"\xff" * 6


def answers(address: IPv4Address, device: str, within_s: float, clock: Clock) -> bool:
    """Ask once who has ``address``. Raises PermissionError without CAP_NET_RAW, OSError where there is no way."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM) as asker:
        asker.bind((device, _ETHERTYPE))
        asker.sendto(_request(asker.getsockname()[4], address), (device, _ETHERTYPE, 0, 0, _EVERYBODY))
        deadline_s = clock.monotonic_s() + within_s
        while (left_s := deadline_s - clock.monotonic_s()) > 0:
            asker.settimeout(left_s)
            try:
                packet = asker.recv(_PACKET.size)
            except TimeoutError:
                break
            if is_reply_of(address, packet):
                return True
    return False


def is_reply_of(address: IPv4Address, packet: bytes) -> bool:
    """Pure."""
    if len(packet) < _PACKET.size:
        return False
    _, _, _, _, kind, _, sender, _, _ = _PACKET.unpack_from(packet)
    return kind == _REPLY and bytes(sender) == address.packed


def _request(own_mac: bytes, address: IPv4Address) -> bytes:
    return _PACKET.pack(
        *(_ETHERNET, _IPV4, 6, 4, _REQUEST), own_mac, _own_address(address).packed, bytes(6), address.packed
    )


def _own_address(towards: IPv4Address) -> IPv4Address:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((str(towards), 9))  # sends nothing
        return IPv4Address(probe.getsockname()[0])
