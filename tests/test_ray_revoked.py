"""A member of the Ray cluster is put out of the network: no token for it, a burial at once, and a new token in time."""

from __future__ import annotations

import pytest
from ray_bench import Bench, firewalls, head_bench  # noqa: F401

from edgelink.errors import HeadUnreachableError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import ClusterMember, Role
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.testing.clock import FakeClock
from edgelink.testing.payloads import entry_of


def member_of(bench: Bench, key: NodeKey) -> ClusterMember:
    found = bench.published[-1].member(key.node_id)
    assert found is not None
    return found


async def test_no_token_is_sealed_to_who_was_put_out(head_bench: Bench) -> None:
    """Under a run it keeps its rank, so that nobody else's changes; what the others get is theirs."""
    staying, stolen = NodeKey.generate(), NodeKey.generate()
    for rank, key in enumerate((staying, stolen), start=1):
        head_bench.ranks += ((entry_of(head_bench.lease_of(key, Role.EDGE, rank)), rank),)
    head = head_bench.head()
    await head.reconcile()
    assert member_of(head_bench, stolen).sealed_ray_token is not None
    head_bench.grant(is_granted=True)
    head_bench.put_out(stolen.node_id)
    await head.reconcile()
    assert len(head_bench.published) == 2
    assert member_of(head_bench, stolen).sealed_ray_token is None
    assert member_of(head_bench, stolen).node_rank == 2
    sealed = member_of(head_bench, staying).sealed_ray_token
    assert sealed is not None
    assert staying.unseal(sealed).decode() == (head_bench.paths.state / "ray_token").read_text()
    assert len(head_bench.fake.starts) == 1


async def test_restarts_reach_the_others_while_somebody_was_put_out(head_bench: Bench) -> None:
    """A change of the configuration waits for the run; what somebody asks for meanwhile is published all the same."""
    staying, stolen = NodeKey.generate(), NodeKey.generate()
    for rank, key in enumerate((staying, stolen), start=1):
        head_bench.ranks += ((entry_of(head_bench.lease_of(key, Role.EDGE, rank)), rank),)
    await head_bench.head().reconcile()
    head_bench.config = head_bench.config.model_copy(update={"ride_through": 60})
    head_bench.grant(is_granted=True)
    head_bench.put_out(stolen.node_id)
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_restart(staying.node_id)
    await head.reconcile()
    assert member_of(head_bench, staying).ray_restarts == 1
    assert member_of(head_bench, stolen).sealed_ray_token is None


async def test_who_was_put_out_is_buried_at_once(head_bench: Bench) -> None:
    """Ray need not find out for itself; one that merely left is given time to say goodbye."""
    stolen = NodeKey.generate()
    lease = head_bench.lease_of(stolen, Role.EDGE, 1)
    head_bench.ranks += ((entry_of(lease), 1),)
    head = head_bench.head()
    await head.reconcile()
    head_bench.give(
        ray_members=(
            RayMember("beef", str(lease.overlay_ip), 1, alive=True, hostname="edge-1"),
            RayMember("cafe", "10.99.0.77", 5, alive=True, hostname="left"),
        )
    )
    head_bench.put_out(stolen.node_id)
    await head.reconcile()
    burials = [question for question in head_bench.fake.questions if " bury " in question]
    assert len(burials) == 1
    assert "--id beef" in burials[0]
    assert "cafe" not in burials[0]


async def test_a_burial_that_failed_is_tried_again_a_minute_later(
    head_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raylet of a node that takes no part lives on, and its own health checks find nothing wrong."""
    clock = head_bench.clock = FakeClock()
    stolen = NodeKey.generate()
    lease = head_bench.lease_of(stolen, Role.EDGE, 1)
    head_bench.ranks += ((entry_of(lease), 1),)
    head = head_bench.head()
    await head.reconcile()
    told: list[tuple[object, ...]] = []

    async def unanswered(_tools: object, *arguments: object, **_options: object) -> str:
        told.append(arguments)
        raise HeadUnreachableError("no answer")

    head_bench.give(ray_members=(RayMember("beef", str(lease.overlay_ip), 1, alive=True, hostname="edge-1"),))
    head_bench.put_out(stolen.node_id)
    with monkeypatch.context() as patch:
        patch.setattr(head.ray, "bury", unanswered)
        for passed_s in (0, 10, 40):
            await clock.advance(passed_s)
            await head.reconcile()
        assert told == [("--id", "beef")]
        await clock.advance(11)
        await head.reconcile()
        assert told == [("--id", "beef")] * 2
    await clock.advance(61)
    await head.reconcile()
    assert "--id beef" in head_bench.fake.questions[-1]


async def test_the_token_follows_at_the_next_start_of_ray(head_bench: Bench) -> None:
    """Never under a Ray that runs: its workers keep what they were given. Then everybody gets the new one."""
    staying = NodeKey.generate()
    head_bench.ranks += ((entry_of(head_bench.lease_of(staying, Role.EDGE, 1)), 1),)
    head = head_bench.head()
    await head.reconcile()
    file, copy = head_bench.paths.state / "ray_token", head_bench.paths.ray_token_copy
    first = file.read_text()
    head_bench.give_secret(2)
    await head.reconcile()
    assert file.read_text() == copy.read_text() == first
    head.wishes.want_restart(head_bench.key.node_id)
    await head.reconcile()
    second = file.read_text()
    assert len(head_bench.fake.starts) == 2
    assert second == copy.read_text() != first
    assert file.stat().st_mode & 0o777 == 0o600
    sealed = member_of(head_bench, staying).sealed_ray_token
    assert sealed is not None
    assert staying.unseal(sealed).decode() == second
    successor = head_bench.head()
    successor.wishes.want_restart(head_bench.key.node_id)
    await successor.reconcile()
    assert file.read_text() == second, "once a change"
