"""Who calls whom, and what a call tells, over loopback. Real nodes are in the netns tests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edgelink.ray_cluster import exchange
from edgelink.ray_cluster.exchange import GROUP, LARGE_BYTES, MOST_PAIRED, SMALL, Peer, groups, knock, partners

LOCAL = "127.0.0.1"


@contextmanager
def listening() -> Iterator[int]:
    """The port of somebody whose kernel takes calls, and who never says a word."""
    with socket.create_server((LOCAL, 0)) as listener:
        yield listener.getsockname()[1]


def test_peers_exchange_small_and_large_packets() -> None:
    peer = Peer(LOCAL, exchanges=True)
    (link,) = peer.ask([("edge-1", LOCAL, peer.port, True)])
    assert link == {
        "to": "edge-1",
        "connected": True,
        "small": True,
        "large": True,
        "arrived": LARGE_BYTES,
        "error": "",
    }


def test_what_fails_is_told_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ANSWER_S", 0.2)
    peer = Peer(LOCAL, exchanges=True)
    with listening() as port:
        (silent,) = peer.ask([("edge-1", LOCAL, port, True)])
    assert (silent["connected"], silent["small"], silent["large"], silent["error"]) == (True, False, None, "timed out")
    with socket.create_server((LOCAL, 0)) as gone:
        port = gone.getsockname()[1]
    (refused,) = peer.ask([("edge-1", LOCAL, port, True)])
    assert (refused["connected"], refused["error"]) == (False, "Connection refused")


def test_what_has_arrived_is_known_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other kernel confirms it: a busy machine is no black hole."""
    monkeypatch.setattr(exchange, "LARGE_S", 0.5)
    peer = Peer(LOCAL, exchanges=False)
    with socket.create_server((LOCAL, 0)) as listener:

        def answer_small_only() -> None:
            connection, _ = listener.accept()
            connection.sendall(connection.recv(len(SMALL)))
            is_over.wait(20)
            connection.close()

        is_over = threading.Event()
        thread = threading.Thread(target=answer_small_only)
        thread.start()
        (link,) = peer.ask([("edge-1", LOCAL, listener.getsockname()[1], True)])
        is_over.set()
        thread.join()
    assert (link["small"], link["large"], link["arrived"], link["error"]) == (True, False, LARGE_BYTES, "timed out")


def test_strangers_are_not_answered() -> None:
    peer = Peer(LOCAL, exchanges=True)
    with socket.create_connection((LOCAL, peer.port), 20) as stranger:
        stranger.sendall(b"GET / HT")
        assert stranger.recv(1) == b""


def test_a_peer_for_paths_only_listens_nowhere(tmp_path: object) -> None:
    peer = Peer(LOCAL, exchanges=False)
    assert peer.port == 0
    assert peer.missing([str(tmp_path), "/no/such/path"]) == {"/no/such/path": "No such file or directory"}


def test_facts_name_each_device_with_an_address() -> None:
    assert Peer(LOCAL, exchanges=False).facts()["devices"]["lo"]["ip"] == LOCAL


def test_of_few_nodes_each_pair_exchanges_everything() -> None:
    names = [str(number) for number in range(MOST_PAIRED)]
    for name in names:
        assert sorted(partners(names, name)) == [(other, True) for other in names if other != name]


@pytest.mark.parametrize("count", [2, 9, GROUP, GROUP + 1, 100, 1000])
def test_many_nodes_are_asked_of_each_in_bounds(count: int) -> None:
    """Calls of one node do not grow with their number, but for the head's; large packets go around, and to the head."""
    names = [str(number) for number in range(count)]
    assert [name for group in groups(names) for name in group] == names
    assert all(2 <= len(group) <= GROUP for group in groups(names))
    for at, name in enumerate(names):
        found = dict(partners(names, name))
        assert name not in found
        assert at == 0 or len(found) <= GROUP + 2
        large = {other for other, is_large in found.items() if is_large}
        beside = {names[at - 1], names[(at + 1) % count], names[0]} - {name}
        assert large == (set(found) if at == 0 or count <= MOST_PAIRED else beside)
    assert set(dict(partners(names, names[0]))) == set(names[1:])


@pytest.mark.parametrize("queue_bytes", [None, 2048])
def test_a_raylet_is_knocked_at_with_small_and_large_packets(
    monkeypatch: pytest.MonkeyPatch, queue_bytes: int | None
) -> None:
    """One that is too busy to answer is reached all the same; one to which nothing large gets through is not."""
    monkeypatch.setattr(exchange, "LARGE_S", 0.5 if queue_bytes else 20.0)
    with socket.socket() as raylet:
        if queue_bytes is not None:
            raylet.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, queue_bytes)
        raylet.bind((LOCAL, 0))
        raylet.listen()
        found = knock(LOCAL, raylet.getsockname()[1])
    is_open = queue_bytes is None
    assert found == {"small": True, "large": is_open, "error": "" if is_open else "timed out"}


def test_a_raylet_that_is_gone_refuses() -> None:
    with socket.create_server((LOCAL, 0)) as gone:
        port = gone.getsockname()[1]
    assert knock(LOCAL, port) == {"small": False, "large": False, "error": "Connection refused"}
