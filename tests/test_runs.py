"""Runs: who counts as ready, and what a run in progress holds still."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from full_disk import Disk
from head_world import ANOTHER, CLOUD, EDGE_1, EDGE_2, ROOT, Head, first, member
from stopping import stop_request
from telling import Words, refuses

from edgelink.api.server import Caller
from edgelink.config import Config
from edgelink.daemon.lifecycle import run_until_stopped
from edgelink.errors import ConfigError, DeadlineError, ExitCode, NotRecordedError, UsageError
from edgelink.launch.run_account import RunAccount
from edgelink.placement import InvalidClusterError
from edgelink.process.service_manager import ServiceManager
from edgelink.protocol.payloads import NodeStatus
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.runs.run_lock import RunInProgressError
from edgelink.testing import FakeClock, eventually
from edgelink.testing.facts import give
from edgelink.testing.payloads import entry
from edgelink.training.run_record import RunRecord


@dataclass(frozen=True)
class Restarting(ServiceManager):
    """A systemd that restarts us."""

    async def queued_job(self) -> str | None:
        return "restart"


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_nodes_ready_follows_the_directory_too(head: Head) -> None:
    """Somebody who enrols is missing at once, though nothing has changed in Ray."""
    head.runs.standing.show_nodes_ready()
    assert head.nodes_ready() == "DirectoryNotSeen"
    head.enrol(CLOUD)
    assert head.nodes_ready() == "NodesMissing"
    head.lists([member("10.10.0.2", 0)])
    assert head.nodes_ready() == "AllAlive"
    head.enrol(CLOUD, EDGE_1)
    assert head.nodes_ready() == "NodesMissing"


async def test_a_deadline_is_told_as_it_was_given(tmp_path: Path) -> None:
    """Not as what is left of it when the wait begins, on a clock that goes on meanwhile."""

    class Hurrying(FakeClock):
        def monotonic_s(self) -> float:
            self._elapsed_s += 0.3
            return self._elapsed_s

    head = Head(tmp_path, Hurrying())
    head.enrol(CLOUD, EDGE_1)
    with pytest.raises(DeadlineError, match=r"0 of 2 nodes .* 2 s; .*cloud"):
        await first(head.run(timeout_s=2.0), "granted")


async def test_alive_under_another_rank_is_not_ready(head: Head) -> None:
    """A node whose rank has just changed still runs its old Ray: a driver started now would find it misplaced."""
    head.enrol(CLOUD, EDGE_1)
    head.lists([member("10.10.0.2", 0), member("10.10.0.3", 2)])
    with pytest.raises(DeadlineError, match="1 of 2 nodes"):
        await first(head.run(timeout_s=0), "granted")


async def test_the_newest_of_two_rays_of_a_node_counts(head: Head) -> None:
    """After a crash Ray lists the dead raylet as alive for a while; the helper lists the newest first."""
    head.enrol(CLOUD)
    newest, former = member("10.10.0.2", 0, accelerators=2), member("10.10.0.2", 0)
    head.lists([newest, former, member("10.10.0.2", 0, alive=False)])
    cluster = {"num_nodes": 1, "component_placement": {"actor": "0"}}
    async with aclosing(head.run(cluster=cluster)) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
    assert granted["nodes"][0]["ready"]
    assert granted["placement"] is not None


async def test_a_node_lost_just_before_the_grant_is_named(head: Head) -> None:
    """The caller may take its time between the last look at the nodes and the grant."""
    head.enrol(CLOUD, EDGE_1)
    head.lists([member("10.10.0.2", 0), member("10.10.0.3", 1)])
    cluster = {"num_nodes": 2, "component_placement": {"actor": "0"}}
    async with aclosing(head.run(cluster=cluster)) as events:  # type: ignore[type-var]
        await first(events, "waiting")
        head.lists([member("10.10.0.2", 0)])
        with pytest.raises(DeadlineError, match="edge-1 was lost"):
            await first(events, "granted")


async def test_ray_without_a_rank_is_refused_by_name_as_rlinf_would(head: Head) -> None:
    """RLinf counts whoever is alive in Ray; a caller without a cluster section is told who that is."""
    head.enrol(CLOUD, EDGE_1)
    by_hand = RayMember("bad", "10.10.0.77", None, True, "laptop")
    head.lists([member("10.10.0.2", 0), member("10.10.0.3", 1), by_hand])
    cluster = {"num_nodes": 2, "component_placement": {"actor": "0"}}
    async with aclosing(head.run(cluster=cluster)) as events:  # type: ignore[type-var]
        with pytest.raises(InvalidClusterError) as refused:
            await first(events, "granted")
    (problem,) = refused.value.problems
    assert problem.rule == "node rank set on only some nodes"
    assert "laptop" in problem.detail
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
    assert granted["without_rank"] == ["Ray at 10.10.0.77 (laptop)"]


async def test_a_run_is_told_what_former_jobs_have_left(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that are taken, and resources that are held."""

    async def left_actors() -> list[str]:
        return ["replay (namespace train, on 10.10.0.3)"]

    monkeypatch.setattr(head.node.ray, "left_actors", left_actors)
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
    assert granted["left_actors"] == ["replay (namespace train, on 10.10.0.3)"]


