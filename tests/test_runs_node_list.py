"""What the head tells of all nodes, who does not belong, and what it waits for on demand."""

from __future__ import annotations

import json
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from head_world import EDGE_1, EDGE_2, ROOT, Head, first, member
from telling import Words, refuses
from test_inside import spec

from edgelink.api import schema
from edgelink.conditions import Status
from edgelink.errors import DeadlineError, UsageError
from edgelink.protocol.payloads import ConditionReport, EdgesOpenTo, NodeStatus
from edgelink.ray_cluster.pause import Pause
from edgelink.ray_cluster.ray_members import RayMember, strangers
from edgelink.ray_cluster.versions import Versions
from edgelink.testing.facts import give

BY_HAND = RayMember("f00", "10.10.0.77", None, True, "laptop", cpus=4)


class World(Head):
    """A head with two edges in Ray: edge-1 with two GPUs, edge-2 not there yet."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.view = self.node.nodes
        give(self.node.base.board, versions=Versions("2.60.0", "3.11.7", {"torch": "2.5.1"}))
        self.ways: list[dict[str, Any]] = []
        self.node.overlay.ways = self._ways  # type: ignore[method-assign]
        self.members = [
            replace(member("10.10.0.2", 0), cpus=8.0),
            replace(member("10.10.0.3", 1, accelerators=2), cpus=4.0),
        ]
        self.enrol(self.own, EDGE_1, EDGE_2)
        self.lists(self.members)

    async def _ways(self) -> list[dict[str, Any]]:
        return self.ways

    def tell(self, node_id: str, *conditions: ConditionReport, **values: Any) -> None:
        told = {"node_id": node_id, "online": True, "conditions": conditions, "ray_version": "2.60.0"}
        self.statuses[node_id] = NodeStatus(**(told | {"python_version": "3.11.7", **values}))

    async def rows(self) -> dict[str, dict[str, Any]]:
        return {node["hostname"]: node for node in (await self.view.list(ROOT, {}))["nodes"]}


def test_the_metrics_count_what_ray_has(world: World) -> None:
    """The same figures as the list; who is missing is one of those that are expected."""
    samples = world.view.samples()
    found = {(sample.metric.name, *sample.labels): sample.value for sample in samples}
    assert found["edgelink_ray_nodes_expected",] == 3
    assert found["edgelink_ray_nodes_alive",] == 2
    assert (found["edgelink_ray_cpus",], found["edgelink_ray_gpus",]) == (12, 2)
    assert found["edgelink_ray_node_alive", "edge-1", "1"] == 1
    assert found["edgelink_ray_node_alive", "edge-2", "2"] == 0
    assert found["edgelink_run_in_progress",] == 0


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_every_node_is_told_with_what_ray_has_of_it(world: World) -> None:
    """CPUs and GPUs count once the node is alive in Ray; who is missing is told with why, and what to do."""
    world.ways = [
        {"overlay_ip": "10.10.0.3", "path": "relayed", "via": "relay", "protocol": None, "latency_ms": 31.5},
    ]
    world.tell(EDGE_1.node_id, packages={"torch": "2.4.0"}, easytier_version="2.6.4", labels={"site": "lab-a"})
    found = await world.view.list(ROOT, {})
    schema.Nodes.model_validate(json.loads(json.dumps({"schema": 1, **found})))
    rows = await world.rows()
    assert found["totals"] == {"enrolled": 3, "without_ray": 0, "nodes": 2, "gpus": 2, "cpus": 12.0}
    cloud, edge_1, edge_2 = rows["cloud"], rows["edge-1"], rows["edge-2"]
    assert (cloud["path"], cloud["ray"], cloud["versions"]["torch"]) == ("self", "alive", "2.5.1")
    assert (edge_1["node_rank"], edge_1["overlay_ip"], edge_1["cpus"], edge_1["gpus"]) == (1, "10.10.0.3", 4.0, 2)
    assert (edge_1["path"], edge_1["via"], edge_1["latency_ms"]) == ("relayed", "relay", 31.5)
    assert edge_1["versions"]["easytier"] == "2.6.4"
    assert edge_1["labels"] == {"site": "lab-a"}
    assert edge_1["wrong"] == ["torch 2.4.0, head has 2.5.1"]
    assert (edge_2["ray"], edge_2["gpus"], edge_2["versions"]) == ("never seen", 0, {})
    assert "`edgelink edge`" in edge_2["wrong"][0]


async def test_what_else_is_wrong_with_a_node_is_told(world: World, words: Words) -> None:
    """A node that is alive in Ray may be open, or run something else than what is installed."""
    trouble = ConditionReport(type="RayCurrent", status=Status.FALSE, reason="InstalledAfterStart", message="torch")
    told_elsewhere = ConditionReport(type="RideThrough", status=Status.FALSE, reason="KernelLacksRtoCap", message="…")
    world.tell(EDGE_1.node_id, trouble, told_elsewhere, packages={"torch": "2.5.1"})
    assert (await world.rows())["edge-1"]["wrong"] == ["InstalledAfterStart: torch"]
    world.tell(EDGE_1.node_id, trouble, online=False, packages={"torch": "2.5.1"})
    (wrong,) = (await world.rows())["edge-1"]["wrong"]
    words.on("nodes", wrong)


async def test_a_paused_node_is_told_with_for_how_long_and_until_when(world: World) -> None:
    """It is not ready, so nobody who waits gets it; its CPUs do not count; Ray gives it up 450 s after its last answer
    at the earliest, with a ride_through of 300 s."""
    world.tell(EDGE_1.node_id, packages={"torch": "2.5.1"})
    since_s = world.clock.monotonic_s()
    await world.clock.advance(130.0)
    give(world.node.base.board, paused={EDGE_1.node_id: Pause(since_s, "echo and registry")})
    world.runs.standing.show_nodes_ready()
    found = await world.view.list(ROOT, {})
    schema.Nodes.model_validate(json.loads(json.dumps({"schema": 1, **found})))
    row = (await world.rows())["edge-1"]
    assert (row["state"], row["ready"], row["ray"]) == ("paused", False, "paused 2m10s")
    assert (row["paused_s"], row["gives_up_in_s"], row["told_by"]) == (130.0, 320.0, "echo and registry")
    assert [text.partition(":")[0] for text in row["wrong"]] == ["paused"]
    assert found["totals"] == {"enrolled": 3, "without_ray": 0, "nodes": 1, "gpus": 0, "cpus": 8.0}
    samples = {(sample.metric.name, *sample.labels): sample.value for sample in world.view.samples()}
    assert samples["edgelink_ray_node_paused_seconds", "edge-1", "1"] == 130
    assert samples["edgelink_ray_node_paused_seconds", "cloud", "0"] == 0
    live = await world.requests.live_nodes(ROOT, {})
    assert [one["hostname"] for one in live["paused"]] == ["edge-1"]
    assert len(live["nodes"]) == 2, "where its processes would be is no other place"
    with pytest.raises(DeadlineError):
        await first(world.view.wait(ROOT, {"goals": {"nodes": 2}, "timeout_s": 0.0}), "done")


@pytest.mark.parametrize(
    ("is_paused", "is_everybody_there", "reason"),
    [
        (True, True, "NodesPaused"),
        (True, False, "NodesPaused"),
        (False, False, "NodesMissing"),
        (False, True, "AllAlive"),
    ],
)
def test_the_head_does_not_say_that_all_is_well_while_a_node_is_paused(
    world: World, is_paused: bool, is_everybody_there: bool, reason: str
) -> None:
    """Also where another one is missing, as a robot that is switched off for the week."""
    give(world.node.base.board, paused={EDGE_1.node_id: Pause(0.0, "echo")} if is_paused else {})
    world.lists([*world.members, *([member("10.10.0.4", 2)] if is_everybody_there else [])])
    assert world.nodes_ready() == reason


def test_nobody_is_paused_while_ray_lists_nobody(world: World) -> None:
    """`edgelink nodes` says that Ray was stopped, and so does the condition."""
    give(world.node.base.board, paused={EDGE_1.node_id: Pause(0.0, "echo")})
    world.lists([])
    assert world.nodes_ready() == "NodesMissing"
    assert [node.state for node in world.runs.standing.nodes() if node.hostname == "edge-1"] == ["silent"]


def test_who_was_switched_off_is_missed_although_ray_has_not_noticed_yet(world: World) -> None:
    """`edgelink nodes` says that it is off. Ray takes minutes where the last word of the node's Ray is lost."""
    world.lists([*world.members, member("10.10.0.4", 2)])
    assert world.nodes_ready() == "AllAlive"
    world.tell(EDGE_1.node_id, online=False, phase="Stopping")
    give(world.node.base.board, stopped=frozenset({EDGE_1.node_id}))
    world.runs.standing.show_nodes_ready()
    assert world.nodes_ready() == "NodesMissing"
    assert [node.state for node in world.runs.standing.nodes() if node.hostname == "edge-1"] == ["off"]


