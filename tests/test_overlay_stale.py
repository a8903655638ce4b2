"""Dead connections: told from live and from quiet ones by what the kernel knows of them."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from pyroute2.netlink.exceptions import NetlinkError

from edgelink.overlay import sockets, stale
from edgelink.overlay.echo_wire import NOBODY


class Answer(dict[str, Any]):
    def get_attr(self, name: str) -> dict[str, int] | None:
        return self[name]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "last_data_recv_ms, unacked, backoff, dead",
    [(100, 0, 0, False), (100, 3, 1, False), (60_000, 0, 0, False), (2500, 2, 0, False), (2500, 2, 1, True)],
    ids=["live", "live, one packet lost", "quiet by agreement", "slow", "dead"],
)
def test_only_silence_without_acknowledgement_is_death(
    last_data_recv_ms: int, unacked: int, backoff: int, dead: bool
) -> None:
    """Nothing came for two seconds, and what was sent is being sent again."""
    info = {"tcpi_last_data_recv": last_data_recv_ms, "tcpi_unacked": unacked, "tcpi_backoff": backoff}
    assert stale._is_dead(Answer(INET_DIAG_INFO=info)) is dead
    assert not stale._is_dead(Answer(INET_DIAG_INFO=None))


@pytest.mark.parametrize(
    "last_data_recv_ms, unacked, backoff, hole",
    [(100, 0, 0, False), (100, 3, 1, False), (60_000, 3, 4, False), (1500, 3, 2, False), (100, 3, 2, True)],
    ids=["live", "one packet lost", "an outage", "an outage just noticed", "a black hole"],
)
def test_a_black_hole_swallows_one_direction(last_data_recv_ms: int, unacked: int, backoff: int, hole: bool) -> None:
    """The other end's small packets arrive, and what was sent is sent again and again."""
    info = {"tcpi_last_data_recv": last_data_recv_ms, "tcpi_unacked": unacked, "tcpi_backoff": backoff}
    assert stale._is_black_hole(Answer(INET_DIAG_INFO=info)) is hole
    assert not stale._is_black_hole(Answer(INET_DIAG_INFO=None))


def test_where_the_kernel_does_not_say_no_black_hole_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a node whose relay is silent could not say so."""

    def refuse() -> NoReturn:
        raise OSError(errno.EPROTONOSUPPORT, "Protocol not supported")

    monkeypatch.setattr(stale, "diag_socket", refuse)
    assert stale.black_holes(os.getpid()) == []


def test_the_kernel_says_what_a_connection_uses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
        other_end = f"127.0.0.1:{server.getsockname()[1]}"
        assert (client.getsockname()[1], other_end, "reno") in stale.congestion_controls(os.getpid())


@pytest.mark.parametrize(
    ("answer", "is_closed"), [(0, True), (errno.ENOENT, True), (errno.EOPNOTSUPP, False), (errno.EPERM, False)]
)
def test_a_connection_that_the_kernel_does_not_close_is_no_closed_one(answer: int, is_closed: bool) -> None:
    """Kernels without INET_DIAG_DESTROY say so. A connection that ended meanwhile is no reason to leave the others."""

    class Kernel:
        def nlm_request(self, *_: Any) -> Iterator[Any]:
            yield SimpleNamespace(data=bytearray(4 + 16) + struct.pack("=i", -answer), offset=4)

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        with sockets.diag_socket() as diag:
            port = client.getsockname()[1]
            (listed,) = [each for each in sockets.established(diag) if each["idiag_sport"] == port]
        with nullcontext() if is_closed else pytest.raises(NetlinkError, match=os.strerror(answer)):
            sockets.destroy(Kernel(), listed)


def test_who_may_not_close_a_connection_is_told() -> None:
    """Asked of the real kernel, without the right to."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        port, user = client.getsockname()[1], os.geteuid()
        try:
            if user == 0:
                os.seteuid(NOBODY)
            with sockets.diag_socket() as diag:
                (listed,) = [each for each in sockets.established(diag) if each["idiag_sport"] == port]
                with pytest.raises(NetlinkError):
                    sockets.destroy(diag, listed)
        finally:
            os.seteuid(user)


def test_a_live_connection_is_left_alone() -> None:
    """Asked of the real kernel about connections of our own."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"x")
            assert stale.close_dead_connections(os.getpid()) == []
            assert accepted.recv(1) == b"x"


def test_what_one_side_has_closed_is_listed_where_it_is_asked_for() -> None:
    """The kernel may still send on it; both ends of it are there."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        ports = {client.getsockname()[1], server.getsockname()[1]}
        accepted, _ = server.accept()
        with accepted, sockets.diag_socket() as diag:
            client.shutdown(socket.SHUT_WR)
            assert accepted.recv(1) == b""
            for half_closed, expected in ((False, set()), (True, ports)):
                listed = sockets.established(diag, half_closed=half_closed)
                assert {each["idiag_sport"] for each in listed} & ports == expected
