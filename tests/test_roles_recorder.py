"""The flight recorder: bounded, private, kept over restarts, and no burden."""

from __future__ import annotations

import asyncio
import json
import stat
from datetime import timedelta
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from edgelink.config import Config, Paths
from edgelink.log import hide
from edgelink.registry.payloads import Role
from edgelink.roles.node import Node
from edgelink.roles.recorder import Recorder, recorded
from edgelink.testing import FakeClock


async def no_ways() -> list[dict[str, Any]]:
    return []


def recorder(directory: Path, clock: FakeClock, **options: Any) -> Recorder:
    return Recorder(directory, clock, lambda: {"phase": "Ready"}, no_ways, **options)


def everything(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in recorded(directory, FakeClock().now() - timedelta(days=1))]


async def test_samples_are_kept_over_a_restart_and_read_from_a_time_on(tmp_path: Path) -> None:
    """Half a line of a power cut is passed over."""
    clock = FakeClock()
    for _ in range(2):  # two lives of the daemon
        task = asyncio.ensure_future(recorder(tmp_path, clock).run())
        await clock.advance(60)
        task.cancel()
        with (tmp_path / "flight.jsonl").open("a") as file:
            file.write('{"at": "2026-01-\n')
    found = everything(tmp_path)
    assert [entry["what"] for entry in found].count("started") == 2
    assert [entry["what"] for entry in found].count("sample") == 2 * 13
    last_half = list(recorded(tmp_path, clock.now() - timedelta(seconds=30)))
    assert len(last_half) == 7


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


async def test_a_node_records_what_went_on(tmp_path: Path) -> None:
    """Phase, what is not as it should be, round trips and losses, load; and every change of a condition at once."""
    clock = FakeClock()
    paths = Paths(state=tmp_path / "state", runtime=tmp_path / "run")
    node = Node(role=Role.EDGE, config=Config(), paths=paths, clock=clock, enrolment=None)
    node.peers.rtt_ms = {"head": 12.345}
    node.peers.lost_pings["relay"] = 3
    node.conditions.set_false("OverlayUp", "DeviceMissing", "no et0")
    node.recorder.note("sample", **node.sample())
    changed, sample = everything(paths.recorder / "node")
    assert (changed["what"], changed["type"], changed["reason"]) == ("condition", "OverlayUp", "DeviceMissing")
    assert sample["not_true"]["OverlayUp"] == "DeviceMissing"
    assert sample["rtt_ms"] == {"head": 12.3}
    assert sample["lost_pings"] == {"relay": 3}
    assert sample["daemon_rss_mb"] > 1
