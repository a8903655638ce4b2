"""Nodes that have no Ray by their own configuration: what they say, and what the head makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doctor_world import Machine
from head_world import EDGE_1, EDGE_2, ROOT, Head, first, member
from ray_bench import Bench, edge_bench, firewalls, gcs, head_port  # noqa: F401

from edgelink.api import schema
from edgelink.condition_table import Place, types_on
from edgelink.condition_table.required import RAY_JOINED
from edgelink.conditions import ConditionSet, Phase, Status, derive_phase
from edgelink.config import Config, load_config
from edgelink.doctor import Verdict
from edgelink.errors import ConfigError, EdgelinkError, NoRayError, UsageError
from edgelink.protocol.payloads import ConditionReport, Directory, NodeStatus
from edgelink.ray_cluster.no_ray import NO_RAY_BRIEF
from edgelink.testing import FakeClock
from edgelink.testing.facts import give

OFF = Config.model_validate({"ray": False})
UP = ("Leased", "RegistryConnected", "OverlayUp", "PeersReachable")


def status(node_id: str, **conditions: tuple[Status, str]) -> NodeStatus:
    said = {**dict.fromkeys(UP, (Status.TRUE, "Because")), **conditions}
    reports = tuple(
        ConditionReport(type=kind, status=value, reason=reason, message="of this")
        for kind, (value, reason) in said.items()
    )
    return NodeStatus(node_id=node_id, online=True, phase="Ready", conditions=reports)


def without_ray(node_id: str, **conditions: tuple[Status, str]) -> NodeStatus:
    return status(node_id, RayJoined=(Status.FALSE, "NoRay"), **conditions)


class World(Head):
    """A head in Ray, edge-1 that says it has no Ray, and edge-2 that has."""

    def __init__(self, directory: Path, config: Config | None = None) -> None:
        super().__init__(directory, config=config)
        self.node.overlay.ways = self._no_ways  # type: ignore[method-assign]
        self.enrol(self.own, EDGE_1, EDGE_2)
        self.say(without_ray(EDGE_1.node_id), status(EDGE_2.node_id, RayJoined=(Status.TRUE, "AliveInRay")))
        self.lists([member("10.10.0.2", 0), member("10.10.0.4", 1)])

    async def _no_ways(self) -> list[dict[str, Any]]:
        return []

    def say(self, *told: NodeStatus) -> None:
        """The nodes say this of themselves."""
        table = self.node.base.board.facts.statuses
        self.statuses.update({one.node_id: one for one in told})
        give(self.node.base.board, statuses=replace(table, rows=self.statuses, revision=table.revision + 1))
        self.runs.standing.show_nodes_ready()

    async def rows(self) -> dict[str, dict[str, Any]]:
        return {row["hostname"]: row for row in (await self.node.nodes.list(ROOT, {}))["nodes"]}


def test_the_short_form_switches_ray_off_in_file_and_variable(tmp_path: Path) -> None:
    file = tmp_path / "edgelink.yaml"
    file.write_text("ray: off\n")
    assert not load_config(file, {}).ray.enabled
    file.write_text("ray: {user: trainer}\n")
    assert load_config(file, {}).ray.enabled
    assert not load_config(file, {"EDGELINK_RAY": "off"}).ray.enabled


@pytest.mark.parametrize("place", [Place.HEAD, Place.EDGE])
def test_such_a_node_is_ready_with_overlay_and_peers(place: Place) -> None:
    required, informing = types_on(place, runs_easytier=True, answers_stun=True, has_ray=False)
    conditions = ConditionSet(FakeClock(), required, informing)
    for kind in UP:
        conditions.set_true(kind, "Because", "of this")
    conditions.set_false(RAY_JOINED.name, "NoRay", "none")
    assert derive_phase(conditions.now, is_stopping=False) is Phase.READY
    assert "RayCurrent" not in informing


async def test_no_interpreter_is_looked_for_and_no_ray_starts(edge_bench: Bench) -> None:
    """Not even where the head's cluster spec lists the node. It says so before its first look at anything."""
    edge_bench.config = edge_bench.config.model_copy(
        update={"ray": edge_bench.config.ray.model_copy(update={"enabled": False})}
    )
    edge_bench.hears(6379)
    edge = edge_bench.edge()
    assert edge_bench.reason == "NoRay"
    await edge.reconcile()
    assert edge_bench.reason == "NoRay"
    assert edge.ray.tools is None
    assert edge.ray.node.record is None
    with pytest.raises(NoRayError, match="ray: off"):
        edge.command_environment(0)


async def test_a_ray_of_an_earlier_configuration_is_ended(edge_bench: Bench, head_port: int) -> None:
    edge_bench.hears(head_port)
    await edge_bench.edge().reconcile()
    assert edge_bench.reason == "AliveInRay"
    edge_bench.config = edge_bench.config.model_copy(
        update={"ray": edge_bench.config.ray.model_copy(update={"enabled": False})}
    )
    edge = edge_bench.edge()
    await edge.reconcile()
    assert edge_bench.reason == "NoRay"
    assert not edge.ray.node.owned_pids()


