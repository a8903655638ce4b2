"""Metrics: what Prometheus reads, how many series there are, and where they are served."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from edgelink.api import metrics, sites
from edgelink.api.metrics import Sample, exposition
from edgelink.api.metrics_server import MetricsServer
from edgelink.api.sites import LOOPBACK, Place
from edgelink.config import Config, Paths
from edgelink.config.load import override
from edgelink.daemon.edge import Edge
from edgelink.daemon.head import Head
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ConfigError
from edgelink.overlay.path_watch import Way
from edgelink.overlay.peers import Peers
from edgelink.testing import FakeClock, eventually
from edgelink.testing.facts import give

NASTY = 'a "quoted\\ name\nof two lines'
_UNITS = re.compile(r"_(ms|milliseconds|kb|mb|percent|minutes)(_|$)")


def way(hostname: str, **changes: Any) -> dict[str, Any]:
    found = {
        "hostname": hostname,
        "overlay_ip": "10.10.0.3",
        "path": "relayed",
        "via": "relay",
        "protocol": None,
        "latency_ms": 12.5,
        "loss": None,
        "loses_full_packets": False,
    }
    return {**found, **changes}


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By name and labels, as Prometheus' own parser has it; fails for a series that is there twice."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.type in ("gauge", "counter"), family
        assert family.documentation, family
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, key
            found[key] = sample.value
    return found


def read_samples(samples: Iterable[Sample]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return read(exposition(samples))


def edge(tmp_path: Path, config: Config | None = None) -> Edge:
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    return Edge(config or Config(), paths, FakeClock(), ThisMachine(), None)


def test_the_alarms_that_are_proposed_are_of_metrics_that_there_are() -> None:
    """An expression with a name that nobody has never fires."""
    how_to = (Path(__file__).parent.parent / "docs/how-to/look.md").read_text()
    named = set(re.findall(r"\bedgelink_[a-z_]+", how_to))
    assert len(named) > 6
    assert named - {metric.name for metric in metrics.ALL} == set()


@pytest.mark.parametrize("metric", metrics.ALL, ids=lambda metric: metric.name)
def test_names_are_as_prometheus_wants_them(metric: metrics.Metric) -> None:
    """What `promtool check metrics` complains of: names, base units, `_total` for counters and nothing else."""
    assert re.fullmatch(r"edgelink_[a-z][a-z_]*[a-z]", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert _UNITS.search(metric.name) is None
    assert metric.meaning
    assert all(re.fullmatch(r"[a-z][a-z_]*", label) and label not in ("le", "quantile") for label in metric.labels)


def test_names_are_unique_and_values_survive_the_text() -> None:
    """Whatever stands in a label: EasyTier's hostnames are told by whoever knows the secret."""
    assert len({metric.name for metric in metrics.ALL}) == len(metrics.ALL) > 30
    found = read_samples(metrics.of_paths([way(NASTY, loss=0.25), way(NASTY, path="direct")], None))
    assert found["edgelink_path_latency_seconds", (("peer", NASTY),)] == 0.0125
    assert found["edgelink_path_loss_ratio", (("peer", NASTY),)] == 0.25
    assert found["edgelink_paths", (("path", "direct"),)] == 1
    labels = (("path", "relayed"), ("peer", NASTY), ("protocol", ""), ("via", "relay"))
    assert found["edgelink_path", labels] == 1


