"""A raylet or a GCS ends unasked: buried, started again, or a loop that is named; with a pretended Ray."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace

import pytest
from ray_bench import Bench, StandInGcs, edge_bench, firewalls, gcs, head_bench, head_port  # noqa: F401

from edgelink.errors import RayClusterError
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler
from edgelink.testing.clock import FakeClock


async def test_raylets_end_wakes_the_edge_and_ray_is_started_again(edge_bench: Bench, head_port: int) -> None:
    """The watch carries no decision, it wakes; the next look cleans up and joins again."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    async with asyncio.TaskGroup() as group:
        watch = group.create_task(edge.run())
        await asyncio.sleep(0)
        assert edge.ray.node.record is not None
        os.kill(edge.ray.node.record.raylet.pid, signal.SIGKILL)
        await edge.wakeup.wait(20)
        assert not edge.ray.node.is_running
        watch.cancel()
    await edge.reconcile()
    assert "RayExited" in [condition.reason for condition in edge_bench.history]
    assert edge_bench.reason == "AliveInRay"


async def kill_raylet(edge: RayEdgeReconciler) -> None:
    assert edge.ray.node.record is not None
    os.kill(edge.ray.node.record.raylet.pid, signal.SIGKILL)
    await edge.ray.node.wait_for_end()


async def test_ray_is_told_of_a_raylets_end_at_once_and_before_the_next_start(
    edge_bench: Bench, head_port: int
) -> None:
    """Whatever Ray still lists under our address or name is taken out of it, so that two never live side by side."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    asked = len(edge_bench.fake.questions)
    edge_bench.give(peers_connected=False)
    await kill_raylet(edge)
    await edge.reconcile()
    assert edge_bench.reason == "WaitingForOverlay"
    (burial,) = edge_bench.fake.questions[asked:]
    assert burial.endswith(f"bury --address 127.0.0.1:{head_port} --ip 127.0.0.1 --node {edge_bench.key.node_id}")
    assert edge_bench.board.facts.dead_ray == "f00d"
    edge_bench.give(peers_connected=True)
    await edge.reconcile()
    assert [question.split()[1] for question in edge_bench.fake.questions[asked:]] == ["bury", "bury", "wait-alive"]
    assert edge_bench.reason == "AliveInRay"


async def test_nothing_is_started_beside_a_former_ray_that_ray_calls_alive(edge_bench: Bench, head_port: int) -> None:
    """A Ray that lets nobody be buried is waited for."""
    undead = edge_bench.fake.directory / "undead"
    undead.touch()
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    with pytest.raises(RayClusterError, match=r"dead.*no such call") as caught:
        await edge.reconcile()
    assert caught.value.condition_reason == "FormerRayAlive"
    assert edge_bench.fake.starts == []
    undead.unlink()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"


async def test_a_raylet_that_ends_again_and_again_is_a_crash_loop(edge_bench: Bench, head_port: int) -> None:
    """The third short life shows as a loop, with the raylet's last words, and is waited for; another head forgives."""
    clock = edge_bench.clock = FakeClock()
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    shown = []
    for _ in range(3):
        await clock.advance(10)
        await edge.reconcile()
        assert edge_bench.reason == "AliveInRay"
        record = edge.ray.node.record
        assert record is not None
        words = edge_bench.paths.logs / "raylet.err"
        words.write_text(
            "[2026-11-21 11:52:05,604 I 1 1] (raylet) hello\n[2026-11-21 11:52:05,604 C 1 1] out of luck\n"
        )
        edge.ray.node.record = replace(record, outputs=(str(words),))
        edge_bench.history.clear()
        await kill_raylet(edge)
        await edge.reconcile()
        shown.append(edge_bench.history[0])
    assert [condition.reason for condition in shown] == ["RayExited", "RayExited", "CrashLoop"]
    assert all("out of luck" in condition.message for condition in shown)
    assert not any("hello" in condition.message for condition in shown)
    starts = len(edge_bench.fake.starts)
    assert await edge.reconcile() > 0
    assert (edge_bench.reason, len(edge_bench.fake.starts)) == ("CrashLoop", starts)
    edge_bench.hears(head_port, incarnation="another", epoch=2)
    (edge_bench.fake.directory / "cluster").write_text("another")
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"


async def test_failing_starts_are_a_crash_loop_too(edge_bench: Bench, head_port: int) -> None:
    """Pauses grow between them, and what `ray start` said stays visible meanwhile."""
    clock = edge_bench.clock = FakeClock()
    (edge_bench.fake.directory / "fails").touch()
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    for number, reason in ((1, "RayStartFailed"), (2, "RayStartFailed"), (3, "CrashLoop")):
        for _ in range(2):  # a second look, before the pause is over, starts nothing
            with pytest.raises(RayClusterError, match="no such luck") as caught:
                await edge.reconcile()
            assert (caught.value.condition_reason, len(edge_bench.fake.starts)) == (reason, number)
        await clock.advance(10)


async def test_edge_leaves_a_ray_that_its_head_disowns(edge_bench: Bench, gcs: StandInGcs) -> None:
    """Another GCS at the head's address, and no cluster spec to tell of it: the old raylet is ended, a new one joins.

    The spec that tells of that GCS at last finds it joined already.
    """
    clock = edge_bench.clock = FakeClock()
    edge_bench.hears(gcs.port)
    edge = edge_bench.edge()
    await edge.reconcile()
    gcs.refuses = True
    await clock.advance(10)
    (edge_bench.fake.directory / "disowned").touch()
    (edge_bench.fake.directory / "cluster").write_text("two")
    with pytest.raises(RayClusterError):  # the stand-in goes on saying that it lists nobody
        await asyncio.wait_for(edge.reconcile(), 60)
    (edge_bench.fake.directory / "disowned").unlink()
    gcs.refuses = False
    await clock.advance(10)
    await edge.reconcile()
    starts = len(edge_bench.fake.starts)
    assert starts == 3
    edge_bench.hears(gcs.port, incarnation="two", epoch=2)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == starts


async def test_a_dead_gcs_makes_a_new_incarnation(head_bench: Bench) -> None:
    """Edges know by it that they have to join anew."""
    head = head_bench.head()
    await head.reconcile()
    record = head.ray.node.record
    assert record is not None
    assert record.gcs is not None
    os.kill(record.gcs.pid, signal.SIGKILL)
    await head.ray.node.wait_for_end()
    await head.reconcile()
    first, second = head_bench.published
    assert first.incarnation != second.incarnation
    assert second.epoch == 2
