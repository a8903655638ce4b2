"""Which nodes a run asks for: ranks of their own for its length, and what a wait for them says."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from head_world import CLOUD, EDGE_1, EDGE_2, Head, first, member
from telling import Words

from edgelink.errors import ConfigError, DeadlineError, EdgelinkError, UsageError
from edgelink.protocol.payloads import DirectoryEntry, NodeStatus
from edgelink.ray_cluster.held_run import Ranks
from edgelink.ray_cluster.pause import Pause
from edgelink.runs.ranks import free_ranks
from edgelink.runs.selection import Selection
from edgelink.testing.facts import give
from edgelink.testing.payloads import entry

EDGE_3 = entry("edge-3", "10.10.0.5", 3)
ALL = {"cloud": 0, "edge-1": 1, "edge-2": 2, "edge-3": 3}
MEMBERS = [member(f"10.10.0.{rank + 2}", rank) for rank in range(4)]


@pytest.fixture
def head(tmp_path: Path) -> Head:
    head = Head(tmp_path)
    head.enrol(CLOUD, EDGE_1, EDGE_2, EDGE_3)
    head.lists(MEMBERS)
    return head


def tell(head: Head, found: DirectoryEntry, *, online: bool = True, **labels: str) -> None:
    status = NodeStatus(node_id=found.node_id, online=online, labels=labels)
    head.statuses[found.node_id] = status


def publishable(head: Head) -> Ranks:
    """Who is to join Ray now."""
    return head.node.base.board.facts.publishable


async def test_who_is_asked_for_gets_ranks_without_gaps_for_the_length_of_the_run(head: Head, words: Words) -> None:
    """The others leave Ray, and who gets another rank starts anew; afterwards it is as before."""
    async with aclosing(head.run(nodes=["edge-1", EDGE_3.node_id])) as events:  # type: ignore[type-var]
        waiting = await first(events, "waiting")
        assert head.ranks() == {"cloud": 0, "edge-1": 1, "edge-3": 2}
        assert [(node["hostname"], node["ready"]) for node in waiting["nodes"]] == [
            ("cloud", True),
            ("edge-1", True),
            ("edge-3", False),
        ]
        assert [found.hostname for found, _ in publishable(head)] == ["cloud", "edge-1"], "2 is edge-2's yet"
        (note,) = waiting["notes"]
        assert "edge-2" in note
        words(note)
        head.lists([*MEMBERS[:3], member("10.10.0.5", 2)])
        waiting = await first(events, "waiting")
        assert all(node["ready"] for node in waiting["nodes"]), "but two are alive with rank 2"
        head.lists(MEMBERS[:2])
        assert publishable(head) == head.runs.roster.ranks()
        head.lists([*MEMBERS[:2], member("10.10.0.5", 2)])
        granted = await first(events, "granted")
        assert [node["hostname"] for node in granted["nodes"]] == ["cloud", "edge-1", "edge-3"]
        assert [left_out.hostname for left_out in head.runs.roster.left_out()] == ["edge-2"]
    assert head.ranks() == ALL


async def test_a_newcomer_is_not_let_in_and_the_next_daemon_knows_it(head: Head) -> None:
    """Only who was asked for takes part, from the grant to the end, whatever happens to the daemon."""
    head.lists(MEMBERS[:2])
    asked = {"cloud": 0, "edge-1": 1}
    async with aclosing(head.run(nodes=["edge-1"])) as events:  # type: ignore[type-var]
        await first(events, "granted")
        successor = Head(head.node.base.paths.state.parent)
        assert successor.ranks() == asked
        successor.enrol(CLOUD, EDGE_1, EDGE_2, EDGE_3)
        assert successor.ranks() == asked
        async with aclosing(successor.run(nodes=["edge-1"], running=True)) as taken_up:  # type: ignore[type-var]
            granted = await first(taken_up, "granted")
            assert [node["hostname"] for node in granted["nodes"]] == ["cloud", "edge-1"]
            assert successor.ranks() == asked
        assert successor.ranks() == ALL


async def test_a_label_is_waited_for_until_everybody_has_told_theirs(head: Head, words: Words) -> None:
    """Who was not seen might have it; where a number of nodes is asked for, so many are enough. Until it is certain who
    takes part, nobody's rank changes."""
    head.lists(MEMBERS[:2])
    tell(head, EDGE_1, site="lab-a")
    tell(head, EDGE_2, site="lab-b")
    with pytest.raises(DeadlineError) as caught:
        await first(head.run(nodes=["site=lab-a"], timeout_s=0.0), "granted")
    assert all(part in str(caught.value) for part in ("2 of 4 nodes", "edge-3", "site=lab-a"))
    words(caught.value)
    async with aclosing(head.run(nodes=["site=lab-a"], cluster=_two_nodes())) as events:  # type: ignore[type-var]
        await first(events, "granted")
    async with aclosing(head.run(nodes=["site=lab-a"])) as events:  # type: ignore[type-var]
        await first(events, "waiting")
        assert head.ranks() == ALL
        tell(head, EDGE_3, site="lab-b")
        await first(events, "granted")
    tell(head, EDGE_1, online=False)
    give(head.node.base.board, paused={EDGE_1.node_id: Pause(0.0, "registry")})
    async with aclosing(head.run(nodes=["site=lab-a"])) as events:  # type: ignore[type-var]
        waiting = await first(events, "waiting")
        assert [node["state"] for node in waiting["nodes"]] == ["ready", "paused"], "its labels are remembered"
        give(head.node.base.board, paused={})
        await first(events, "granted")


