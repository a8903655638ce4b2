"""restart-ray and stop --all on the head: who is asked, who is waited for, and what a run in progress prevents."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from head_world import CLOUD, EDGE_1, EDGE_2, ROOT, Head, Ray, member

from edgelink.api.server import Caller
from edgelink.errors import DeadlineError, UsageError
from edgelink.ray_cluster.reconcilers import RayHeadReconciler
from edgelink.ray_cluster.wishes import WishBook
from edgelink.registry.payloads import DirectoryEntry, NodeStatus
from edgelink.roles.cluster_ray import ClusterRay
from edgelink.roles.run_lock import RunInProgressError
from edgelink.roles.runs import RayStoppedError
from edgelink.testing import FakeClock, eventually


class HeadRay(Ray):
    """The head's Ray, as far as these verbs see it."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.wishes = WishBook(directory / "wishes.json")
        self.is_running = True
        self.left_alive: list[str] | None = None

    @property
    def record(self) -> object | None:
        return object() if self.is_running else None

    @property
    def is_wanted(self) -> bool:  # type: ignore[override]
        return self.wishes.wishes.ray_wanted

    @property
    def ray(self) -> HeadRay:
        return self

    @property
    def node(self) -> HeadRay:
        return self


class World:
    """A head with two edges, all alive in Ray."""

    def __init__(self, directory: Path) -> None:
        self.head = Head(directory)
        self.ray = HeadRay(directory)
        self.head.use(self.ray)
        self.head.node.key.node_id = CLOUD.node_id
        self.verbs = ClusterRay(self.head.node, self.head.runs, cast(RayHeadReconciler, self.ray))
        self.head.enrol(CLOUD, EDGE_1, EDGE_2)
        for entry in (CLOUD, EDGE_1, EDGE_2):
            self.set_online(entry, online=True)
        self.show("a", CLOUD, EDGE_1, EDGE_2)

    def set_online(self, entry: DirectoryEntry, *, online: bool) -> None:
        self.head.registry.statuses[entry.node_id] = NodeStatus(node_id=entry.node_id, online=online)

    def show(self, life: str, *entries: DirectoryEntry, **others: DirectoryEntry) -> None:
        """Ray lists ``entries`` as alive in this life of theirs; ``others`` by their life."""
        rows = [(life, entry) for entry in entries] + list(others.items())
        listed = [member(str(entry.overlay_ip), entry.preferred_rank or 0) for _, entry in rows]
        self.head.runs.ray_members_changed(
            [
                type(row)(f"{row.node_id}-{life}", row.ip, row.rank, row.alive, row.hostname)
                for row, (life, _) in zip(listed, rows, strict=True)
            ]
        )

    def restarts(self) -> dict[str, int]:
        return dict(self.ray.wishes.wishes.ray_restarts)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """With a clock that goes by itself."""
    world = World(tmp_path)

    async def tick() -> None:
        while True:
            await cast(FakeClock, world.head.node.clock).advance(0.25)

    ticking = asyncio.ensure_future(tick())
    yield world
    ticking.cancel()


async def play(events: AsyncIterator[dict[str, Any]], *acts: Callable[[], object]) -> list[dict[str, Any]]:
    """All events; before each one after the first, the next of ``acts`` happens."""
    left, seen = list(acts), []
    async with asyncio.timeout(20), aclosing(cast(Any, events)):
        async for event in events:
            seen.append(event)
            if left:
                left.pop(0)()
    assert left == []
    return seen


def waited_for(event: dict[str, Any]) -> list[str]:
    return [node["hostname"] for node in event["nodes"] if not node["ready"]]


async def test_a_restart_of_one_node_waits_for_its_new_ray(world: World) -> None:
    """Its counter goes up, nobody else's; a Ray that was there before does not count as new."""
    events = await play(
        world.verbs.restart(ROOT, {"node": "edge-1"}),
        lambda: world.show("a", CLOUD, EDGE_2),
        lambda: world.show("a", CLOUD, EDGE_2, b=EDGE_1),
    )
    assert world.restarts() == {EDGE_1.node_id: 1}
    assert [waited_for(event) for event in events[:-1]] == [["edge-1"], ["edge-1"], []]
    assert events[0]["nodes"][0]["message"] == "its former Ray is still there"
    assert events[-1] == {"event": "done", "absent": []}
    assert world.head.runs.lock.holder is None


@pytest.mark.parametrize("name", [None, "cloud"])
async def test_a_restart_of_the_head_is_everybodys(world: World, name: str | None) -> None:
    """The head's counter alone goes up, because the edges follow; who is offline is named, not waited for."""
    world.set_online(EDGE_2, online=False)
    world.show("a", CLOUD, EDGE_1)
    events = await play(
        world.verbs.restart(ROOT, {"node": name}),
        lambda: world.show("b", CLOUD),
        lambda: world.show("b", CLOUD, EDGE_1),
    )
    assert world.restarts() == {CLOUD.node_id: 1}
    assert [waited_for(event) for event in events[:-1]] == [["cloud", "edge-1"], ["edge-1"], []]
    assert events[-1] == {"event": "done", "absent": ["edge-2"]}


