"""What EasyTier costs is watched."""

from __future__ import annotations

from dataclasses import replace

import pytest
from overlay_world import World, paths, world  # noqa: F401

from edgelink.conditions import Condition, Status
from edgelink.overlay.easytier_load import LoadReconciler
from edgelink.process import ProcessUsage


async def test_a_spinning_easytier_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a fifth of a core for half a minute without traffic makes the condition False; traffic excuses it."""
    cpu_s = 0.0
    monkeypatch.setattr("edgelink.overlay.easytier_load.usage", lambda pid: ProcessUsage(cpu_s, 0))
    load = LoadReconciler(
        process=world.process, links=world.links, device="et0", conditions=world.conditions, clock=world.clock
    )
    await load.reconcile()
    assert world.conditions.get("OverlayCpuNormal").status is Status.UNKNOWN
    await world.up()

    async def pass_time(cores: float, bytes_per_s: int) -> Condition:
        nonlocal cpu_s
        for _ in range(4):
            await load.reconcile()
            await world.clock.advance(10)
            cpu_s += cores * 10
            world.links.state = replace(world.links.state, rx_bytes=world.links.state.rx_bytes + bytes_per_s * 10)
        await load.reconcile()
        return world.conditions.get("OverlayCpuNormal")

    assert (await pass_time(0.01, 0)).status is Status.TRUE
    spinning = await pass_time(0.94, 0)
    assert (spinning.status, spinning.reason) == (Status.FALSE, "EasyTierSpinning")
    assert (await pass_time(0.94, 50_000_000)).status is Status.TRUE