def test_it_takes_no_rank_also_while_it_is_away_and_for_the_next_daemon(tmp_path: Path) -> None:
    """Else the nodes behind it would get other ranks, and new Rays, each time it is switched off."""
    world = World(tmp_path)
    assert world.ranks() == {"cloud": 0, "edge-2": 1}
    assert world.nodes_ready() == "AllAlive"
    away = NodeStatus(node_id=EDGE_1.node_id, online=False)
    world.say(away)
    assert world.ranks() == {"cloud": 0, "edge-2": 1}
    next_daemon = Head(tmp_path)
    next_daemon.statuses[EDGE_1.node_id] = away
    give(next_daemon.node.base.board, directory=Directory(network_id="n", epoch=1, entries=(world.own, EDGE_1, EDGE_2)))
    published = next_daemon.node.base.board.facts.publishable
    assert [entry.hostname for entry, _ in published] == ["cloud", "edge-2"], "before it has looked at anybody"
    next_daemon.enrol(next_daemon.own, EDGE_1, EDGE_2)
    assert next_daemon.ranks() == {"cloud": 0, "edge-2": 1}
    world.say(status(EDGE_1.node_id, RayJoined=(Status.FALSE, "NotAMember")))
    assert world.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2}


@pytest.mark.parametrize(
    ("told", "silent", "ready", "in_words"),
    [
        (without_ray(EDGE_1.node_id), [], True, NO_RAY_BRIEF),
        (without_ray(EDGE_1.node_id, OverlayUp=(Status.FALSE, "DeviceMissing")), [], False, "overlay down"),
        (without_ray(EDGE_1.node_id), ["edge-1"], False, "no answer"),
        (NodeStatus(node_id=EDGE_1.node_id, online=False), [], False, "offline"),
    ],
)
async def test_the_list_of_nodes_says_how_it_is(
    tmp_path: Path, told: NodeStatus, silent: Iterable[str], ready: bool, in_words: str
) -> None:
    world = World(tmp_path)
    world.say(told)
    give(world.node.base.board, silent=dict.fromkeys(silent, 0.0))
    found = await world.node.nodes.list(ROOT, {})
    schema.Nodes.model_validate(json.loads(json.dumps({"schema": 1, **found})))
    row = (await world.rows())["edge-1"]
    assert (row["ready"], row["has_ray"], row["node_rank"]) == (ready, False, None)
    assert in_words in row["ray"]
    assert (found["totals"]["enrolled"], found["totals"]["without_ray"], found["totals"]["nodes"]) == (2, 1, 2)
    metrics = {(one.metric.name, *one.labels): one.value for one in world.node.nodes.samples()}
    assert metrics["edgelink_node_without_ray_ready", "edge-1"] == ready
    assert metrics["edgelink_ray_nodes_expected",] == 2


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [({"nodes": ["edge-1"]}, UsageError), ({"cluster": {"num_nodes": 3}}, ConfigError)],
)
async def test_a_run_that_wants_it_is_refused_before_anything_starts(
    tmp_path: Path, wanted: dict[str, Any], kind: type[EdgelinkError]
) -> None:
    world = World(tmp_path)
    with pytest.raises(kind, match=f"edge-1 has {NO_RAY_BRIEF}"):
        await first(world.run(**wanted), "granted")
    assert world.runs.lock.holder is None


@pytest.mark.parametrize("has_ray", [True, False])
def test_the_head_knows_who_has_no_ray_also_without_one_of_its_own(tmp_path: Path, has_ray: bool) -> None:
    world = World(tmp_path, Config.model_validate({"ray": {"enabled": has_ray}}))
    world.runs.standing.show_nodes_ready()
    assert world.node.base.board.facts.without_ray == {EDGE_1.node_id}


async def test_a_head_without_ray_has_no_cluster_and_grants_no_run(tmp_path: Path) -> None:
    world = World(tmp_path, OFF)
    assert world.ranks() == {}
    assert world.nodes_ready() == "NoRay"
    rows = await world.rows()
    assert {name: row["has_ray"] for name, row in rows.items()} == {"cloud": False, "edge-1": False}
    with pytest.raises(NoRayError):
        await first(world.run(), "granted")


def test_doctor_leaves_ray_out_there(tmp_path: Path) -> None:
    """Neither an interpreter nor versions are judged, nor memory for an object store; nothing is wrong for it."""
    machine = Machine(tmp_path)
    machine.config["ray"]["enabled"] = False
    machine.probes.interpreter = None  # type: ignore[assignment,method-assign]
    findings = machine.findings()
    left_out = {name for name, finding in findings.items() if "ray: off" in finding.message}
    assert {"interpreter", "versions", "ray-disk", "shared-memory", "leftover-ray-token"} <= left_out
    assert all(findings[name].verdict is Verdict.SKIPPED for name in left_out)
    assert machine.wrong() == {}
