"""Somebody with an ordinary account on a node asks its daemon for everything: ``local_user.py SOCKET UID``.

Standard input: JSON ``[[method, path]…]``. Prints a JSON list of ``[method, path, status, body]``; after that it sends
nonsense. Nothing but the standard library: an ordinary user may not be able to read the rest.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import sys

_NONSENSE = 300
_TEMPTING = {
    "uid": 0,
    "user": "root",
    "pid": 1,
    "caller": {"pid": 1, "uid": 0, "gid": 0},
    "argv": ["touch", "/etc/edgelink/was-here"],
    "command": ["touch", "/etc/edgelink/was-here"],
    "directory": "/root",
    "env": {"LD_PRELOAD": "/dev/shm/mine.so"},
    "node": "edge-1",
    "role": "relay",
    "ttl_s": 3600,
    "uses": 10,
    "for": "ready",
    "timeout_s": 1,
}


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(10)
        self.sock.connect(self._path)


def ask(path: str, method: str, what: str) -> tuple[int, str]:
    """Status, and what comes first: an answer that is never over is not waited for."""
    with contextlib.closing(_Connection(path)) as connection:
        connection.request(method, what, json.dumps(_TEMPTING), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read1(1 << 20).decode()


def talk_nonsense(path: str) -> None:
    rng = random.Random(5)
    good = b"POST /run HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    for number in range(_NONSENSE):
        match number % 6:
            case 0:
                words = rng.randbytes(rng.randrange(1, 2000))
            case 1:
                words = good % 100_000 + b"[" * 100_000
            case 2:
                words = good % (1 << 40) + b"{" * 1000
            case 3:
                words = b"POST /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n"
            case 4:
                words = good % -5 + rng.randbytes(50)
            case _:
                words = b"GET /status HTTP/1.1\r\n" + b"x: y\r\n" * 5000 + b"\r\n"
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
            end.settimeout(0.2)
            end.connect(path)
            end.sendall(words)
            end.recv(100)


def main(path: str, uid: int) -> None:
    routes = json.load(sys.stdin)
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
    print(json.dumps([[method, what, *ask(path, method, what)] for method, what in routes]))
    talk_nonsense(path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
