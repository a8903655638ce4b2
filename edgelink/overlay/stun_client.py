"""Ask STUN servers how they see this machine: whether they answer, and what its NAT does."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Address

from edgelink.clock import Clock
from edgelink.overlay.stun_message import mapped_address, request

_TRIES = 2


def ask(servers: Sequence[str], clock: Clock, *, timeout_s: float = 1.0) -> dict[str, tuple[IPv4Address, int] | None]:
    """Ask all servers (host:port) from one port of ours; None for one that does not answer. Blocks."""
    seen: dict[str, tuple[IPv4Address, int] | None] = dict.fromkeys(servers)
    pending = {os.urandom(12): server for server in servers}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end, selectors.DefaultSelector() as selector:
        selector.register(end, selectors.EVENT_READ)
        for _ in range(_TRIES):
            for transaction_id, server in pending.items():
                if seen[server] is None:
                    _send(end, transaction_id, server)
            deadline_s = clock.monotonic_s() + timeout_s
            while None in seen.values() and (left_s := deadline_s - clock.monotonic_s()) > 0:
                if not selector.select(left_s):
                    break
                data = end.recv(2048)
                for transaction_id, server in pending.items():
                    seen[server] = seen[server] or mapped_address(data, transaction_id)
    return seen


def _send(end: socket.socket, transaction_id: bytes, server: str) -> None:
    host, _, port = server.rpartition(":")
    with suppress(OSError):  # no name, no route: no answer
        end.sendto(request(transaction_id), (host, int(port)))