async def test_what_a_node_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has joined anything, too; all of it in the table of the page."""
    node = edge(tmp_path)

    async def ways() -> list[dict[str, Any]]:
        return [way("relay"), way("edge-2")]

    monkeypatch.setattr(node.overlay, "ways", ways)
    monkeypatch.setattr(Peers, "rtt_ms", {"relay": 12.5})
    node.member.peers.asked.update({"relay": 10, "cloud": 4})
    node.member.peers.lost["cloud"] = 4
    node.base.conditions.set_false("OverlayUp", "DeviceMissing", "no et0")
    node.base.conditions.set_true("Leased", "Leased", "it holds 10.10.0.3")
    found = read_samples(await node.observation.metrics.samples())
    assert found["edgelink_ready", ()] == 0
    assert found["edgelink_condition", (("reason", "DeviceMissing"), ("type", "OverlayUp"))] == 0
    assert found["edgelink_condition", (("reason", "Leased"), ("type", "Leased"))] == 1
    assert found["edgelink_condition", (("reason", "NotObserved"), ("type", "RayJoined"))] == -1
    assert found["edgelink_phase", (("phase", "Starting"),)] == 1
    assert found["edgelink_registry_connected", ()] == 0
    assert found["edgelink_easytier_starts_total", ()] == 0
    assert found["edgelink_peer_rtt_seconds", (("peer", "relay"),)] == 0.0125
    assert found["edgelink_peer_pings_lost_total", (("peer", "relay"),)] == 0
    assert found["edgelink_peer_pings_lost_total", (("peer", "cloud"),)] == 4
    assert ("edgelink_peer_rtt_seconds", (("peer", "cloud"),)) not in found
    assert found["edgelink_daemon_resident_memory_bytes", ()] > 1 << 20
    assert not [key for key in found if ("peer", "edge-2") in key[1]], "neither relay nor head"
    assert found["edgelink_paths", (("path", "relayed"),)] == 2


async def test_who_takes_the_relays_name_does_not_take_its_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EasyTier tells what each node calls itself; who is who is the directory's to say."""
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    node = Head(Config(), paths, FakeClock(), ThisMachine(), None)
    relay, robot, stranger = (IPv4Address(f"10.10.0.{number}") for number in (1, 3, 9))
    give(node.base.board, holders={relay: "relay", robot: "edge-2"})

    async def latest() -> list[Way]:
        liars = [Way("relay", address, "relayed", None, None, None) for address in (stranger, robot)]
        return [*liars, Way("relay", relay, "direct", None, "tcp", 12.5)]

    monkeypatch.setattr(node.overlay._paths, "latest", latest)
    assert [told["hostname"] for told in await node.overlay.ways()] == ["10.10.0.9", "edge-2", "relay"]
    found = read_samples(await node.observation.metrics.samples())
    assert found["edgelink_path_latency_seconds", (("peer", "relay"),)] == 0.0125


def test_the_series_do_not_grow_with_the_square_of_the_network() -> None:
    """500 nodes: an edge names the few that it needs, the head each once."""
    ways = [way(f"edge-{number}", loss=0.0) for number in range(500)]
    assert len(list(metrics.of_paths(ways, {"edge-1", "edge-2"}))) == 2 + 2 * 4
    rows = [
        {"hostname": f"edge-{number}", "node_rank": number, "ready": True, "paused_s": None} for number in range(500)
    ]
    totals = {"nodes": 500, "cpus": 2000.0, "gpus": 0}
    everything = [*metrics.of_paths(ways, None), *metrics.of_cluster(rows, totals, 0)]
    assert len(read_samples(everything)) < 3500  # seven a node, with what is told of all


def test_of_the_registry_and_of_a_run() -> None:
    """What only the relay or the head knows."""
    found = read_samples(metrics.of_fleet([{"online": True}, {"online": False}]))
    assert found == {("edgelink_nodes_enrolled", ()): 2, ("edgelink_nodes_online", ()): 1}
    found = read_samples(metrics.of_run({"in_progress": True, "attempts": [{"step": None}, {"step": "12"}]}))
    assert found["edgelink_run_in_progress", ()] == 1
    assert found["edgelink_run_attempts", ()] == 2
    assert found["edgelink_run_step", ()] == 12
    for run in (None, {"in_progress": True, "attempts": [{"step": "epoch 3"}]}):
        assert ("edgelink_run_step", ()) not in read_samples(metrics.of_run(run))


async def scrape(port: int, address: str = "127.0.0.1", path: str = "/metrics") -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}:{port}{path}") as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


@asynccontextmanager
async def serving(port: int, places: list[Place]) -> AsyncIterator[MetricsServer]:
    async def wanted() -> list[Place]:
        return list(places)

    async def samples() -> list[Sample]:
        return [metrics.READY(1)]

    server = MetricsServer(port=port, places=wanted, samples=samples, clock=FakeClock())
    task = asyncio.ensure_future(server.run())
    try:
        yield server
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answers(port: int, address: str) -> bool:
    try:
        return (await scrape(port, address))[0] == 200
    except aiohttp.ClientConnectionError:
        return False


