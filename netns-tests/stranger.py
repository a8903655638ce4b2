"""Somebody without the network's secret speaks EasyTier: ``stranger.py join|serve ADDRESS SOURCE TARGET PORT``.

``join`` connects to the EasyTier at ADDRESS, ``serve`` is dialled there as a forged relay is. Either asks for the
network's name where it does not know it, shows a digest of zeros in place of the secret's, and sends TARGET a datagram
for PORT, not encrypted, as if from SOURCE. Prints as JSON the network's name, and the kinds of all that came in clear
until the other side went.
"""

from __future__ import annotations

import json
import socket
import struct
import sys

from edgelink.overlay import hello

_HEADER = struct.Struct("<IIIBBBBI")
_DATA, _HANDSHAKE, _ENCRYPTED = 1, 2, 1
_NO_DIGEST = bytes(32)
_PEER_ID = 123_456_789
WORDS = b"from a stranger"


def frame(receiver: int, kind: int, content: bytes) -> bytes:
    return _HEADER.pack(16 + len(content), _PEER_ID, receiver, kind, 0, 1, 0, len(content)) + content


def take(connection: socket.socket) -> tuple[int, int, int, bytes]:
    """The next frame's sender, kind, flags and content."""
    header = connection.recv(_HEADER.size, socket.MSG_WAITALL)
    if len(header) < _HEADER.size:
        raise EOFError
    size, sender, _, kind, flags, *_ = _HEADER.unpack(header)
    return sender, kind, flags, connection.recv(size - 16, socket.MSG_WAITALL)


def network_of(handshake: bytes) -> str:
    """The name in a handshake: the field before the last one, which is the digest."""
    before = handshake[: -len(_NO_DIGEST) - 2]
    size = next(size for size in range(1, 65) if before[-size - 2 : -size] == bytes([0x2A, size]))
    return before[-size:].decode()


def handshake(network: str) -> bytes:
    """As EasyTier makes it, but for a digest that nobody needs a secret for."""
    name = network.encode()
    fields = b"\x08\xe1\xcb\x86\x8f\x0d" + b"\x10\x95\x9a\xef\x3a" + b"\x18\x01"
    return fields + bytes([0x2A, len(name)]) + name + bytes([0x32, len(_NO_DIGEST)]) + _NO_DIGEST


def datagram(source: str, target: str, port: int) -> bytes:
    content = struct.pack("!HHHH", 5555, port, 8 + len(WORDS), 0) + WORDS
    parts = (0x45, 0, 20 + len(content), 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(target))
    header = struct.pack("!BBHHHBBH4s4s", *parts)
    total = sum(struct.unpack("!10H", header))
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return header[:10] + struct.pack("!H", checksum) + header[12:] + content


def join(address: str) -> tuple[socket.socket, int, str]:
    with socket.create_connection((address, 11010), 10) as connection:
        connection.sendall(hello.question())
        network = network_of(take(connection)[3])
    connection = socket.create_connection((address, 11010), 10)
    connection.sendall(frame(0, _HANDSHAKE, handshake(network)))
    return connection, take(connection)[0], network


def serve(address: str) -> tuple[socket.socket, int, str]:
    with socket.create_server((address, 11010)) as server:
        server.settimeout(60)
        connection, _ = server.accept()
    sender, _, _, said = take(connection)
    network = network_of(said)
    connection.sendall(frame(sender, _HANDSHAKE, handshake(network)))
    return connection, sender, network


def main(how: str, address: str, source: str, target: str, port: int) -> None:
    connection, victim, network = (join if how == "join" else serve)(address)
    connection.settimeout(30)
    in_clear: set[int] = set()
    try:
        while True:  # one ping a second comes, and after ten without an answer the other side goes
            connection.sendall(frame(victim, _DATA, datagram(source, target, port)))
            _, kind, flags, _ = take(connection)
            if not flags & _ENCRYPTED:
                in_clear.add(kind)
    except (EOFError, OSError):
        print(json.dumps({"network": network, "in clear": sorted(in_clear)}))


main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
