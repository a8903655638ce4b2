"""Stand in for the head at its overlay address: ``fake_head.py ADDRESS PORT… [--keep=VICTIM]``.

Print a JSON line for each connection: when it began, when it ended, and whether it brought Ray's token; and one for
each packet of VICTIM's older connections with the head, which it acknowledges in the head's stead. The standard library
only. It speaks as much HTTP/2 as has gRPC send its first request.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import threading
import time

from raw_tcp import ACK, FIN, RST, SYN, segment

_FREEBIND = 15  # linux/in.h
_ETH_P_IP = 0x0800
_SETTINGS = bytes.fromhex("000000040000000000")
_SETTINGS_TAKEN = bytes.fromhex("000000040100000000")


def tell(**what: object) -> None:
    sys.stdout.write(json.dumps({"at_s": time.time(), **what}) + "\n")
    sys.stdout.flush()


def hear(connection: socket.socket, source: str, port: int) -> None:
    """Be a server that accepts all, to the connection's end."""
    tell(event="accepted", source=source, port=port)
    try:
        connection.sendall(_SETTINGS + _SETTINGS_TAKEN)
        while data := connection.recv(65536):
            tell(event="heard", source=source, has_token=b"earer" in data)
    except OSError:
        pass
    tell(event="ended", source=source, port=port)


def serve(address: str, port: int) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.IPPROTO_IP, _FREEBIND, 1)
        server.bind((address, port))
        server.listen(100)
        tell(event="listening", port=port)
        while True:
            connection, (source, _) = server.accept()
            threading.Thread(target=hear, args=(connection, source, port), daemon=True).start()


def keep(address: str, victim: str) -> None:
    """Acknowledge all that comes on connections that began before us. This machine must send no resets meanwhile."""
    begun: set[tuple[int, int]] = set()
    expected: dict[tuple[int, int], int] = {}
    ends = socket.inet_aton(victim) + socket.inet_aton(address)
    with (
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_IP)) as heard,
        socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP) as said,
    ):
        said.setsockopt(socket.IPPROTO_IP, _FREEBIND, 1)
        said.bind((address, 0))
        while True:
            packet = heard.recv(65536)
            if packet[9] != socket.IPPROTO_TCP or packet[12:20] != ends:
                continue
            content = packet[(packet[0] & 15) * 4 : int.from_bytes(packet[2:4], "big")]
            source, port, sequence, acknowledged, offset, flags = struct.unpack_from("!HHIIBB", content)
            begun |= {(source, port)} if flags & SYN else set()
            if (source, port) in begun or flags & RST:
                continue
            after = (sequence + len(content) - (offset >> 4) * 4 + (flags & FIN)) % 2**32
            if (after - expected.setdefault((source, port), after)) % 2**32 < 2**31:  # else it is sent again
                expected[source, port] = after
            tell(event="kept", source=victim, source_port=source, port=port, flags=flags)
            answer = segment((address, victim), (port, source), acknowledged, expected[source, port], ACK)
            said.sendto(answer, (victim, 0))


if __name__ == "__main__":
    for word in sys.argv[2:]:
        option, _, victim = word.partition("=")
        target, what = (keep, victim) if option == "--keep" else (serve, int(word))
        threading.Thread(target=target, args=(sys.argv[1], what), daemon=True).start()
    threading.Event().wait()
