"""TCP segments as root of a node can make them. The standard library only."""

from __future__ import annotations

import socket
import struct

FIN, SYN, RST, ACK = 1, 2, 4, 16
_HEADER = struct.Struct("!HHIIBBHHH")


def segment(ends: tuple[str, str], ports: tuple[int, int], sequence: int, acknowledged: int, flags: int) -> bytes:
    """One without data; ``ends`` and ``ports`` are its source's and its target's."""
    fields = (*ports, sequence, acknowledged, _HEADER.size << 2, flags, 65535)
    pseudo = b"".join(map(socket.inet_aton, ends)) + struct.pack("!HH", socket.IPPROTO_TCP, _HEADER.size)
    total = sum(struct.unpack("!16H", pseudo + _HEADER.pack(*fields, 0, 0)))
    return _HEADER.pack(*fields, ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF, 0)
