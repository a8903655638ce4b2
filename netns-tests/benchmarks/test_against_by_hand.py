"""EdgeLink against the by-hand road, in the same run, alternating, watched by the same outside observer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import pytest
from contenders import EDGE, ByHand, Contender, Pair, Stream
from figures import Figure, Figures

from edgelink.lab import CLOUD
from edgelink.process.identity import usage

pytestmark = pytest.mark.timeout(900)

ROUNDS = 5
START_SLACK_S = 1.5  # the observing, verifying and recording that people do by eye
IDLE_WINDOW_S = 60.0
SETTLE_S = 10.0
LINE = {"rtt": "20ms", "rate": "100mbit"}


def test_start_to_alive_in_ray(pair: Pair, figures: Figures) -> None:
    """The edge's command to "alive in Ray": at most the by-hand time and 1.5 s; enrolment happened before."""
    taken: dict[Contender, list[float]] = {contender: [] for contender in pair.both}
    for _ in range(ROUNDS):
        for contender in pair.in_turn():
            taken[contender].append(contender.edge_start_s())
            contender.stop_edge()
    figure = figures.add(
        Figure(
            "edge: command to alive in Ray",
            "s",
            taken[pair.edgelink],
            taken[pair.by_hand],
            bar=f"by hand + {START_SLACK_S} s",
        )
    )
    assert median(figure.edgelink) <= median(figure.by_hand) + START_SLACK_S


@pytest.fixture(scope="module")
def running(pair: Pair) -> Iterator[Pair]:
    """Both edges run and have settled."""
    for contender in pair.both:
        contender.edge_start_s()
    time.sleep(SETTLE_S)
    yield pair
    for contender in pair.both:
        contender.stop_edge()


def test_idle_costs(running: Pair, figures: Figures) -> None:
    """easytier-core at most 2 % of a core on cloud and edge; the edge daemon at most 1 % and 100 MB."""
    daemon = running.edgelink.lab.daemon(EDGE)
    assert daemon is not None
    watched = {
        (type(contender), node): contender.pid_of(node, "easytier-core")
        for contender in running.both
        for node in (CLOUD, EDGE)
    }
    watched[type(running.edgelink), "daemon"] = daemon.pid
    before = {key: usage(pid).cpu_s for key, pid in watched.items()}
    started_s = time.monotonic()
    time.sleep(IDLE_WINDOW_S)
    elapsed_s = time.monotonic() - started_s
    percent = {key: 100 * (usage(pid).cpu_s - before[key]) / elapsed_s for key, pid in watched.items()}
    edgelink = type(running.edgelink)
    for node in (CLOUD, EDGE):
        values = [percent[edgelink, node]], [percent[ByHand, node]]
        figures.add(Figure(f"{node}: easytier-core idle", "% of a core", *values, bar="2"))
    figures.add(Figure("edge daemon idle", "% of a core", [percent[edgelink, "daemon"]], bar="1"))
    memory = figures.add(Figure("edge daemon memory", "MB", [usage(daemon.pid).rss_bytes / 1e6], bar="100"))
    assert percent[edgelink, CLOUD] <= 2
    assert percent[edgelink, EDGE] <= 2
    assert percent[edgelink, "daemon"] <= 1
    assert memory.edgelink[0] <= 100


@pytest.fixture(scope="module")
def on_a_line(running: Pair) -> Pair:
    """By lines as fast as a robot's may be. Where the processor is the limit, the rate tells of other work."""
    for contender in running.both:
        contender.lab.set_wan([EDGE], LINE)
    return running


@pytest.mark.parametrize(("source", "target"), [(EDGE, CLOUD), (CLOUD, EDGE)])
def test_throughput_through_the_relay(on_a_line: Pair, figures: Figures, source: str, target: str) -> None:
    """One TCP stream through the relay is as fast as by hand with our MTU, and costs as much processor time a byte."""
    taken: dict[Contender, list[Stream]] = {contender: [] for contender in on_a_line.both}
    for _ in range(ROUNDS):
        for contender in on_a_line.in_turn():
            taken[contender].append(contender.stream(source, target))
    ours, theirs = taken[on_a_line.edgelink], taken[on_a_line.by_hand]
    name = f"{source} to {target} by relay"
    rates = [each.mbit_s for each in ours], [each.mbit_s for each in theirs]
    rate = figures.add(Figure(f"TCP {name}", "Mbit/s", *rates, bar="at least 0.9 of by hand"))
    costs = [each.s_per_gb for each in ours], [each.s_per_gb for each in theirs]
    cost = figures.add(Figure(f"processor {name}", "s/GB", *costs, bar="at most 1.1 of by hand"))
    assert rate.ratio is not None
    assert cost.ratio is not None
    assert rate.ratio >= 0.9
    assert cost.ratio <= 1.1