async def test_a_restart_that_does_not_come_ends_with_who_is_missing(world: World) -> None:
    """75 at the deadline; the wish stays."""
    with pytest.raises(DeadlineError, match="edge-1 at RayJoined"):
        await play(world.verbs.restart(ROOT, {"node": EDGE_1.node_id, "timeout_s": 2}))
    assert world.restarts() == {EDGE_1.node_id: 1}


async def test_an_unknown_node_is_refused_with_the_known_ones(world: World) -> None:
    """A slip of the fingers restarts nobody."""
    with pytest.raises(UsageError, match="cloud, edge-1, edge-2"):
        await play(world.verbs.restart(ROOT, {"node": "edge-3"}))
    assert world.restarts() == {}


@contextmanager
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as child:
        yield child
        child.kill()


async def test_a_run_in_progress_is_named_and_not_disturbed(world: World) -> None:
    """Unless it is meant: --force."""
    with process() as other, world.head.runs.lock.held_by(Caller(other.pid, os.geteuid(), os.getegid())):
        with pytest.raises(RunInProgressError, match=f"pid {other.pid}"):
            await play(world.verbs.restart(ROOT, {"node": "edge-1"}))
        assert world.restarts() == {}
        await play(world.verbs.restart(ROOT, {"node": "edge-1", "force": True}), lambda: world.show("b", EDGE_1))
    assert world.restarts() == {EDGE_1.node_id: 1}


async def test_stop_all_ends_the_edges_before_the_head(world: World) -> None:
    """The caller sees who is left; the wish is on disk, and no run or single node brings Ray back."""

    def head_ends() -> None:
        world.ray.is_running = False
        world.show("a")

    events = await play(
        world.verbs.stop(ROOT, {}),
        lambda: world.show("a", CLOUD, EDGE_2),
        lambda: world.show("a", CLOUD),
        head_ends,
    )
    waited = [waited_for(event) for event in events[:-1]]
    assert waited == [["cloud", "edge-1", "edge-2"], ["cloud", "edge-2"], ["cloud"], []]
    assert events[-1] == {"event": "done", "absent": []}
    assert WishBook(world.head.node.paths.state.parent / "wishes.json").wishes.ray_wanted is False
    with pytest.raises(RayStoppedError):
        await play(world.head.run())
    with pytest.raises(RayStoppedError):
        await play(world.verbs.restart(ROOT, {"node": "edge-1"}))
    world.ray.is_running = True
    await world.verbs.want(ROOT, {})
    assert world.ray.is_wanted, "a head for one command brings it back by itself"
    world.ray.wishes.want_ray(False)
    await play(world.verbs.restart(ROOT, {}), lambda: world.show("b", CLOUD, EDGE_1, EDGE_2))
    assert world.ray.is_wanted


async def test_who_ends_in_the_last_moment_is_not_missing(world: World) -> None:
    """The head ends its Ray as soon as the last edge has gone; whoever looks a moment later sees only that."""

    def all_end() -> None:
        world.ray.is_running, world.ray.left_alive = False, ["10.10.0.4"]
        world.show("a")

    events = await play(world.verbs.stop(ROOT, {}), all_end)
    assert events[-1] == {"event": "done", "absent": ["edge-2"]}


async def test_stop_all_tells_whose_daemon_was_away(world: World) -> None:
    """Its raylet goes on, and ends when its daemon is back."""
    world.set_online(EDGE_1, online=False)

    def head_ends() -> None:
        world.ray.is_running = False
        world.show("a")

    events = await play(world.verbs.stop(ROOT, {}), lambda: world.show("a", CLOUD, EDGE_1), head_ends)
    assert "daemon does not answer" in events[1]["nodes"][1]["message"]
    assert events[-1] == {"event": "done", "absent": ["edge-1"]}


async def test_stop_all_ends_the_run_first(world: World) -> None:
    """Its command gets SIGTERM, and nothing is stopped before it has gone."""
    with process() as run:
        lock = world.head.runs.lock
        held = lock.held_by(Caller(run.pid, os.geteuid(), os.getegid()))
        held.__enter__()
        events = world.verbs.stop(ROOT, {})
        assert str(run.pid) in (await anext(events))["message"]
        stopping = asyncio.ensure_future(anext(events))
        await eventually(lambda: run.poll() is not None)
        assert world.ray.is_wanted
        held.__exit__(None, None, None)
        assert (await stopping)["event"] == "waiting"
        assert not world.ray.is_wanted
        assert lock.holder is not None, "no run begins meanwhile"
        await events.aclose()