async def test_a_rank_that_two_have_is_waited_for_and_named(head: Head, words: Words) -> None:
    """The head ends a Ray whose rank is another node's; no driver starts while both are there."""
    head.enrol(CLOUD, EDGE_1)
    members = [member("10.10.0.2", 0), member("10.10.0.3", 1)]
    head.lists([*members, member("10.10.0.77", 1)])
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        waiting = await first(events, "waiting")
        assert all(node["ready"] for node in waiting["nodes"])
        (note,) = waiting["notes"]
        assert all(name in note for name in ("10.10.0.77 (host)", "node rank 1", "edge-1"))
        words(note)
        head.lists(members)
        await first(events, "granted")
    head.lists([*members, member("10.10.0.77", 1)])
    async with aclosing(head.run(timeout_s=0.0)) as events:  # type: ignore[type-var]
        with pytest.raises(DeadlineError, match=r"10\.10\.0\.77 \(host\) has node rank 1"):
            await first(events, "granted")


async def test_the_devices_of_all_nodes_are_told(head: Head) -> None:
    """By each node's own daemon."""
    head.enrol(CLOUD, EDGE_1)
    head.statuses[EDGE_1.node_id] = NodeStatus(node_id=EDGE_1.node_id, online=True, device="et7")
    head.lists([member("10.10.0.2", 0), member("10.10.0.3", 1)])
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
    assert [node["device"] for node in granted["nodes"]] == [None, "et7"]
    own = head.node.base.board.facts.node_status
    assert own is not None
    assert own.device == "et0"


async def test_more_nodes_than_any_network_has_are_refused(head: Head) -> None:
    """By the daemon too, which would make a row for each of them."""
    with pytest.raises(ConfigError, match="from 1 to 65533, not 65534"):
        await first(head.run(cluster={"num_nodes": 65_534}), "granted")


async def test_who_is_alive_in_ray_is_told_for_a_plan(head: Head) -> None:
    """Each node once, with its rank, its name here and its accelerators."""
    head.enrol(CLOUD, EDGE_1)
    cloud, former = member("10.10.0.2", 0, accelerators=2), member("10.10.0.2", 0, accelerators=1)
    dead = member("10.10.0.4", 2, alive=False)
    head.lists([cloud, former, member("10.10.0.3", 1), dead])
    nodes = (await head.requests.live_nodes(ROOT, {}))["nodes"]
    assert sorted((node["rank"], node["hostname"], node["accelerator_count"]) for node in nodes) == [
        (0, "cloud", 2),
        (1, "edge-1", 0),
    ]


