"""restart-ray and stop --all on the head: who is asked, who is waited for, and what a run in progress prevents."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from sim import Box, Sim, all_ready, ready, story
from sim_machine import GCS, RAYLET

from edgelink.api.server import Caller
from edgelink.daemon.head import Head
from edgelink.errors import ExitCode
from edgelink.runs.cluster_ray import at_the_end, stopped
from edgelink.runs.readiness import NodeReadiness
from edgelink.runs.runs import Runs


def raylets(*boxes: Box) -> list[int]:
    """How many began on each."""
    return [box.machine.history.count(f"+{RAYLET}") for box in boxes]


def waited_for(event: dict[str, Any]) -> list[str]:
    return [node["hostname"] for node in event["nodes"] if not node["ready"]]


async def waits(head: Box, path: str, **body: Any) -> tuple[list[list[str]], dict[str, Any]]:
    """Who was waited for, one change after the other, and the last word."""
    *events, last = await head.told("POST", path, **body)
    found = [waited_for(event) for event in events]
    return [names for number, names in enumerate(found) if number == 0 or names != found[number - 1]], last


def runs_of(head: Box) -> Runs:
    assert isinstance(head.daemon, Head)
    return head.daemon.runs


@contextmanager
def running(head: Box) -> Iterator[subprocess.Popen[bytes]]:
    """A run in progress: the process whose run it is."""
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            with runs_of(head).lock.held_by(Caller(child.pid, os.geteuid(), os.getegid())):
                yield child
        finally:
            child.kill()


@story
async def test_a_restart_of_one_node_waits_for_its_new_ray(sim: Sim) -> None:
    """Nobody else's is touched; a Ray that was there before does not count as new."""
    _, *nodes = boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    first, *events, done = await nodes[0].told("POST", "/restart-ray", node="edge-1")
    assert first["nodes"][0]["ready"] is False
    assert [waited_for(event) for event in (first, *events)] == [["edge-1"]] * len(events) + [[]]
    assert done == {"event": "done", "absent": []}
    await all_ready(sim, boxes)
    assert raylets(*nodes) == [1, 2, 1]
    assert runs_of(nodes[0]).lock.holder is None


@story
async def test_a_restart_of_the_head_is_everybodys(sim: Sim) -> None:
    """The edges follow; who is offline is named, not waited for."""
    _, *nodes = boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    head, _, away = nodes
    await away.stop()
    await sim.until(head.has("NodesReady", "NodesMissing"), within_s=10)
    for number, name in ((2, None), (3, "cloud")):
        waited, done = await waits(head, "/restart-ray", node=name)
        assert waited == [["cloud", "edge-1"], ["edge-1"], []]
        assert done == {"event": "done", "absent": ["edge-2"]}
        assert raylets(*nodes) == [number, number, 1]
    away.start()
    await all_ready(sim, boxes)


@story
async def test_a_restart_that_does_not_come_ends_with_who_is_missing(sim: Sim) -> None:
    """75 at the deadline; the wish stays."""
    _, *nodes = boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    edge = nodes[1]
    edge.machine.is_stopped = True
    *_, refusal = await nodes[0].told("POST", "/restart-ray", node=edge.node_id, timeout_s=2)
    assert "edge-1 at RayJoined" in refusal["error"]
    assert refusal["exit_code"] == ExitCode.TRY_AGAIN
    assert raylets(*nodes) == [1, 1, 1]
    edge.machine.is_stopped = False
    await sim.until(lambda: raylets(*nodes) == [1, 2, 1], within_s=30)
    await all_ready(sim, boxes)


@story
async def test_an_unknown_node_is_refused_with_the_known_ones(sim: Sim) -> None:
    """A slip of the fingers restarts nobody."""
    _, *nodes = await ready(sim, "cloud", "edge-1", "edge-2")
    (refusal,) = await nodes[0].told("POST", "/restart-ray", node="edge-3")
    assert "cloud, edge-1, edge-2" in refusal["hint"]
    await sim.passes(30)
    assert raylets(*nodes) == [1, 1, 1]