def _two_nodes() -> dict[str, Any]:
    return {"num_nodes": 2, "component_placement": {"actor": "0"}}


@pytest.mark.parametrize(
    ("nodes", "cluster", "kind", "words"),
    [
        (["edge-1", "edge-9"], None, UsageError, ("no node edge-9", "cloud, edge-1, edge-2, edge-3")),
        (["site=lab-z"], None, UsageError, ("site=lab-z", "there are: site=lab-a, site=lab-b")),
        (["arm=panda"], None, UsageError, ("arm=panda", "label arm")),
        (["edge-1"], {"num_nodes": 3}, ConfigError, ("num_nodes is 3", "takes 2: cloud, edge-1")),
    ],
)
async def test_what_cannot_come_true_is_refused_at_once(
    head: Head, nodes: list[str], cluster: dict[str, Any] | None, kind: type[EdgelinkError], words: tuple[str, ...]
) -> None:
    """With what there is instead; nobody's Ray is touched for longer than that takes."""
    for found, site in ((EDGE_1, "lab-a"), (EDGE_2, "lab-b"), (EDGE_3, "lab-b")):
        tell(head, found, site=site)
    tell(head, CLOUD)
    with pytest.raises(kind) as caught:
        await first(head.run(nodes=nodes, cluster=cluster), "granted")
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert head.ranks() == ALL


def test_a_rank_is_given_on_once_its_holder_has_left_ray() -> None:
    """Also where two nodes change places; a Ray under an address that nobody has any more holds nothing up."""
    wanted = ((CLOUD, 0), (EDGE_2, 1), (EDGE_1, 2))
    everybody = {"10.10.0.2", "10.10.0.3", "10.10.0.4"}
    both = {("10.10.0.2", 0), ("10.10.0.3", 1), ("10.10.0.4", 2)}
    assert free_ranks(wanted, both, everybody) == wanted[:1]
    assert free_ranks(wanted, both | {("10.10.0.4", 1), ("10.10.0.3", 2)}, everybody) == wanted, "nobody is put out"
    assert free_ranks(wanted, both - {("10.10.0.3", 1)}, everybody) == wanted[:2]
    assert free_ranks(wanted, {("10.10.0.2", 0), ("10.10.0.77", 1)}, everybody) == wanted


def test_the_head_always_takes_part_and_nobody_means_everybody() -> None:
    """A run's driver is on the head, whatever is asked for."""
    assert Selection.of([]) is None
    selection = Selection.of(["site=lab-a", "edge-2"])
    assert selection is not None
    known = {EDGE_1.node_id: {"site": "lab-a"}, EDGE_3.node_id: {"site": "lab-b"}}
    taken = [found.hostname for found in (CLOUD, EDGE_1, EDGE_2, EDGE_3) if selection.takes(found, known)]
    assert taken == ["cloud", "edge-1", "edge-2"]
