"""The flight recorder: bounded, private, kept over restarts, and no burden."""

from __future__ import annotations

import asyncio
import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from edgelink.config import Config, Paths
from edgelink.daemon.edge import Edge
from edgelink.daemon.this_machine import ThisMachine
from edgelink.log import hide
from edgelink.overlay.peers import Peers
from edgelink.telemetry.recorder import Recorder, recorded
from edgelink.testing import FakeClock


def ready() -> dict[str, Any]:
    return {"phase": "Ready"}


async def no_ways() -> list[dict[str, Any]]:
    return []


def recorder(directory: Path, clock: FakeClock, **options: Any) -> Recorder:
    return Recorder(directory, clock, **options)


def everything(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recorded(directory, FakeClock().now() - timedelta(days=1))]


async def test_samples_are_kept_over_a_restart_and_read_from_a_time_on(tmp_path: Path) -> None:
    """Half a line of a power cut is passed over, and costs the next one nothing."""
    clock = FakeClock()
    for _ in range(2):  # two lives of the daemon
        task = asyncio.ensure_future(recorder(tmp_path, clock).run(ready, no_ways))
        await clock.advance(60)
        task.cancel()
        with (tmp_path / "flight.jsonl").open("a") as file:
            file.write('{"at": "2026-01-')
    found = everything(tmp_path)
    assert [entry["what"] for entry in found].count("started") == 2
    assert [entry["what"] for entry in found].count("sample") == 2 * 13
    last_half = list(recorded(tmp_path, clock.now() - timedelta(seconds=30)))
    assert len(last_half) == 7


class Network:
    """Whom a head sees: it tells, as a daemon does, and says what a reader of the whole file would take it for."""

    def __init__(self, size: int) -> None:
        self.alive = [f"{number}:aaaa" for number in range(size)]
        self.rows = [
            {"hostname": f"edge-{number}", "overlay_ip": f"10.10.0.{number}", "path": "direct", "latency_ms": 8.0}
            | {"loss": 0.0, "received": "1 kB", "sent": "1 kB"}
            for number in range(size)
        ]

    def sample(self) -> dict[str, Any]:
        return {"ray_alive": list(self.alive)}

    async def ways(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rows]


async def test_of_a_list_only_what_changed_is_written_again(tmp_path: Path) -> None:
    """Not the latency that is never twice the same, nor the bytes that grow; a way that grew slow is told."""
    clock, network = FakeClock(), Network(3)
    task = asyncio.ensure_future(Recorder(tmp_path, clock).run(network.sample, network.ways))
    await clock.advance(0)
    network.rows[0] |= {"latency_ms": 11.0, "loss": 0.05, "received": "9 MB"}
    network.rows[1] |= {"latency_ms": 80.0}
    await clock.advance(30)
    network.rows[2] |= {"path": "relayed", "latency_ms": None}
    del network.rows[1]
    network.alive = ["0:aaaa", "1:bbbb", "2:aaaa"]
    await clock.advance(30)
    network.rows.clear()  # EasyTier does not say
    await clock.advance(30)
    task.cancel()
    found = [
        {key: value for key, value in entry.items() if key not in ("at", "what")}
        for entry in everything(tmp_path)
        if entry["what"] == "sample"
    ]
    whole, slow, members, ways, left = (entry for entry in found if entry)
    assert whole["ray_alive"] == ["0:aaaa", "1:aaaa", "2:aaaa"]
    assert [row["hostname"] for row in whole["ways"]] == ["edge-0", "edge-1", "edge-2"]
    assert [row["hostname"] for row in slow.pop("ways_changed")] == ["edge-1"]
    assert slow == {}
    assert members == {"ray_alive_changed": ["1:bbbb"], "ray_alive_gone": ["1:aaaa"]}
    assert [row["path"] for row in ways.pop("ways_changed")] == ["relayed"]
    assert ways == {"ways_gone": ["10.10.0.1"]}
    assert left == {"ways": []}


