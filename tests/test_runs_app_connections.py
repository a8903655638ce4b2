"""The connections of a node's apps, by the real kernel of this machine, on loopback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address

import pytest

from edgelink.launch.app_connections_asked import ConnectionsQuestion, without_other_end
from edgelink.runs.app_connections import connections

HERE, ELSEWHERE = IPv4Address("127.0.0.1"), IPv4Address("127.0.0.9")


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["IPv4", "IPv6, as gRPC has it"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A server's end and its client's."""
    with ExitStack() as stack:
        if request.param == socket.AF_INET6:
            listener = socket.create_server(("::", 0), family=request.param, dualstack_ipv6=True)
        else:
            listener = socket.create_server((str(HERE), 0))
        stack.enter_context(listener)
        client = stack.enter_context(socket.create_connection((str(HERE), listener.getsockname()[1])))
        server = stack.enter_context(listener.accept()[0])
        yield server, client


def ends(of: socket.socket, other: socket.socket) -> tuple[str, str]:
    return f"{HERE}:{of.getsockname()[1]}", f"{HERE}:{other.getsockname()[1]}"


def test_the_bytes_of_each_connection_are_told_both_ways_together(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    client.sendall(b"12345")
    server.sendall(b"1234567")
    assert (server.recv(9), client.recv(9)) == (b"12345", b"1234567")
    port = server.getsockname()[1]
    found = connections(ConnectionsQuestion((port,), str(HERE)), HERE, os.getuid())
    assert set(found) == {ends(server, client), ends(client, server)}
    assert found[ends(server, client)] >= 12

    for question, own in (
        (ConnectionsQuestion((port,)), ELSEWHERE),
        (ConnectionsQuestion((port,), str(ELSEWHERE)), HERE),
        (ConnectionsQuestion((1,)), HERE),
        (ConnectionsQuestion(()), HERE),
    ):
        assert not connections(question, own, os.getuid())


def test_nobody_ends_the_connection_of_another_user(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    question = ConnectionsQuestion((server.getsockname()[1],), closes=(ends(server, client),))
    assert ends(server, client) in connections(question, HERE, os.getuid() + 1)
    client.sendall(b"1")
    assert server.recv(1) == b"1"


def test_a_connection_whose_other_end_is_unknown_there_is_gone() -> None:
    here = [("a:1", "b:2"), ("a:1", "b:3")]
    assert without_other_end(here, [("b:3", "a:1"), ("b:9", "a:1")]) == (("a:1", "b:2"),)
