"""Send one first packet to each port that standard input names: ``knock.py tcp|udp OWN TARGET SOURCE_PORT PER_S``.

As root of a node; addresses are of the overlay. The standard library only.
"""

from __future__ import annotations

import socket
import struct
import sys
import time

from raw_tcp import SYN, segment

_AT_ONCE = 50


def main(protocol: str, own: str, target: str, source_port: int, per_s: float) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.getprotobyname(protocol)) as end:
        end.bind((own, 0))
        for number, port in enumerate(map(int, sys.stdin.read().split()), 1):
            if protocol == "tcp":
                packet = segment((own, target), (source_port, port), number, 0, SYN)
            else:
                packet = struct.pack("!HHHH", source_port, port, 9, 0) + b"?"
            end.sendto(packet, (target, 0))
            if number % _AT_ONCE == 0:
                time.sleep(_AT_ONCE / per_s)


main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
