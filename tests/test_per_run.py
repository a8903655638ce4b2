"""``access: per-run``: what the head waits for before a run, and what it says to the edges at each moment."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path

import pytest
from head_world import CLOUD, EDGE_1, EDGE_2, Head, first, member
from test_inside import spec

from edgelink.config import Config
from edgelink.errors import DeadlineError
from edgelink.protocol.payloads import ClusterSpec, DirectoryEntry, EdgesOpenTo, NodeStatus
from edgelink.runs.per_run import still_closed
from edgelink.testing import FakeClock
from edgelink.testing.facts import give

PER_RUN = Config(access="per-run")
CLOSED, MEET = spec("head"), spec("members").model_copy(update={"epoch": 7})
AWAY = NodeStatus(node_id=EDGE_2.node_id, online=False)


def follows(edge: DirectoryEntry, epoch: int | None) -> NodeStatus:
    return NodeStatus(node_id=edge.node_id, online=True, follows_spec=epoch)


@pytest.mark.parametrize(
    ("word", "other", "told"),
    [
        (None, follows(EDGE_2, 7), ["the head "]),
        (CLOSED, follows(EDGE_2, 7), ["the head "]),
        (MEET, follows(EDGE_2, 7), []),
        (MEET, follows(EDGE_2, 8), []),
        (MEET, follows(EDGE_2, 6), ["edge-2 has not opened"]),
        (MEET, follows(EDGE_2, None), ["edge-2 has not opened"]),
        (MEET, AWAY, ["edge-2 is not"]),
        (MEET, None, ["edge-2 is not"]),
    ],
)
def test_each_edge_of_the_run_has_to_say_that_it_is_open(
    word: ClusterSpec | None, other: NodeStatus | None, told: list[str]
) -> None:
    """In the cluster spec's own epoch or a newer one."""
    statuses = {EDGE_1.node_id: follows(EDGE_1, 7)} | ({EDGE_2.node_id: other} if other else {})
    found = still_closed([CLOUD, EDGE_1, EDGE_2], word, statuses)
    assert [text.startswith(begins) for text, begins in zip(found, told, strict=True)] == [True] * len(told)


def test_a_run_with_one_edge_waits_for_nobody() -> None:
    assert still_closed([CLOUD, EDGE_1], None, {}) == []


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return begun(tmp_path, FakeClock())


def begun(directory: Path, clock: FakeClock, config: Config = PER_RUN) -> Head:
    """A daemon of the head, all of whose nodes are alive in Ray."""
    head = Head(directory, clock, config)
    head.enrol(CLOUD, EDGE_1, EDGE_2)
    head.lists([member(f"10.10.0.{rank + 2}", rank) for rank in range(3)])
    return head


def says(head: Head, before: EdgesOpenTo | None = None) -> str:
    """The next cluster spec, after one that said ``before``."""
    return head.node.ray.edges_open_to(None if before is None else spec(before))


async def test_a_run_is_granted_once_its_edges_are_open_to_each_other(head: Head) -> None:
    """They are told before the check in front of it, and closed when it has ended, with or without a driver."""
    assert says(head) == "head"
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        waiting = await first(events, "waiting")
        while says(head) == "head":
            waiting = await first(events, "waiting")
        assert waiting["notes"] == [], "nobody wonders yet"
        give(head.node.base.board, cluster_spec=MEET)
        await head.clock.advance(2.0)
        waiting = await first(events, "waiting")
        assert [note.partition(" ")[0] for note in waiting["notes"]] == ["edge-1", "edge-2"]
        head.statuses.update({each.node_id: follows(each, 7) for each in (EDGE_1, EDGE_2)})
        await first(events, "granted")
        assert says(head) == "members"
    assert says(head, "members") == "head"


async def test_a_run_whose_edges_do_not_open_is_refused_by_name(head: Head) -> None:
    """And leaves nothing open behind it."""
    give(head.node.base.board, cluster_spec=MEET)
    head.statuses[EDGE_1.node_id] = follows(EDGE_1, 7)
    with pytest.raises(DeadlineError) as caught:
        async for _ in head.run(timeout_s=5.0):
            await head.clock.advance(10.0)
    assert caught.value.condition_reason == "EdgesClosed"
    assert "edge-2" in str(caught.value)
    assert "edge-1" not in str(caught.value)
    assert says(head, "members") == "head"


async def test_a_daemon_that_is_restarted_under_a_run_closes_nothing(head: Head) -> None:
    """It knows of the run, or gives its caller the time to come back; a run that has ended closes at once."""
    give(head.node.base.board, cluster_spec=MEET)
    head.statuses.update({each.node_id: follows(each, 7) for each in (EDGE_1, EDGE_2)})
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        await first(events, "granted")
        successor = begun(head.node.base.paths.state.parent, head.clock)
        await head.clock.advance(3600.0)
        assert says(successor, "members") == "members"
    stranger = begun(head.node.base.paths.state.parent / "container", head.clock)
    assert says(stranger, "members") == "members"
    assert says(stranger, "head") == "head"
    await head.clock.advance(60.0)
    assert says(stranger, "members") == "head"


async def test_without_the_mode_nobody_is_waited_for_and_everything_is_open(tmp_path: Path) -> None:
    head = begun(tmp_path, FakeClock(), Config())
    assert says(head, "head") == "all"
    async with aclosing(head.run()) as events:  # type: ignore[type-var]
        await first(events, "granted")
        assert says(head) == "all"
