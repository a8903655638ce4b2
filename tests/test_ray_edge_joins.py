"""An edge joins the head's Ray, adopts what runs, and follows a new head; with a pretended Ray."""

from __future__ import annotations

import asyncio
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from ray_bench import TOKEN, Bench, StandInGcs, edge_bench, firewalls, gcs, head_port  # noqa: F401
from telling import refuses

from edgelink.errors import HeadUnreachableError, RayClusterError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role
from edgelink.ray_cluster.local_ray import noted_user_uid
from edgelink.ray_cluster.versions import Versions
from edgelink.testing.clock import eventually


async def test_whom_ray_runs_as_is_known_without_a_daemon(tmp_path: Path) -> None:
    """`edgelink report` reads no log that is not that user's."""
    bench = Bench(tmp_path, Role.EDGE)
    assert noted_user_uid(bench.paths) is None
    tools = await bench.edge().ray.prepare()
    assert noted_user_uid(bench.paths) == tools.user.uid


async def test_edge_waits_for_the_head(edge_bench: Bench, firewalls: list[str]) -> None:
    """No cluster spec is no error: HeadNotSeen, with the firewall in place already and Ray's versions known."""
    edge = edge_bench.edge()
    await edge.reconcile()
    assert edge_bench.reason == "HeadNotSeen"
    assert len(firewalls) == 1
    assert edge_bench.board.facts.versions == Versions("2.60.0", "3.11.7", {})
    assert edge_bench.fake.starts == []


async def test_edge_joins_what_the_spec_says(edge_bench: Bench, head_port: int) -> None:
    """Address, rank and token of the spec reach `ray start`; joined means that Ray lists us."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert f"--address=127.0.0.1:{head_port}" in edge_bench.fake.starts[0]
    environment = edge_bench.fake.environment
    assert environment["RLINF_NODE_RANK"] == "1"
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(edge_bench.token_file)
    assert stat.S_IMODE(edge_bench.token_file.stat().st_mode) == 0o600
    assert edge_bench.token_file.read_text() == TOKEN
    assert TOKEN not in str(edge_bench.fake.starts) + str(environment) + str(edge_bench.history)
    assert [question.split()[1] for question in edge_bench.fake.questions] == ["bury", "wait-alive"]
    assert edge.command_environment(0)["RAY_ADDRESS"] == f"127.0.0.1:{head_port}"
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1


async def test_while_the_overlay_comes_up_ray_is_imported(edge_bench: Bench, head_port: int) -> None:
    """One helper is started ahead, and has the first question; the second is another's."""
    edge_bench.hears(head_port)
    edge_bench.give(peers_connected=False)
    edge = edge_bench.edge()
    for _ in range(3):
        await edge.reconcile()
    assert edge_bench.reason == "WaitingForOverlay"
    edge_bench.give(peers_connected=True)
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert [question.split()[1] for question in edge_bench.fake.questions] == ["bury", "wait-alive"]
    assert edge_bench.fake.helpers == ["later", "wait-alive"]


async def test_a_helper_that_waited_in_vain_is_replaced(edge_bench: Bench, head_port: int) -> None:
    """It is gone, or of an interpreter that cannot; nothing is lost but its half second."""
    edge_bench.hears(head_port)
    edge_bench.give(peers_connected=False)
    (edge_bench.fake.directory / "impatient").touch()
    edge = edge_bench.edge()
    await edge.reconcile()
    edge_bench.give(peers_connected=True)
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert edge_bench.fake.helpers == ["later", "bury", "wait-alive"]


async def test_edge_does_not_start_before_the_overlay(edge_bench: Bench, head_port: int) -> None:
    """Ray's addresses would not exist yet."""
    edge_bench.hears(head_port)
    edge_bench.give(peers_connected=False)
    await edge_bench.edge().reconcile()
    assert edge_bench.reason == "WaitingForOverlay"
    assert edge_bench.fake.starts == []


async def test_edge_leaves_a_running_ray_alone(edge_bench: Bench, head_port: int) -> None:
    """A new daemon adopts, also while overlay, registry and head are all away."""
    edge_bench.hears(head_port)
    await edge_bench.edge().reconcile()
    edge_bench.give(cluster_spec=None, peers_connected=False)
    await edge_bench.edge().reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 1


