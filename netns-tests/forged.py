"""A packet from an address that its sender does not have, as root of a node can send one: ``send_forged``."""

from __future__ import annotations

import sys

from edgelink.lab import Lab

_SEND = """
import socket, struct, sys
source, target = sys.argv[1:]
with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as end:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"et0")
    udp = struct.pack("!HHHH", 4444, 9999, 9, 0) + b"x"
    inside = (socket.inet_aton(source), socket.inet_aton(target))
    end.sendto(struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0, *inside) + udp, (target, 0))
"""


def send_forged(lab: Lab, node: str, source: str, target: str) -> None:
    """Have ``node`` send one UDP packet from ``source`` over the overlay."""
    lab.exec(node, [sys.executable, "-c", _SEND, source, target], capture=True, check=True)
