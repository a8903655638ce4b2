"""Ray is stopped and restarted because somebody asked for it, on the head and on edges; with a pretended Ray."""

from __future__ import annotations

from typing import Any

import pytest
from ray_bench import Bench, edge_bench, firewalls, gcs, head_bench, head_port  # noqa: F401

from edgelink.errors import VersionMismatchError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.testing.clock import FakeClock
from edgelink.testing.payloads import entry_of


async def test_a_ray_that_was_upgraded_is_told_of_at_the_restart(head_bench: Bench) -> None:
    """Edges are told the version that runs: by that of the daemon's first look, each would be refused for ever."""
    clock = head_bench.clock = FakeClock()
    head_bench.fake.install(ray="2.50.0")
    head = head_bench.head()
    await head.reconcile()
    assert head_bench.published[-1].ray_version == "2.50.0"
    assert not head_bench.published[-1].token_auth
    await clock.advance(3600)
    head_bench.fake.install(ray="2.60.0")
    await head.reconcile()
    assert head_bench.published[-1].ray_version == "2.50.0", "the former one still runs"
    head.wishes.want_restart(head_bench.key.node_id)
    await head.reconcile()
    assert head_bench.published[-1].ray_version == "2.60.0"
    assert head_bench.published[-1].token_auth
    assert head_bench.reason == "AliveInRay"


async def test_an_edge_looks_at_its_ray_before_each_join(edge_bench: Bench, head_port: int) -> None:
    """One that was upgraded meanwhile would fail inside of `ray start`, without a word that helps."""
    clock = edge_bench.clock = FakeClock()
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    await clock.advance(3600)
    edge_bench.fake.install(ray="2.61.0")
    edge_bench.hears(head_port, incarnation="two", epoch=2)
    with pytest.raises(VersionMismatchError, match=r"2\.61\.0"):
        await edge.reconcile()


async def test_edge_rests_while_the_head_wants_no_ray(edge_bench: Bench, head_port: int) -> None:
    """`stop --all` travels in the spec: Ray ends, nothing else does; the next life of the head is joined again."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge_bench.hears(head_port, ray_wanted=False, epoch=2)
    await edge.reconcile()
    assert edge_bench.reason == "RayStopped"
    assert "restart-ray --all" in edge_bench.history[-1].message
    assert edge.ray.node.owned_pids() == []
    successor = edge_bench.edge()
    await successor.reconcile()
    assert len(edge_bench.fake.starts) == 1, "a new daemon leaves it stopped, too"
    edge_bench.hears(head_port, incarnation="two", epoch=3)
    await successor.reconcile()
    assert edge_bench.reason == "AliveInRay"


async def test_edge_restarts_ray_when_the_head_counts_it_up(edge_bench: Bench, head_port: int) -> None:
    """Once a count, also across daemons; a count that was there before anything ran asks for nothing."""
    edge_bench.hears(head_port, ray_restarts=3)
    edge = edge_bench.edge()
    await edge.reconcile()
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1
    edge_bench.hears(head_port, ray_restarts=4, epoch=2)
    successor = edge_bench.edge()
    await successor.reconcile()
    await successor.reconcile()
    assert len(edge_bench.fake.starts) == 2
    assert "the head" in [c for c in edge_bench.history if c.reason == "RayReplaced"][-1].message


async def test_edge_restarts_ray_when_asked_here(edge_bench: Bench, head_port: int) -> None:
    """`edgelink restart-ray` on the edge itself: once."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge.restart("asked for here")
    await edge.reconcile()
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 2
    assert edge_bench.reason == "AliveInRay"