async def test_no_rank_changes_under_a_run(head: Head) -> None:
    """A rank is frozen at `ray start`: releasing a node must not restart the others' Ray while a run is on."""
    head.enrol(CLOUD, EDGE_1, EDGE_2)
    head.lists([member("10.10.0.2", 0), member("10.10.0.3", 1), member("10.10.0.4", 2)])
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        await first(events, "granted")
        head.enrol(CLOUD, EDGE_1, EDGE_2, entry("edge-3", "10.10.0.5", 3))
        assert head.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2, "edge-3": 3}
        head.enrol(CLOUD, EDGE_2, entry("edge-3", "10.10.0.5", 3))
        assert head.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2, "edge-3": 3}
        with pytest.raises(RunInProgressError) as second:
            await first(head.run(caller=ANOTHER), "granted")
        assert second.value.exit_code is ExitCode.TRY_AGAIN
    assert head.ranks() == {"cloud": 0, "edge-2": 1, "edge-3": 2}


async def test_the_same_command_may_ask_again_before_it_lets_go(head: Head) -> None:
    """A driver that is started again gets a new grant, and nobody else the lock in between."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    async with aclosing(head.run()) as again:  # type: ignore[type-var]
        async with aclosing(head.run()) as events:  # type: ignore[type-var]
            await first(events, "granted")
            await first(again, "granted")
        with pytest.raises(RunInProgressError):
            await first(head.run(caller=ANOTHER), "granted")
    async with aclosing(head.run(caller=ANOTHER)) as events:  # type: ignore[type-var]
        await first(events, "granted")


async def test_a_run_in_another_container_is_known_by_its_user_and_its_id(head: Head) -> None:
    """No process of it can be seen from here: what it asks for and tells is its own, and nobody else's."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    unseen, other_user, seen = Caller(0, 1000, 1000), Caller(0, 0, 0), Caller(os.getpid(), os.geteuid(), 0)
    record, other_record = {"run_id": "r", "command": "train"}, {"run_id": "s", "command": "train"}
    metrics = {"run_id": "r", "points": [{"step": 1, "values": {"return": 20.0}}]}
    strangers = [(other_user, record), (seen, record), (unseen, other_record)]
    async with aclosing(head.run(caller=unseen, record=record)) as again:  # type: ignore[type-var]
        async with aclosing(head.run(caller=unseen, record=record)) as events:  # type: ignore[type-var]
            await first(events, "granted")
            await first(again, "granted")
        await head.requests.note(unseen, {"record": {**record, "retries": 1}})
        await head.requests.note_metrics(unseen, metrics)
        for caller, told in strangers:
            with pytest.raises(RunInProgressError):
                await first(head.run(caller=caller, record=told), "granted")
            with pytest.raises(RunInProgressError):
                await head.requests.note(caller, {"record": told})
            with pytest.raises(RunInProgressError):
                await head.requests.note_metrics(caller, {**metrics, "run_id": told["run_id"]})
        with pytest.raises(RunInProgressError):
            await first(head.run(caller=unseen), "granted")
        assert head.runs.record is not None
        assert (head.runs.record["run_id"], head.runs.record["retries"]) == ("r", 1)
        assert [run_id for run_id, _ in head.runs.take_points()] == ["r"]
    async with aclosing(head.run(caller=seen, record=other_record)) as events:  # type: ignore[type-var]
        await first(events, "granted")
        for told in (record, other_record):
            with pytest.raises(RunInProgressError):
                await head.requests.note(unseen, {"record": told})


async def test_a_new_daemon_gives_the_lock_of_a_living_run_to_nobody_else(head: Head) -> None:
    """The head daemon was killed under a run: the run takes up its lock again, and its ranks are still held still."""
    head.enrol(CLOUD, EDGE_1, EDGE_2)
    members = [member("10.10.0.2", 0), member("10.10.0.3", 1), member("10.10.0.4", 2)]
    head.lists(members)
    assert head.node.base.conditions.get("DriverRunning").reason == "NoRun", "from its start on"
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        await first(events, "granted")
        successor = Head(head.node.base.paths.state.parent)
        assert successor.node.base.conditions.is_true("DriverRunning")
        assert successor.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2}, "before the relay has told who there is"
        successor.enrol(CLOUD, EDGE_2)
        assert successor.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2}
        with pytest.raises(RunInProgressError):
            await first(successor.run(caller=ANOTHER), "granted")
        async with aclosing(successor.run(running=True)) as taken_up:  # type: ignore[type-var]
            granted = await first(taken_up, "granted")  # at once, though nobody is known to be alive in Ray
            assert [node["ready"] for node in granted["nodes"]] == [False, False, False]
            successor.lists(members)
            told = await first(taken_up, "nodes")
            assert [node["ray_node_id"] for node in told["nodes"]] == [found.node_id for found in members]
        assert successor.ranks() == {"cloud": 0, "edge-2": 1}


