"""How a link is measured, over loopback and on made-up streams. Links of a known length and rate are in test_wan."""

from __future__ import annotations

import socket
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from edgelink.ray_cluster import link_meter
from edgelink.ray_cluster.exchange import Peer
from edgelink.ray_cluster.link_meter import is_steady, measure_links, rate_mbit

LOCAL = "127.0.0.1"


class Method:
    def __init__(self, function: Any, pool: ThreadPoolExecutor) -> None:
        self.remote = lambda *arguments: pool.submit(function, *arguments)


class Actor:
    """Ray's side of a peer that is an object of this process."""

    def __init__(self, peer: Peer, pool: ThreadPoolExecutor) -> None:
        self.open_meter, self.measure = Method(peer.open_meter, pool), Method(peer.measure, pool)


class NoRay:
    @staticmethod
    def get(answer: Future[Any]) -> Any:
        return answer.result()

    @staticmethod
    def wait(answers: list[Future[Any]], num_returns: int, timeout: float) -> Any:
        answers[0].exception(timeout)
        return answers, []


def ramp(rate: float, after_s: float, seconds: float, every_s: float = 0.05) -> list[tuple[float, int]]:
    """Of a stream that starts slowly: a tenth of ``rate`` (bytes/s) until ``after_s``, then all of it."""
    times = [index * every_s for index in range(int(seconds / every_s) + 1)]
    return [(at, int(rate * (min(at, after_s) / 10 + max(0.0, at - after_s)))) for at in times]


def test_both_directions_of_a_pair_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other; of each the round trips, the rate, and what TCP has sent again."""
    monkeypatch.setattr(link_meter, "SHORTEST_STREAM_S", 0.1)
    monkeypatch.setattr(link_meter, "MOST_BYTES", 1 << 20)
    with ThreadPoolExecutor(4) as pool:
        peers = {name: Actor(Peer(LOCAL, exchanges=False), pool) for name in ("cloud", "edge-1")}
        found = measure_links(NoRay, peers, dict.fromkeys(peers, LOCAL), [["cloud", "edge-1"]])
    assert [(link["from"], link["to"]) for link in found] == [("cloud", "edge-1"), ("edge-1", "cloud")]
    for link in found:
        assert len(link["round_trips_ms"]) >= link_meter.FEWEST_ROUND_TRIPS
        assert link["mbit_per_s"] > 0
        assert link["bytes"] > 0
        assert 0 <= link["retransmitted"] <= link["segments"]
        assert link["congestion_control"]


def test_who_does_not_answer_is_told() -> None:
    with socket.create_server((LOCAL, 0)) as gone:
        port = gone.getsockname()[1]
    assert Peer(LOCAL, exchanges=False).measure(LOCAL, port, 1.0) == {"error": "Connection refused"}


def test_the_slow_start_of_a_stream_does_not_count() -> None:
    """A stream is measured until its rate stays; what came before is left out."""
    young = ramp(1e6, after_s=1.0, seconds=1.2)
    assert not is_steady(young, 0.2)
    grown = ramp(1e6, after_s=1.0, seconds=2.0)
    assert is_steady(grown, 0.2)
    assert rate_mbit(grown, 0.2) == pytest.approx(8.0, rel=0.01)


def test_of_a_rate_that_never_stays_the_second_half_counts() -> None:
    """As on a lossy link, whose congestion control goes up and down."""
    uneven = [(0.0, 0)]
    for index in range(40):
        at, count = uneven[-1]
        uneven.append((at + 0.1, count + (150_000 if index % 4 < 2 else 50_000)))
    assert not is_steady(uneven, 0.2)
    assert rate_mbit(uneven, 0.2) == pytest.approx(8.0, rel=0.02)
