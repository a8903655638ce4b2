"""What an edge refuses to join, by name; with a pretended Ray."""

from __future__ import annotations

import socket

import pytest
from ray_bench import Bench, edge_bench, firewalls, gcs, head_port  # noqa: F401
from telling import refuses

from edgelink.errors import (
    ConfigError,
    HeadUnreachableError,
    PortBusyError,
    RayClusterError,
    UntrustedError,
    VersionMismatchError,
)
from edgelink.protocol.keys import NodeKey
from edgelink.ray_cluster.versions import Versions
from edgelink.testing import reserved_port


async def test_edge_that_is_left_out_stops_ray(edge_bench: Bench, head_port: int) -> None:
    """Who is no member any more takes no part."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge_bench.hears(head_port, members=())
    await edge.reconcile()
    assert edge_bench.reason == "NotAMember"
    assert edge.ray.node.owned_pids() == []
    with pytest.raises(RayClusterError):
        edge.command_environment(0)


async def test_edge_refuses_a_ride_through_of_its_own(edge_bench: Bench, head_port: int) -> None:
    """One network, one value: both are named, nothing is started. The same value is no disagreement."""
    edge_bench.config = edge_bench.config.model_copy(update={"ride_through": 60})
    edge_bench.hears(head_port, ride_through_s=300)
    with refuses(ConfigError, "ride_through", "1 min", "5 min", reason="RideThroughDisagrees"):
        await edge_bench.edge().reconcile()
    assert edge_bench.fake.starts == []
    edge_bench.hears(head_port, ride_through_s=60)
    await edge_bench.edge().reconcile()
    assert edge_bench.reason == "AliveInRay"


@pytest.mark.parametrize("change", [{"ray_version": "2.59.0"}, {"python_version": "3.12.1"}])
async def test_edge_refuses_other_versions(edge_bench: Bench, head_port: int, change: dict[str, str]) -> None:
    """Both sides' versions are in the message."""
    edge_bench.hears(head_port, **change)
    with pytest.raises(VersionMismatchError) as caught:
        await edge_bench.edge().reconcile()
    assert "2.60.0" in str(caught.value)
    assert next(iter(change.values())) in str(caught.value)


async def test_edge_joins_once_the_right_version_is_installed(edge_bench: Bench, head_port: int) -> None:
    """Nobody has to restart its daemon: the interpreter is asked again."""
    edge_bench.fake.install(ray="2.59.0", torch="2.4.0")
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    with pytest.raises(VersionMismatchError):
        await edge.reconcile()
    told = edge_bench.board.facts.versions
    assert told == Versions("2.59.0", "3.11.7", {"torch": "2.4.0"}), "told while it is refused"
    edge_bench.fake.install()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert edge_bench.board.facts.versions.ray == "2.60.0"


async def test_edge_does_not_run_into_a_dead_head(edge_bench: Bench, head_port: int) -> None:
    """`ray start` would wait for ever: the port is tried first."""
    with reserved_port() as port, pytest.raises(HeadUnreachableError):
        edge_bench.hears(port)
        await edge_bench.edge().reconcile()
    assert edge_bench.fake.starts == []


async def test_edge_does_not_say_that_it_joins_while_a_port_is_taken(edge_bench: Bench, head_port: int) -> None:
    """Each try would hide for a moment what a person has to mend; once it is mended, `ray start` is told."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    with socket.create_server(("127.0.0.1", edge_bench.config.ray.node_manager_port)), pytest.raises(PortBusyError):
        await edge.reconcile()
    assert edge_bench.history == []
    await edge.reconcile()
    assert [condition.reason for condition in edge_bench.history] == ["Joining", "AliveInRay"]


async def test_edge_refuses_a_token_for_somebody_else(edge_bench: Bench, head_port: int) -> None:
    """What cannot be unsealed is not used."""
    edge_bench.hears(head_port, sealed_for=NodeKey.generate())
    with pytest.raises(UntrustedError):
        await edge_bench.edge().reconcile()
