"""How a link is measured, over loopback and on made-up streams. Links of a known length and rate are in test_wan."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from edgelink.ray_cluster import link_meter
from edgelink.ray_cluster.exchange import Peer
from edgelink.ray_cluster.link_meter import is_steady, measure_links, rate_mbit, times_held_up

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


def test_of_a_rate_that_never_stays_all_but_the_beginning_counts() -> None:
    """As on a lossy link, whose congestion control goes up and down, once it has begun."""
    uneven = [(index * 0.1, 0) for index in range(21)]
    for index in range(40):
        at, count = uneven[-1]
        uneven.append((at + 0.1, count + (150_000 if index % 4 < 2 else 50_000)))
    assert not is_steady(uneven, 0.2)
    assert rate_mbit(uneven, 0.2) == pytest.approx(8.0, rel=0.05)


EVERY_S = 0.005


def held_up(delays_s: list[float]) -> int:
    """Of messages sent at an even pace."""
    return times_held_up([at * EVERY_S for at in range(len(delays_s))], delays_s)


def delays(rtt_s: float, messages: int = 1000, lost: tuple[int, ...] = (), probe: range = range(0)) -> list[float]:
    """Of messages over TCP that sends what is lost again when three packets behind it have arrived, and that, while it
    probes, has four packets under way at most; what waits goes into one packet."""
    sent_s = [at * EVERY_S for at in range(messages)]
    arrived_s: list[float] = []
    under_way: list[float] = []  # when each of these is confirmed
    waits = 0
    for at, now_s in enumerate(sent_s):
        next_s = now_s + EVERY_S
        if at not in probe and not waits:
            under_way.append(now_s + rtt_s)
            arrived_s.append(now_s + rtt_s + (rtt_s + 3 * EVERY_S if at in lost else 0))
            continue
        waits += 1
        for when_s in [now_s, *sorted(each for each in under_way if now_s < each < next_s)]:
            under_way = [each for each in under_way if each > when_s]
            if waits and (len(under_way) < 4 or at not in probe):
                under_way.append(when_s + rtt_s)
                arrived_s += [when_s + rtt_s] * waits
                waits = 0
    in_order_s = [max(arrived_s[: at + 1]) for at in range(len(arrived_s))]
    return [arrived - sent for sent, arrived in zip(sent_s, in_order_s, strict=False)]


def test_each_time_that_messages_are_held_up_counts_once() -> None:
    """One lost packet delays what comes behind it, too; a little unevenness is none."""
    even = [0.100, 0.104, 0.098, 0.102] * 50
    held = [0.1] * 80 + [0.28, 0.25, 0.22, 0.19] + [0.1] * 80 + [0.3, 0.2] + [0.1] * 30
    assert held_up(even) == 0
    assert held_up(held) == 2
    assert held_up([0.3, *even]) == 1
    assert held_up([0.02] * 50 + [0.06] + [0.02] * 50) == 0, "less than anybody would wait for"
    assert held_up([]) == 0


@pytest.mark.parametrize("rtt_s", [0.06, 0.08, 0.1, 0.15, 0.3, 0.5])
def test_bbr_probing_for_the_shortest_round_trip_loses_nothing(rtt_s: float) -> None:
    """Four packets a round trip for 200 ms and a round trip, as each ten seconds; beside it, what is lost counts."""
    probe = range(400, 400 + int((max(0.2, rtt_s) + rtt_s) / EVERY_S))
    probed = delays(rtt_s, probe=probe)
    assert max(probed) > 1.6 * rtt_s, "it is held up indeed"
    assert held_up(probed) == 0
    assert held_up(delays(rtt_s, lost=(60, 250, 900), probe=probe)) == 3
    assert held_up(delays(rtt_s, lost=(60, 250, 500, 900))) == 4


def test_messages_that_follow_each_other_are_measured() -> None:
    """Over a way that stands still once, and then brings all at once, as TCP does when it has sent a packet again."""
    stands_s, at_message = 0.25, 20

    def echo(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            came, has_stood = 0, False
            while data := connection.recv(1 << 16):
                came += len(data)
                if came >= at_message * link_meter.MESSAGE_BYTES and not has_stood:
                    has_stood = True
                    threading.Event().wait(stands_s)
                connection.sendall(data)

    with socket.create_server((LOCAL, 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(echo, listener)
        found = Peer(LOCAL, exchanges=False).trickle(LOCAL, listener.getsockname()[1], every_s=0.01, seconds=1.0)
    assert found["trickled"] == 100
    assert found["held_up"] >= 1


@pytest.mark.parametrize(
    ("rtt_ms", "stream_s", "expected_s"), [(100, 4.0, 3.0), (40, 1.0, 1.2), (300, 4.0, 9.0), (500, 1.0, 15.0)]
)
def test_a_long_link_is_listened_to_for_longer(rtt_ms: float, stream_s: float, expected_s: float) -> None:
    """As many round trips of it: of the few messages of a shorter time, one that is held up would be a storm."""
    trickled: list[float] = []

    class Far(Peer):
        def round_trips(self, ip: str, port: int, count: int) -> list[float]:
            return [float(rtt_ms)] * 3

        def stream(self, ip: str, port: int, most_s: float, round_trip_s: float) -> dict[str, Any]:
            return {"mbit_per_s": 2.0}

        def settle(self, ip: str, port: int, wanted_ms: float) -> None:
            pass

        def trickle(self, ip: str, port: int, every_s: float, seconds: float, warm_s: float = 0.0) -> dict[str, int]:
            trickled.append(seconds)
            return {"trickled": 0, "held_up": 0}

    Far(LOCAL, exchanges=False).measure(LOCAL, 1, stream_s)
    assert trickled == [pytest.approx(expected_s)]