@story
async def test_a_run_in_progress_is_named_and_not_disturbed(sim: Sim) -> None:
    """Unless it is meant: --force."""
    _, *nodes = await ready(sim, "cloud", "edge-1")
    with running(nodes[0]) as run:
        (refusal,) = await nodes[0].told("POST", "/restart-ray", node="edge-1")
        assert refusal["reason"] == "RunInProgress"
        assert f"pid {run.pid}" in refusal["error"]
        await sim.passes(30)
        assert raylets(*nodes) == [1, 1]
        assert (await nodes[0].asks("POST", "/restart-ray", node="edge-1", force=True))["event"] == "done"
        assert raylets(*nodes) == [1, 2]


@story
async def test_stop_all_ends_the_edges_before_the_head(sim: Sim) -> None:
    """The wish is on disk, and no run or single node brings Ray back."""
    _, *nodes = boxes = await ready(sim, "cloud", "edge-1", "edge-2")
    head = nodes[0]
    stopping = asyncio.create_task(waits(head, "/stop-all"))
    await sim.passes(1)
    assert runs_of(head).lock.holder is not None, "no run begins meanwhile"
    waited, done = await stopping
    assert (waited[0], waited[-2:]) == (["cloud", "edge-1", "edge-2"], [["cloud"], []])
    assert done == {"event": "done", "absent": []}
    await head.kill()
    head.start()
    await sim.until(head.has("RayJoined", "RayStopped"), within_s=10)
    for path, body in (("/run", {"cluster": None}), ("/restart-ray", {"node": "edge-1"})):
        *_, refusal = await head.told("POST", path, **body)
        assert refusal["reason"] == "RayStopped"
    assert not any(node.machine.running(RAYLET) for node in nodes)
    await head.asks("POST", "/want-ray")  # a head for one command brings it back by itself
    await all_ready(sim, boxes)
    await head.asks("POST", "/stop-all")
    await head.asks("POST", "/restart-ray")
    await all_ready(sim, boxes)
    assert raylets(*nodes) == [3, 3, 3]


def test_the_ray_of_a_paused_node_has_not_ended() -> None:
    """Ray lists it, and nobody can ask it."""
    paused = NodeReadiness(1, "edge-1", "10.10.0.3", ready=False, step="", message="", state="paused")
    assert not stopped(replace(paused, ray_node_id="r")).ready
    assert stopped(replace(paused, state="silent")).ready


def test_who_ends_in_the_last_moment_is_not_missing() -> None:
    """The head ends its Ray as soon as the last edge has gone; whoever looks a moment later sees only that."""
    ranks = (0, "10.10.0.2"), (1, "10.10.0.3")
    cloud, edge = (NodeReadiness(rank, "name", ip, ready=False, step="", message="") for rank, ip in ranks)
    assert at_the_end(cloud, None).ready
    assert at_the_end(cloud, ["10.10.0.3"]).ready
    assert at_the_end(edge, []).ready
    assert at_the_end(edge, ["10.10.0.4"]).ready
    assert at_the_end(edge, ["10.10.0.3"]) == at_the_end(edge, None) == edge, "it was there, or nobody knows"


@story
async def test_stop_all_tells_whose_daemon_was_away(sim: Sim) -> None:
    """Its raylet goes on, and ends when its daemon is back."""
    _, head, edge, _ = await ready(sim, "cloud", "edge-1", "edge-2")
    await edge.kill()
    await sim.until(lambda: not head.node.base.board.facts.online & {edge.node_id}, within_s=5)
    *events, done = await head.told("POST", "/stop-all")
    assert any("daemon" in node["message"] for event in events for node in event["nodes"])
    assert done == {"event": "done", "absent": ["edge-1"]}
    assert edge.machine.running(RAYLET)
    edge.start()
    await sim.until(lambda: not edge.machine.running(RAYLET), within_s=30)


@story
async def test_stop_all_ends_the_run_first(sim: Sim) -> None:
    """Its command gets SIGTERM, and nothing is stopped before it has gone."""
    _, head, edge = await ready(sim, "cloud", "edge-1")
    with running(head) as run:
        stopping = asyncio.create_task(head.told("POST", "/stop-all"))
        await sim.passes(1)
        assert run.wait(20) < 0
        await sim.passes(30)
        assert head.machine.running(GCS)
        assert edge.machine.running(RAYLET)
    begun, *_, done = await stopping
    assert str(run.pid) in begun["message"]
    assert done == {"event": "done", "absent": []}
    assert not head.machine.running(GCS)