async def test_a_word_that_comes_before_the_run_has_taken_up_its_lock_releases_nothing(head: Head) -> None:
    """The command that holds it tells a new daemon of its steps in the moment before it asks for its run again."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    record = {"run_id": "r", "command": "train", "attempts": [{"number": 1, "started_at": "2026-01-01T00:00:00Z"}]}
    metrics = {"run_id": "r", "points": [{"step": 1, "values": {"return": 20.0}}]}
    async with aclosing(head.run(record=record)) as events:  # type: ignore[type-var]
        await first(events, "granted")
        successor = Head(head.node.base.paths.state.parent)
        successor.enrol(CLOUD)
        await successor.requests.note_metrics(ROOT, metrics)
        await successor.requests.note(ROOT, {"record": record})
        with pytest.raises(RunInProgressError):
            await successor.requests.note(ANOTHER, {"record": record})
        with pytest.raises(RunInProgressError):
            await first(successor.run(caller=ANOTHER), "granted")
        assert successor.runs.record is not None
        assert successor.runs.record["in_progress"]
        assert successor.runs.record["attempts"][0]["ended_at"] is None
        assert [run_id for run_id, _ in successor.runs.take_points()] == ["r"]


async def test_a_full_disk_refuses_a_run_that_has_not_begun(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next daemon would know nothing of it: neither whose it is, nor which ranks it relies on."""
    disk = Disk(monkeypatch)
    head.enrol(CLOUD)
    disk.is_full = True
    with pytest.raises(NotRecordedError, match="No space left"):
        await first(head.run(), "granted")
    assert head.runs.lock.holder is None
    disk.is_full = False
    async with aclosing(head.run(caller=ROOT)) as events:  # type: ignore[type-var]
        await first(events, "waiting")
        disk.is_full = True
        head.lists([member("10.10.0.2", 0)])
        with pytest.raises(NotRecordedError):
            await first(events, "granted")
    assert head.runs.lock.holder is head.node.base.board.facts.run is None
    assert "NotRecorded" not in head.node.base.conditions.get("DriverRunning").reason