async def test_each_file_and_each_excerpt_can_be_read_alone(tmp_path: Path) -> None:
    """A new file begins with the whole lists, and an excerpt with what they held before it."""
    clock, network = FakeClock(), Network(5)
    recorder_ = Recorder(tmp_path, clock, max_bytes=3000)
    task = asyncio.ensure_future(recorder_.run(network.sample, network.ways))
    await clock.advance(60)
    network.alive.remove("3:aaaa")
    network.rows[0]["path"] = "relayed"
    while not (tmp_path / "flight.jsonl.1").exists():
        await clock.advance(60)
    await clock.advance(60)
    task.cancel()
    newer = [json.loads(line) for line in (tmp_path / "flight.jsonl").read_text().splitlines()]
    assert next(entry for entry in newer if "ways" in entry)["ways"] == network.rows
    assert newer[0]["ray_alive"] == network.alive
    (tmp_path / "flight.jsonl").unlink()
    before, *_ = map(json.loads, recorded(tmp_path, FakeClock().now() + timedelta(seconds=100)))
    assert before["what"] == "before"
    assert before["ray_alive"] == network.alive
    assert before["ways"] == network.rows


async def test_what_could_not_be_written_is_told_later(tmp_path: Path) -> None:
    """A list whose line was lost is none that a reader has."""
    clock, network = FakeClock(), Network(2)
    (tmp_path / "file").write_text("")
    task = asyncio.ensure_future(Recorder(tmp_path / "file", clock).run(network.sample, network.ways))
    await clock.advance(10)
    (tmp_path / "file").unlink()
    await clock.advance(5)
    task.cancel()
    assert everything(tmp_path / "file")[0]["ray_alive"] == network.alive


async def test_it_is_bounded_and_private(tmp_path: Path) -> None:
    """A year of samples takes two files of the size they are given; nobody else reads them."""
    recorder_ = recorder(tmp_path / "r", FakeClock(), max_bytes=10_000)
    for number in range(2000):
        recorder_.note("sample", number=number)
    files = list((tmp_path / "r").iterdir())
    assert len(files) == 2
    assert sum(file.stat().st_size for file in files) < 21_000
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert everything(tmp_path / "r")[-1]["number"] == 1999


async def test_secrets_are_not_recorded(tmp_path: Path) -> None:
    """Whatever a condition's message may hold."""
    hide("a-secret-of-the-recorder")
    recorder(tmp_path, FakeClock()).note("condition", message="with a-secret-of-the-recorder in it")
    assert everything(tmp_path)[0]["message"] == "with *** in it"


async def test_a_disk_that_cannot_be_written_costs_the_line_only(tmp_path: Path) -> None:
    """And one line of log, not one a sample."""
    (tmp_path / "file").write_text("")
    with capture_logs() as logs:
        for _ in range(100):
            recorder(tmp_path / "file", FakeClock()).note("sample")
        broken = recorder(tmp_path / "file", FakeClock())
        before = len(logs)
        for _ in range(100):
            broken.note("sample")
        assert len(logs) == before + 1
        (tmp_path / "file").unlink()
        for _ in range(100):
            broken.note("sample")
    assert [entry["event"] for entry in logs[before:]] == ["recorder.not_written", "recorder.written_again"]
    assert len(everything(tmp_path / "file")) == 100


async def test_a_node_records_what_went_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Phase, what is not as it should be, round trips and losses, load; and every change of a condition at once."""
    clock = FakeClock()
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    node = Edge(Config(), paths, clock, ThisMachine(), None)
    monkeypatch.setattr(Peers, "rtt_ms", {"head": 12.345})
    node.member.peers.lost["relay"] = 3
    node.base.conditions.set_false("OverlayUp", "DeviceMissing", "no et0")
    node.base.recorder.note("sample", **node.observation.sample())
    changed, sample = everything(paths.recorder / "node")
    assert (changed["what"], changed["type"], changed["reason"]) == ("condition", "OverlayUp", "DeviceMissing")
    assert sample["not_true"]["OverlayUp"] == "DeviceMissing"
    assert sample["rtt_ms"] == {"head": 12.3}
    assert sample["lost_pings"] == {"relay": 3}
    assert sample["daemon_rss_mb"] > 1
