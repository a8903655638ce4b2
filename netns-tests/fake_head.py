"""Stand in for the head at its overlay address: ``fake_head.py ADDRESS PORT…``. Print what is said to it.

A JSON line for each connection: when it began, when it ended, and whether it brought Ray's token. The standard library
only. It speaks as much HTTP/2 as has gRPC send its first request.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

_FREEBIND = 15  # linux/in.h
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


if __name__ == "__main__":
    for word in sys.argv[2:]:
        threading.Thread(target=serve, args=(sys.argv[1], int(word)), daemon=True).start()
    threading.Event().wait()
