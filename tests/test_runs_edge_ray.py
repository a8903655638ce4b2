"""restart-ray on an edge: refused under a driver and without a cluster, done when the new Ray has joined."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sim import Box, Sim, ready, story
from sim_machine import RAYLET

from edgelink.api.server import Caller, LocalApi
from edgelink.errors import ExitCode, UsageError
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.reconcilers import RayEdgeReconciler, RayInputs
from edgelink.runs.edge_ray import EdgeRay


async def restart(edge: Box, **body: Any) -> list[dict[str, Any]]:
    return await edge.told("POST", "/restart-ray", **body)


def raylets(edge: Box) -> int:
    """How many began there."""
    return edge.machine.history.count(f"+{RAYLET}")


@story
async def test_it_is_done_when_another_raylet_has_joined(sim: Sim) -> None:
    """Neither the former one nor one that is still joining will do."""
    *_, edge = await ready(sim, "cloud", "edge-1")
    *events, done = await restart(edge)
    rows = [row for event in events for row in event["nodes"]]
    assert any(row["message"].startswith("Joining: `ray start`") for row in rows)
    assert [row["ready"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert done == {"event": "done", "absent": []}
    assert raylets(edge) == 2


@story
async def test_a_drivers_workers_are_not_ended_by_accident(sim: Sim) -> None:
    """75 with their names; --force means it."""
    *_, edge = await ready(sim, "cloud", "edge-1")
    edge.machine.workers = ["ray::RolloutWorker"]
    (refusal,) = await restart(edge)
    assert refusal["reason"] == "RunInProgress"
    assert "ray::RolloutWorker" in refusal["error"]
    assert refusal["exit_code"] == ExitCode.TRY_AGAIN
    await sim.passes(30)
    assert raylets(edge) == 1
    *_, done = await restart(edge, force=True)
    assert done["event"] == "done"
    assert raylets(edge) == 2


@story
async def test_without_a_cluster_no_ray_is_started(sim: Sim) -> None:
    """It could not join."""
    relay = await sim.relay()
    head, edge = await sim.join("cloud", Role.HEAD, relay), await sim.join("edge-1", Role.EDGE, relay)
    edge.start()
    await sim.until(edge.has("RayJoined", "HeadNotSeen"), within_s=10)
    (refusal,) = await restart(edge)
    assert refusal["reason"] == "HeadNotSeen"
    assert "no cluster yet" in refusal["error"]
    head.start()
    await sim.until(lambda: edge.is_ready() and head.is_ready(), within_s=30)
    await head.asks("POST", "/stop-all")
    (refusal,) = await restart(edge)
    assert "no Ray that" in refusal["error"]
    await sim.passes(30)
    assert raylets(edge) == 1


async def test_it_is_for_root_and_the_user_of_ray(tmp_path: Path) -> None:
    """Nobody else ends processes."""

    async def prepare() -> None:
        pass

    node = SimpleNamespace(api=LocalApi(tmp_path / "socket"))
    ray = SimpleNamespace(user_uid=1000, is_enabled=True, prepare=prepare)
    verb = EdgeRay(cast(RayInputs, node), cast(RayEdgeReconciler, ray))
    with pytest.raises(UsageError, match="may not"):
        await anext(verb.restart(Caller(1, 1001, 1001), {}))