async def test_a_full_disk_ends_no_run(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members come, records are told, the run ends: the daemon knows, and its successor as soon as there is room."""
    disk = Disk(monkeypatch)
    head.enrol(CLOUD, EDGE_1)
    head.lists([member("10.10.0.2", 0), member("10.10.0.3", 1)])
    record = {"run_id": "r", "command": "train", "attempts": [{"number": 1, "started_at": "2026-01-01T00:00:00Z"}]}
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        await first(events, "granted")
        disk.is_full = True
        head.enrol(CLOUD, EDGE_1, EDGE_2)
        assert head.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2}
        await head.requests.note(ROOT, {"record": record})
        disk.is_full = False
        await head.node.base.files.reconcile()
        head.runs.lock.keep()
        successor = Head(head.node.base.paths.state.parent)
        assert successor.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2}
        assert successor.runs.record is not None
        assert successor.runs.record["run_id"] == "r"
        disk.is_full = True
        async with aclosing(successor.run(running=True)) as taken_up:  # type: ignore[type-var]
            await first(taken_up, "granted")
        assert successor.runs.lock.holder is None
        assert successor.runs.record["attempts"][0]["ended_at"] is not None


async def test_a_run_whose_lock_was_lost_is_taken_up_on_a_full_disk(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver runs already: a refusal would protect nothing."""
    disk = Disk(monkeypatch)
    head.enrol(CLOUD)
    disk.is_full = True
    async with aclosing(head.run(running=True)) as events:  # type: ignore[type-var]
        await first(events, "granted")
        assert head.granted


async def test_a_pid_that_is_somebody_elses_by_now_is_not_the_holder(head: Head) -> None:
    """The kernel tells the pid of who connected, and that may be over: nobody is signalled for it."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    stranger = Caller(pid=os.getppid(), uid=os.geteuid() + 1, gid=0)
    with head.runs.lock.held_by(stranger):
        assert head.runs.lock.holder is not None
        assert head.runs.lock.process is None


async def test_a_run_that_ended_while_no_daemon_was_there_holds_nothing(head: Head) -> None:
    """Neither when it ended before the next daemon started, nor when it ends soon after."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    command = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        caller = Caller(command.pid, 0, 0)
        record = {"run_id": "r", "command": "train", "attempts": [{"number": 1, "started_at": "2026-01-01T00:00:00Z"}]}
        async with aclosing(head.run(caller=caller, record=record)) as events:  # type: ignore[type-var]
            await first(events, "granted")
            successor = Head(head.node.base.paths.state.parent)
            watch = asyncio.ensure_future(successor.runs.lock.run())
            assert successor.runs.record is not None
            assert successor.runs.record["in_progress"]
            command.kill()
            await command.wait()
            await eventually(lambda: successor.runs.lock.holder is None)
            watch.cancel()
            assert successor.runs.record["attempts"][0]["ended_at"] is not None
            assert "was ended" in successor.runs.record["attempts"][0]["what_followed"]
            third = Head(head.node.base.paths.state.parent)
            assert third.runs.lock.holder is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            command.kill()


async def test_a_daemon_that_stops_leaves_the_lock_to_the_next(head: Head) -> None:
    """An upgrade closes the run's request from our side: the run goes on, and keeps its lock."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    cluster = {"num_nodes": 1, "component_placement": {"actor": "0"}}
    async with aclosing(head.run(cluster=cluster)) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
        head.runs.lock.keep()
    lock = Head(head.node.base.paths.state.parent).runs.lock
    assert lock.holder is not None
    assert lock.placement == granted["placement"] is not None, "where its processes are is still to be shown"


async def test_a_run_is_told_of_a_death_that_was_over_before_anybody_looked(head: Head) -> None:
    """Buried and back between two looks: the node is as ready as before, but it is another Ray, without its actors."""
    head.enrol(CLOUD, EDGE_1)
    cloud, edge = member("10.10.0.2", 0), member("10.10.0.3", 1)
    head.lists([cloud, edge])
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
        told = asyncio.ensure_future(first(events, "nodes"))
        await asyncio.sleep(0)
        head.lists([cloud, replace(edge, node_id="another"), replace(edge, alive=False)])
        after = await told
    assert [node["ray_node_id"] for node in granted["nodes"]] == [cloud.node_id, edge.node_id]
    assert [node["ray_node_id"] for node in after["nodes"]] == [cloud.node_id, "another"]
    assert all(node["ready"] for node in after["nodes"])


async def test_rays_user_gets_its_run_back_in_a_daemons_first_moments(head: Head) -> None:
    """A refusal would be the last word to a command that takes up its lock again."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    async with aclosing(head.run(caller=Caller(os.getpid(), 1000, 1000), running=True)) as events:  # type: ignore[type-var]
        await first(events, "granted")
    with refuses(UsageError, reason="PermissionDenied"):
        await first(head.run(caller=Caller(os.getpid(), 1001, 1001), running=True), "granted")


async def test_a_run_whose_lock_was_lost_holds_its_ranks_again(head: Head) -> None:
    """It says itself that its driver runs, so it relies on the ranks as they are."""
    head.enrol(CLOUD, EDGE_1, EDGE_2)
    async with aclosing(head.run(running=True)) as events:  # type: ignore[type-var]
        await first(events, "granted")
        head.enrol(CLOUD, EDGE_2)
        assert head.ranks() == {"cloud": 0, "edge-1": 1, "edge-2": 2}
        assert head.granted


async def test_that_nobody_can_say_who_is_alive_is_told_apart_from_a_death(head: Head) -> None:
    """A list without the head itself is none; where the head's Ray has ended nothing is left to be asked."""
    head.enrol(CLOUD, EDGE_1)
    cloud, edge = member("10.10.0.2", 0), member("10.10.0.3", 1)

    def known() -> list[bool]:
        return [node.ray_known for node in head.runs.standing.nodes()]

    assert known() == [False, False]
    head.lists([cloud])
    assert known() == [True, True]
    head.lists([replace(cloud, alive=False), edge])
    assert known() == [False, False]
    head.node.inputs.ray.adopt()
    assert known() == [True, True]
    give(head.node.base.board, directory=None)
    assert known() == [False]


async def test_a_run_is_told_that_the_heads_ray_has_ended(head: Head) -> None:
    """Ray's list went away a moment before: nothing else would say so."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        await first(events, "granted")
        head.lists([])
        unknown = await first(events, "nodes")
        head.node.inputs.ray.adopt()
        ended = await first(events, "nodes")
    assert [unknown["nodes"][0]["ray_known"], ended["nodes"][0]["ray_known"]] == [False, True]


async def test_a_signal_that_ends_the_daemon_keeps_the_lock(head: Head) -> None:
    """`systemctl restart`: the request is cancelled after the daemon's life, and the driver goes on."""
    head.enrol(CLOUD)
    head.lists([member("10.10.0.2", 0)])

    async def terminated(_tasks: asyncio.TaskGroup) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    async def crashed(_tasks: asyncio.TaskGroup) -> None:
        raise KeyError("a defect")

    async def stop_children() -> None:
        pass

    for life in (terminated, crashed):
        async with aclosing(head.run()) as events:  # type: ignore[type-var]
            await first(events, "granted")
            manager = Restarting("/nobody/listens", "edgelink-head.service")
            stop = stop_request(manager, before_end=head.runs.lock.keep)
            stop.listen_to_signals()
            try:
                with contextlib.suppress(KeyError):
                    await run_until_stopped(stop, life, stop_children)
            finally:
                asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
                asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        head = Head(head.node.base.paths.state.parent)
        assert head.runs.lock.holder is not None
        head.enrol(CLOUD)
        head.lists([member("10.10.0.2", 0)])


@pytest.mark.parametrize("has_ray", [True, False])
async def test_a_run_of_apps_holds_the_lock_as_a_driver_does_and_needs_no_ray(tmp_path: Path, has_ray: bool) -> None:
    """It gets what gives gRPC its patience; the record that it keeps is shown, and outlives it."""
    head = Head(tmp_path, config=Config.model_validate({"ray": {"enabled": has_ray, "user": "root"}}))
    head.enrol(head.own, EDGE_1)
    account = RunAccount(RunRecord(run_id="a" * 16, command="--apps pair.yaml", retries=3), head.clock)
    account.begin()
    told = {"record": account.record.model_dump(mode="json")}
    async with aclosing(head.requests.stream_apps(ROOT, told)) as events:  # type: ignore[type-var]
        granted = await first(events, "granted")
        assert int(granted["environment"]["EDGELINK_GRPC_TIMEOUT_MS"]) > 300_000
        assert head.node.base.conditions.get("DriverRunning").reason == "Granted"
        assert head.granted
        with refuses(RunInProgressError):
            await first(head.requests.stream_apps(ANOTHER, {}), "granted")
        account.end(3, "started again", lost=("edge-1",))
        account.begin()
        await head.requests.note(ROOT, {"record": account.record.model_dump(mode="json")})
    assert head.runs.lock.holder is None
    assert head.node.base.conditions.get("DriverRunning").reason == "NoRun"
    assert head.runs.record is not None
    one, two = head.runs.record["attempts"]
    assert (one["exit_status"], one["lost_nodes"]) == (3, ["edge-1"])
    assert (two["number"], two["exit_status"]) == (2, None)
    assert two["ended_at"] is not None, "the command that kept the record is gone"
