"""What the registry keeps of the copies of a node's disk that it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import World

from edgelink.protocol.payloads import NodeStatus
from edgelink.protocol.refusals import Refusals
from edgelink.protocol.requests import Claim
from edgelink.relay.claim_desk import ClaimDesk

HERE, THERE = ("mac:" + "1" * 32,), ("mac:" + "2" * 32,)


@pytest.mark.parametrize("is_metered, after_s", [(False, 60), (True, 180)])
async def test_who_is_lost_may_be_back_within_a_minute_or_three_keepalives(
    tmp_path: Path, is_metered: bool, after_s: float
) -> None:
    """A metered node notices by its next keepalive only that its link was away."""
    world = World(tmp_path)
    lease = world.join("edge-1")
    desk = ClaimDesk(
        world.store, Refusals("registry.refused"), world.clock, ask=lambda _lease: None, is_listed=lambda _ip: False
    )
    here, there = Claim(instance="f" * 32, machine=HERE), Claim(instance="a" * 32, machine=THERE)
    assert desk.decide(lease, here).outcome == "accepted"
    said = NodeStatus(node_id=lease.node_id, online=True, instance=here.instance, metered=is_metered)
    desk.hear(lease, said, is_retained=False)
    desk.hear(lease, NodeStatus(node_id=lease.node_id, online=False, instance=here.instance), is_retained=False)
    assert desk.decide(lease, there).again_s == after_s
    await world.clock.advance(after_s - 1)
    assert desk.decide(lease, there).outcome == "wait"
    await world.clock.advance(1)
    assert desk.decide(lease, there).reason == "MachineChanged"


async def test_a_copy_that_starts_over_and_over_is_one_row_an_hour(tmp_path: Path) -> None:
    """And no change of the directory, of which everybody would have to be told; each is refused and counted."""
    world = World(tmp_path)
    lease, refusals = world.join("edge-1"), Refusals("registry.refused")
    desk = ClaimDesk(world.store, refusals, world.clock, ask=lambda _lease: None, is_listed=lambda _ip: False)
    assert desk.decide(lease, Claim(instance="f" * 32, machine=HERE)).outcome == "accepted"
    epoch = world.store.epoch()

    async def refused_copies(first: int) -> int:
        for number in range(first, first + 50):
            copy = Claim(instance=f"{number:032x}", machine=THERE)
            assert desk.decide(lease, copy).outcome == "wait"
            await world.clock.advance(1)
            desk.hear(lease, NodeStatus(node_id=lease.node_id, online=True, instance="f" * 32), is_retained=False)
            await world.clock.advance(0.5)
            verdict = desk.decide(lease, copy)
            assert (verdict.outcome, verdict.reason) == ("refused", "ClonedNode")
        return [entry["action"] for entry in world.store.history()].count("clone refused")

    assert await refused_copies(0) == 1
    await world.clock.advance(3600)
    assert desk.decide(lease, Claim(instance="f" * 32, machine=HERE)).outcome == "accepted"
    assert await refused_copies(50) == 2
    assert refusals.counts["ClonedNode"] == 100
    assert world.store.epoch() == epoch
    assert len(desk._told_s) == 1
    world.authority.release("edge-1")
    desk.begin_session()
    assert desk._told_s == {}