async def test_a_restart_asked_for_during_a_join_is_that_join(
    edge_bench: Bench, head_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What starts after it was asked for is new; so is what follows a rest."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    bury = edge.ray.bury

    async def asked_meanwhile(*arguments: Any, **options: Any) -> object:
        edge.restart("asked for here")
        return await bury(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(edge.ray, "bury", asked_meanwhile)
        await edge.reconcile()
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1
    edge.restart("asked for here")
    edge_bench.hears(head_port, ray_wanted=False, epoch=2)
    await edge.reconcile()
    assert edge._take_restart() == ""


def listed(*rows: tuple[str, int]) -> tuple[RayMember, ...]:
    return tuple(RayMember(f"{ip}-{rank}", ip, rank, alive=True, hostname="host") for ip, rank in rows)


async def test_head_ends_its_ray_after_the_edges(head_bench: Bench) -> None:
    """First it says so, then it waits for the others, then it ends its own; a successor leaves it so."""
    other = NodeKey.generate()
    head_bench.ranks += ((entry_of(head_bench.lease_of(other, Role.EDGE, 1)), 1),)
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_ray(False)
    head_bench.give(ray_members=listed(("127.0.0.1", 0), ("10.10.0.3", 1)))
    await head.reconcile()
    assert head_bench.published[-1].ray_wanted is False
    assert head_bench.reason == "RayStopping"
    assert "10.10.0.3" in head_bench.history[-1].message
    assert head.ray.node.is_running
    head_bench.give(ray_members=listed(("127.0.0.1", 0)))
    await head.reconcile()
    assert head_bench.reason == "RayStopped"
    assert head.ray.node.owned_pids() == []
    successor = head_bench.head()
    await successor.reconcile()
    assert head_bench.reason == "RayStopped"
    assert head_bench.published[-1] == head_bench.published[-2], "said again, for a relay that has forgotten it"
    successor.wishes.want_ray(True)
    await successor.reconcile()
    assert head_bench.reason == "AliveInRay"
    assert head_bench.published[-1].ray_wanted
    sealed = head_bench.published[-1].member(other.node_id)
    assert sealed is not None
    assert sealed.sealed_ray_token is not None


async def test_head_does_not_wait_for_ever_for_an_edge(head_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose daemon is gone keeps its Ray until it is back."""
    monkeypatch.setattr("edgelink.ray_cluster.head_reconciler.EDGES_STOP_S", 0.0)
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_ray(False)
    head_bench.give(ray_members=listed(("127.0.0.1", 0), ("10.10.0.3", 1)))
    await head.reconcile()
    assert head_bench.reason == "RayStopped"


async def test_head_does_not_wait_for_ever_for_an_adopted_gcs_that_does_not_answer(
    head_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline holds also where nobody can be asked who is left."""
    monkeypatch.setattr("edgelink.ray_cluster.head_reconciler.EDGES_STOP_S", 0.0)
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_ray(False)
    (head_bench.fake.directory / "unlisted").touch()
    successor = head_bench.head()
    await successor.reconcile()
    assert head_bench.reason == "RayStopped"
    assert successor.ray.node.owned_pids() == []


async def test_head_restarts_its_ray_when_asked(head_bench: Bench) -> None:
    """A new incarnation, which every edge follows; once, also across daemons."""
    head = head_bench.head()
    await head.reconcile()
    head.wishes.want_restart(head_bench.key.node_id)
    await head.reconcile()
    await head_bench.head().reconcile()
    assert len(head_bench.fake.starts) == 2
    assert len({spec.incarnation for spec in head_bench.published}) == 2
    (member,) = head_bench.published[-1].members
    assert member.ray_restarts == 1


async def test_a_forced_restart_reaches_an_edge_while_a_change_waits_for_the_run(head_bench: Bench) -> None:
    """Only the counter goes out: what else has changed here still waits."""
    other = NodeKey.generate()
    head_bench.ranks += ((entry_of(head_bench.lease_of(other, Role.EDGE, 1)), 1),)
    await head_bench.head().reconcile()
    head_bench.config = head_bench.config.model_copy(
        update={"ray": head_bench.config.ray.model_copy(update={"num_cpus": 1})}
    )
    head_bench.grant(is_granted=True)
    head = head_bench.head()
    await head.reconcile()
    assert {spec.epoch for spec in head_bench.published} == {1}
    head.wishes.want_restart(other.node_id)
    await head.reconcile()
    await head.reconcile()
    assert len(head_bench.fake.starts) == 1
    assert [spec.epoch for spec in head_bench.published].count(2) == 1
    member = head_bench.published[-1].member(other.node_id)
    assert member is not None
    assert member.ray_restarts == 1
    assert member.sealed_ray_token is not None