async def test_whether_edges_answer_each_other_is_told(world: World) -> None:
    """As `edgelink nodes --json` has it."""
    words: tuple[EdgesOpenTo, ...] = ("all", "head")
    for word in words:
        give(world.node.base.board, cluster_spec=spec(word))
        found = await world.view.list(ROOT, {})
        schema.Nodes.model_validate(json.loads(json.dumps({"schema": 1, **found})))
        assert found["edges_open_to"] == word


async def test_strangers_in_ray_are_named(world: World) -> None:
    """Ray started by hand, beside EdgeLink's or anywhere: RLinf counts them, and no rank is theirs."""
    second = RayMember("bad", "10.10.0.3", None, True, "edge-1")
    world.lists([*world.members, BY_HAND, second, replace(BY_HAND, node_id="0", alive=False)])
    found = await world.view.list(ROOT, {})
    schema.Nodes.model_validate(json.loads(json.dumps({"schema": 1, **found})))
    told = {node["overlay_ip"]: node["wrong"][0] for node in found["strangers"]}
    assert set(told) == {"10.10.0.77", "10.10.0.3"}
    assert "by hand" in told["10.10.0.77"]
    assert "second Ray on edge-1" in told["10.10.0.3"]
    async with aclosing(world.run(timeout_s=60.0)) as events:  # type: ignore[type-var]
        waiting = await first(events, "waiting")
    assert any("Ray at 10.10.0.77 (laptop): " in note for note in waiting["notes"])
    schema.Waiting.model_validate(json.loads(json.dumps(waiting)))


