"""Ray on a machine that is too busy for its agent: helped, or told in words and tried again. Ray is pretended."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest
from fake_ray import GAVE_UP_ON_AGENT
from ray_bench import Bench, edge_bench, firewalls, gcs, head_port  # noqa: F401
from telling import refuses

from edgelink.errors import RayClusterError
from edgelink.process import procfs
from edgelink.ray_cluster import node
from edgelink.ray_cluster.last_words import last_words
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler
from edgelink.testing.clock import FakeClock


@pytest.fixture
def clock(edge_bench: Bench) -> FakeClock:
    made = edge_bench.clock = FakeClock()
    return made


@pytest.fixture
def edge(edge_bench: Bench, clock: FakeClock, head_port: int) -> RayEdgeReconciler:
    edge_bench.hears(head_port)
    return edge_bench.edge()


async def reconcile(edge: RayEdgeReconciler, clock: FakeClock) -> float:
    """One look, while time passes."""
    look = asyncio.create_task(edge.reconcile())
    while not look.done():
        await clock.advance(0.5)
        await asyncio.sleep(0.01)
    return look.result()


def port_file(bench: Bench) -> Path:
    return bench.fake.directory / "dashboard_agent_listen_port_f00d"


async def test_a_late_agent_holds_up_nobody(edge_bench: Bench, edge: RayEdgeReconciler, clock: FakeClock) -> None:
    """EdgeLink tells the raylet the port, which it has pinned itself, in the agent's place."""
    (edge_bench.fake.directory / "late").write_text("serves")
    began_s = clock.monotonic_s()
    await reconcile(edge, clock)
    assert edge_bench.reason == "AliveInRay"
    assert port_file(edge_bench).read_text() == str(edge_bench.config.ray.dashboard_agent_listen_port)
    assert clock.monotonic_s() - began_s >= 5, "an agent that comes in time writes it itself"


async def test_a_raylet_that_gives_up_is_told_in_words_and_is_no_crash_loop(
    edge_bench: Bench, edge: RayEdgeReconciler, clock: FakeClock
) -> None:
    """The pauses grow beyond those of a crash, and each is said; Ray joins once the machine has time for it."""
    (edge_bench.fake.directory / "late").write_text("aborts")
    pauses_s = []
    for number in range(1, 6):
        port_file(edge_bench).unlink(missing_ok=True)
        with refuses(RayClusterError, reason="TooBusyForRay") as caught:
            await reconcile(edge, clock)
        assert len(edge_bench.fake.starts) == number
        pauses_s.append(int(re.findall(r"(\d+) s\b", caught.value.message)[-1]))
        with refuses(RayClusterError, reason="TooBusyForRay"):
            await edge.reconcile()
        assert len(edge_bench.fake.starts) == number, "the pause is not over"
        await clock.advance(pauses_s[-1] + 1)
    assert pauses_s[0] >= 5
    assert pauses_s[-1] > 2 * pauses_s[0]
    (edge_bench.fake.directory / "late").unlink()
    await reconcile(edge, clock)
    assert edge_bench.reason == "AliveInRay"


async def test_a_raylet_that_ray_start_gave_up_on_is_kept(
    edge_bench: Bench, edge: RayEdgeReconciler, clock: FakeClock
) -> None:
    """`ray start` waits for 30 s. Ray itself is then asked, with more patience, whether it lists the raylet."""
    (edge_bench.fake.directory / "late").write_text("serves unseen")
    await reconcile(edge, clock)
    assert (edge_bench.reason, len(edge_bench.fake.starts)) == ("AliveInRay", 1)
    assert edge_bench.fake.questions[-1].endswith("--timeout 120")
    record = edge.ray.node.record
    assert record is not None
    assert Path(procfs.executable_of(record.raylet.pid)).name == "raylet"


def test_the_cause_of_a_failed_check_is_not_cut_off(tmp_path: Path) -> None:
    """Ray puts a preamble before it that is longer than what is quoted of a line."""
    log = tmp_path / "raylet.out"
    log.write_text(GAVE_UP_ON_AGENT)
    assert "Timed out waiting for file" in last_words([str(log)], os.getuid())


async def test_a_start_that_hangs_gets_more_time_the_next_time(
    edge_bench: Bench, clock: FakeClock, head_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board may need minutes before `ray start` even starts the raylet."""
    monkeypatch.setattr(node, "START_TIMEOUT_S", 0.2)
    (edge_bench.fake.directory / "hangs").touch()
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    for patience_s in (0.2, 0.4, 0.8):
        with pytest.raises(RayClusterError, match=f"{patience_s:g} s"):
            await edge.reconcile()
        await clock.advance(60)