@pytest.mark.parametrize("change", [{"incarnation": "two"}, {"node_rank": 2, "epoch": 2}])
async def test_edge_follows_a_new_head_and_a_new_rank(
    edge_bench: Bench, head_port: int, change: dict[str, Any]
) -> None:
    """Another life of the head, or another rank of ours, starts Ray anew; an epoch alone does not."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    edge_bench.hears(head_port, epoch=7)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 1
    edge_bench.hears(head_port, **change)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 2
    assert edge_bench.reason == "AliveInRay"


async def test_edge_does_not_wait_for_a_head_that_was_replaced(edge_bench: Bench, head_port: int) -> None:
    """A head that ends while an edge joins it leaves `ray start` hanging; the next head is joined at once."""
    hangs = edge_bench.fake.directory / "hangs"
    hangs.touch()
    edge = edge_bench.edge()
    edge_bench.hears(head_port)

    async def replace_head() -> None:
        await eventually(lambda: edge_bench.fake.starts)
        edge.wakeup.set()  # the same head said something else: no reason to begin again
        await eventually(lambda: not edge.wakeup.is_set)
        edge_bench.hears(head_port, incarnation="two", epoch=2)
        edge.wakeup.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replace_head())
        with refuses(RayClusterError, reason="HeadReplaced"):
            await edge.reconcile()
    assert edge.ray.node.owned_pids() == []
    hangs.unlink()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 2


async def test_edge_ends_the_ray_of_a_lost_state_directory(edge_bench: Bench, head_port: int) -> None:
    """Before anything else, also while there is no head to join: what nobody remembers would hold ports and memory."""
    edge_bench.hears(head_port)
    await edge_bench.edge().reconcile()
    shutil.rmtree(edge_bench.paths.state)
    edge_bench.paths.state.mkdir()
    edge_bench.give(cluster_spec=None)
    edge_bench.key = NodeKey.generate()
    successor = edge_bench.edge()
    await successor.reconcile()
    assert successor.ray.node.owned_pids() == []
    assert edge_bench.reason == "HeadNotSeen"


async def test_a_join_that_nobody_woke_leaves_the_pause_after_it(
    edge_bench: Bench, head_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking at the head now and then is no wake-up, which would skip the back-off."""
    monkeypatch.setattr("edgelink.ray_cluster.edge_reconciler._ASK_HEAD_S", 0.01)
    edge_bench.hears(head_port)
    (edge_bench.fake.directory / "fails").touch()
    edge = edge_bench.edge()
    with pytest.raises(RayClusterError, match="no such luck"):
        await edge.reconcile()
    assert not edge.wakeup.is_set


async def test_an_adopted_ray_is_asked_about_once_the_overlay_is_up(edge_bench: Bench, head_port: int) -> None:
    """Before that nobody could answer; the Ray itself is left alone."""
    edge_bench.hears(head_port)
    await edge_bench.edge().reconcile()
    asked = len(edge_bench.fake.questions)
    edge_bench.give(peers_connected=False)
    successor = edge_bench.edge()
    await successor.reconcile()
    assert (edge_bench.reason, len(edge_bench.fake.questions)) == ("WaitingForOverlay", asked)
    edge_bench.give(peers_connected=True)
    await successor.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 1


async def test_edge_does_not_wait_for_a_gcs_that_was_replaced(edge_bench: Bench, gcs: StandInGcs) -> None:
    """The same without a cluster spec that tells of it: the GCS at the head's address is another one now."""
    hangs = edge_bench.fake.directory / "hangs"
    hangs.touch()
    edge = edge_bench.edge()
    edge_bench.hears(gcs.port)

    async def replace_gcs() -> None:
        await eventually(lambda: edge_bench.fake.starts)
        gcs.refuses = True
        edge.wakeup.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(replace_gcs())
        with pytest.raises(RayClusterError) as caught:
            await edge.reconcile()
    assert caught.value.condition_reason == "HeadReplaced"
    assert edge.ray.node.owned_pids() == []


async def test_edge_takes_the_heads_ride_through(edge_bench: Bench, head_port: int) -> None:
    """Ray's patience is the spec's; another value starts Ray anew, and commands run with the same."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    before = int(edge_bench.fake.environment["RAY_gcs_rpc_server_reconnect_timeout_s"])
    edge_bench.hears(head_port, ride_through_s=3000, epoch=2)
    await edge.reconcile()
    assert len(edge_bench.fake.starts) == 2
    after = edge_bench.fake.environment["RAY_gcs_rpc_server_reconnect_timeout_s"]
    assert before < 3000 < int(after)
    assert edge.command_environment(0)["RAY_gcs_rpc_server_reconnect_timeout_s"] == after


async def test_why_ray_cannot_be_asked_is_told(edge_bench: Bench, head_port: int) -> None:
    """A broken package of the user's is no head that is away; neither before the start nor after it."""
    broken = edge_bench.fake.directory / "broken"
    broken.write_text("ImportError: cannot import name 'x' from 'google.protobuf'\n\n")
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    with refuses(HeadUnreachableError, "ImportError: ", "'google.protobuf'"):
        await edge.reconcile()
    assert edge_bench.fake.starts == []
    broken.unlink()
    (edge_bench.fake.directory / "unlisted").touch()
    with pytest.raises(RayClusterError):
        await edge.reconcile()
    broken.write_text("RpcError: token refused")
    with refuses(RayClusterError, "127.0.0.1", "node rank 1", "RpcError: token refused", reason="NotListedByRay"):
        await edge.reconcile()


async def test_edge_is_not_joined_until_ray_lists_it(edge_bench: Bench, head_port: int) -> None:
    """A raylet that runs is no proof."""
    (edge_bench.fake.directory / "unlisted").touch()
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    with pytest.raises(RayClusterError) as caught:
        await edge.reconcile()
    assert caught.value.condition_reason == "NotListedByRay"
    (edge_bench.fake.directory / "unlisted").unlink()
    await edge.reconcile()
    assert edge_bench.reason == "AliveInRay"
    assert len(edge_bench.fake.starts) == 1


async def test_stop_ends_ray_then_the_firewall(edge_bench: Bench, head_port: int, firewalls: list[str]) -> None:
    """Nothing is left, and at no moment does Ray stand without its firewall."""
    edge_bench.hears(head_port)
    edge = edge_bench.edge()
    await edge.reconcile()
    await edge.stop()
    assert edge.ray.node.owned_pids() == []
    assert firewalls[-1] == "remove"
    assert not edge_bench.token_file.exists()