def test_a_member_that_was_left_out_is_told_apart_from_a_stranger() -> None:
    """Its machine is known: what to do there is another thing."""
    leaving = member("10.10.0.4", 2)
    taking_part = member("10.10.0.3", 1)
    found = strangers([taking_part, leaving], {"10.10.0.3": "edge-1"}, {"10.10.0.4": "edge-2"})
    assert [(who.ip, why.startswith("edge-2 takes no part")) for who, why in found] == [("10.10.0.4", True)]


async def test_a_node_whose_rank_changes_is_named_with_both(world: World, words: Words) -> None:
    """Its former Ray is alive, and what it waits for is the new one."""
    told = [ConditionReport(type=kind, status=Status.TRUE, reason="R", message="m") for kind in _LIFE]
    world.tell(EDGE_2.node_id, *told, packages={"torch": "2.5.1"})
    world.lists([*world.members, member("10.10.0.4", 5)])
    row = (await world.rows())["edge-2"]
    assert all(rank in row["ray"] for rank in "52")
    assert not row["ready"]
    words.on("nodes", row["ray"])


_LIFE = ("Leased", "RegistryConnected", "OverlayUp", "PeersReachable", "RayJoined")


@pytest.mark.parametrize("goals", [{"nodes": 2}, {"gpus": 2}, {"cpus": 12, "nodes": 1}])
async def test_a_goal_that_is_reached_ends_the_wait(world: World, goals: dict[str, int]) -> None:
    """Not everybody has to be there."""
    async with aclosing(world.view.wait(ROOT, {"goals": goals, "timeout_s": 60.0})) as events:  # type: ignore[type-var]
        done = await first(events, "done")
    assert done["totals"] == {"nodes": 2, "gpus": 2, "cpus": 12.0}


async def test_a_goal_that_is_not_reached_names_who_is_missing(world: World, words: Words) -> None:
    """How much is there of how much, every missing node with why, also ranks that nobody holds; 75."""
    with pytest.raises(DeadlineError) as caught:
        await first(world.view.wait(ROOT, {"goals": {"nodes": 4, "gpus": 16}, "timeout_s": 0.0}), "done")
    said = str(caught.value)
    assert all(part in said for part in ("2 of 4 nodes, 2 of 16 gpus", "edge-2 at Started", "rank 3 at Enrolled"))
    words.on("wait", said)
    assert caught.value.exit_code == 75
    everybody = [*world.members, member("10.10.0.4", 2)]
    world.lists(everybody)
    with refuses(DeadlineError, "2 of 16 gpus", reason="NodesMissing") as caught:
        await first(world.view.wait(ROOT, {"goals": {"gpus": 16}, "timeout_s": 0.0}), "done")


@pytest.mark.parametrize("goals", [None, {}, {"tpus": 1}, ["nodes"], {"nodes": "two"}, {"nodes": True}, {"gpus": 0}])
async def test_an_unknown_goal_is_refused(world: World, goals: Any) -> None:
    """Before anything is waited for."""
    with pytest.raises(UsageError, match="not understood"):
        await first(world.view.wait(ROOT, {"goals": goals, "timeout_s": 60.0}), "done")


async def test_a_wait_for_very_many_nodes_costs_little(world: World) -> None:
    """Every local user may ask: more than any network has is refused, and a row a rank is told of the first only."""
    with refuses(UsageError, 65533):
        await first(world.view.wait(ROOT, {"goals": {"nodes": 65_534}, "timeout_s": 60.0}), "done")
    most = {"goals": {"nodes": 65_533}, "timeout_s": 60.0}
    async with aclosing(world.view.wait(ROOT, most)) as events:  # type: ignore[type-var]
        waiting = await first(events, "waiting")
    assert 3 < len(waiting["nodes"]) < 300
