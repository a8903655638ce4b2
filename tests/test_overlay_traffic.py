"""What the kernel knows of this machine's connections: who was heard, and which connection hangs."""

from __future__ import annotations

import os
import socket
from ipaddress import IPv4Address, IPv4Network

from edgelink.overlay.traffic import look


def test_who_sent_or_acknowledged_something_is_heard() -> None:
    """By address and not by connection; what lies outside the overlay's network does not count."""
    with socket.create_server(("127.88.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname(), source_address=("127.88.0.2", 0))
        with client, server.accept()[0] as accepted:
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
            found = look(IPv4Network("127.88.0.0/24"), os.getpid())
            assert set(found.heard_s) == {IPv4Address("127.88.0.1"), IPv4Address("127.88.0.2")}
            assert max(found.heard_s.values()) < 30
            assert not found.stuck
            server_ip, before = IPv4Address("127.88.0.1"), look(IPv4Network("127.88.0.0/24"), None)
            assert not found.has_new(server_ip, before)
            with socket.create_connection(server.getsockname(), source_address=("127.88.0.2", 0)):
                assert look(IPv4Network("127.88.0.0/24"), None).has_new(server_ip, before)
            assert not found.uplink_is_stuck
            assert not look(IPv4Network("10.99.0.0/24"), None).heard_s
    assert not look(IPv4Network("127.88.0.0/24"), None).heard_s, "a closed connection says nothing"