async def reach(server: MetricsServer, port: int, address: str, *, wanted: bool) -> None:
    async with asyncio.timeout(20):
        while await answers(port, address) != wanted:
            server.wakeup.set()
            await asyncio.sleep(0)


async def test_it_is_served_where_it_is_wanted_and_nowhere_else(port: int) -> None:
    """And follows: another address of the overlay, or none. A device that was made anew is another place."""
    places = [Place(LOOPBACK)]
    async with serving(port, places) as server:
        await reach(server, port, "127.0.0.1", wanted=True)
        assert await scrape(port) == (200, metrics.CONTENT_TYPE, exposition([metrics.READY(1)]))
        assert (await scrape(port, path="/status"))[0] == 404
        assert not await answers(port, "127.0.0.2")
        places.append(Place(IPv4Address("127.0.0.2"), "lo", 1))
        await reach(server, port, "127.0.0.2", wanted=True)
        places[1] = Place(IPv4Address("127.0.0.2"), "lo", 2)
        server.wakeup.set()
        await reach(server, port, "127.0.0.2", wanted=True)
        places.clear()
        await reach(server, port, "127.0.0.1", wanted=False)
    assert not await answers(port, "127.0.0.2")


async def test_any_number_of_scrapes_costs_one_answer_a_second(port: int) -> None:
    """Every local user may ask, and of 500 nodes there is much to tell."""
    asked: list[int] = []
    go_on = asyncio.Event()

    async def samples() -> list[Sample]:
        asked.append(1)
        await go_on.wait()
        return [metrics.READY(len(asked))]

    async def places() -> list[Place]:
        return [Place(LOOPBACK)]

    clock = FakeClock()
    server = MetricsServer(port=port, places=places, samples=samples, clock=clock)
    with capture_logs() as told:
        running = asyncio.ensure_future(server.run())
        await eventually(lambda: bool(told))  # that it is served
    async with asyncio.timeout(20):
        scrapes = [asyncio.ensure_future(scrape(port)) for _ in range(20)]
        await eventually(lambda: bool(asked))
        go_on.set()
        texts = {(await each)[2] for each in scrapes}
        assert (len(texts), len(asked)) == (1, 1)
        await clock.advance(1)
        assert (await scrape(port))[2] not in texts
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_idle_connections_keep_nobody_out(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may connect may do so a thousand times; the daemon needs its descriptors for other things."""
    monkeypatch.setattr(sites, "MOST_CONNECTIONS", 8)
    async with serving(port, [Place(LOOPBACK)]) as server, asyncio.timeout(20):
        await reach(server, port, "127.0.0.1", wanted=True)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(40)]
        assert (await scrape(port))[0] == 200
        assert all([await reader.read() == b"" for reader, _ in idle[:30]]), "the oldest were closed"
        for _, writer in idle:
            writer.close()


async def test_a_port_that_is_taken_is_told_once_and_taken_when_it_is_free() -> None:
    """It is no reason for a node not to work."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with capture_logs() as logs:
            async with serving(port, [Place(LOOPBACK)]) as server:
                for _ in range(3):
                    server.wakeup.set()
                    await eventually(lambda: not server.wakeup.is_set)
                other.close()
                await reach(server, port, "127.0.0.1", wanted=True)
    told = [entry["event"] for entry in logs]
    assert told == ["metrics.not_served", "metrics.served"]
    assert "metrics.port" in logs[0]["hint"]


async def test_a_node_serves_on_loopback_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    """On the overlay only while its device is confirmed."""
    for listen, expected in (("loopback", [Place(LOOPBACK)]), ("nowhere", []), ("overlay", [Place(LOOPBACK)])):
        config = override(Config(), {"metrics": {"listen": listen}})
        assert await edge(tmp_path, config=config).observation.metrics.places() == expected


def test_somebody_elses_overlay_gets_no_metrics() -> None:
    """It may be the Internet."""
    with pytest.raises(ConfigError, match=r"metrics: .*loopback"):
        override(Config(), {"metrics": {"listen": "overlay"}, "overlay": {"kind": "existing"}})
