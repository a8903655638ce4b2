"""When a driver is run again: facts in, decision out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from edgelink.backoff import Backoff
from edgelink.training.supervision import (
    GONE_AFTER_S,
    HEAD_LOSS_GRACE_S,
    LOSS_GRACE_S,
    Ended,
    NodeWatch,
    OnNodeLoss,
    Supervision,
    decide,
)


def node(rank: int, ray_node_id: str | None, **more: Any) -> dict[str, Any]:
    return {"node_rank": rank, "hostname": f"n{rank}", "ray_node_id": ray_node_id, "ready": bool(ray_node_id), **more}


def watch() -> NodeWatch:
    return NodeWatch([node(0, "a"), node(1, "b"), node(2, "c")])


def ended(status: int = 1, lived_s: float = 200.0, at_s: float = 0.0, **facts: Any) -> Ended:
    return Ended(status, lived_s, at_s, **facts)


def after(supervision: Supervision, *attempts: Ended) -> tuple[bool, int]:
    decision = decide(supervision, attempts, Backoff(4.0, 300.0))
    return decision.relaunch, decision.exit_status


RETRIES = Supervision(retries=3)
RELAUNCH = Supervision.of(None, "relaunch")
STOP = Supervision.of(None, "stop")
LOST = {"lost": ("n1",), "troubled": ("n1",)}


def test_another_ray_in_its_place_means_that_a_nodes_ray_died() -> None:
    """A Ray node id never comes back; that of the head is the driver's own."""
    nodes = watch()
    nodes.update([node(0, "a"), node(1, "b2"), node(2, "c")], 5.0)
    assert nodes.lost == ("n1",)
    assert not nodes.is_head_lost
    nodes.update([node(0, "a2"), node(1, "b2"), node(2, "c")], 6.0)
    assert nodes.lost == ("n0", "n1")
    assert nodes.is_head_lost
    assert nodes.lost_since_s == 5.0


def test_nodes_that_are_not_listed_for_a_moment_are_not_lost() -> None:
    """While the head daemon restarts nobody can say who is there; for good is another matter."""
    nodes = watch()
    nodes.update([node(0, None), node(1, None), node(2, None)], 10.0)
    nodes.tick(10.0 + GONE_AFTER_S - 1)
    nodes.update([node(0, "a"), node(1, "b"), node(2, None)], 10.0 + GONE_AFTER_S - 1)
    nodes.tick(10.0 + GONE_AFTER_S)
    assert nodes.lost == ("n2",)
    assert nodes.troubled(11.0 + GONE_AFTER_S) == ("n0", "n1", "n2")
    assert nodes.troubled(1000.0) == ("n2",), "trouble that long ago explains no failure now"


def test_a_silent_node_is_trouble_but_not_lost() -> None:
    """Ray notices a cut link only after its ride-through; the relay notices earlier."""
    nodes = watch()
    nodes.update([node(0, "a", online=True), node(1, "b", online=False), node(2, "c", online=True)], 5.0)
    assert nodes.lost == ()
    assert nodes.troubled(6.0) == ("n1",)


@pytest.mark.parametrize(
    ("supervision", "lost", "after_s", "is_ended"),
    [
        (Supervision(), 1, LOSS_GRACE_S, False),
        (RETRIES, 1, LOSS_GRACE_S, False),  # wait: the driver's own retries may carry it over
        (RETRIES, 0, HEAD_LOSS_GRACE_S - 1, False),
        (RETRIES, 0, HEAD_LOSS_GRACE_S, True),  # but not over the death of the Ray that it is connected to
        (Supervision(), 0, LOSS_GRACE_S, False),  # nobody would run it again
        (RELAUNCH, 1, LOSS_GRACE_S - 1, False),  # it may end by itself, having saved what it can
        (RELAUNCH, 1, LOSS_GRACE_S, True),
        (STOP, 1, 0.0, True),
        (STOP, None, 0.0, False),
    ],
)
def test_when_a_running_driver_is_ended(
    supervision: Supervision, lost: int | None, after_s: float, is_ended: bool
) -> None:
    """Only for a node that is lost for certain, and only where the user asked for it."""
    nodes = watch()
    if lost is not None:
        nodes.update([node(lost, "new")], 7.0)
    assert supervision.ends_driver(nodes, 7.0 + after_s) is is_ended


@pytest.mark.parametrize(
    ("supervision", "attempt", "expected"),
    [
        (Supervision(), ended(7), (False, 7)),
        (RETRIES, ended(0), (False, 0)),
        (RETRIES, ended(7), (True, 7)),
        (RETRIES, ended(137, lived_s=1.0), (True, 137)),  # once may be the out-of-memory killer
        (RETRIES, ended(2), (False, 2)),
        (RETRIES, ended(78, **LOST), (False, 78)),
        (RETRIES, ended(1, by_user=True), (False, 1)),
        (RETRIES, ended(130), (False, 130)),
        (RETRIES, ended(143), (False, 143)),
        (RETRIES, ended(143, **LOST), (True, 143)),  # Ray ends the workers of a dead node so
        (RETRIES, ended(1, **LOST), (True, 1)),
        (RELAUNCH, ended(0, by_us=True, **LOST), (True, 0)),  # it saved its checkpoint when asked to end
        (RELAUNCH, ended(0, by_us=True, by_user=True, **LOST), (False, 0)),
        (RELAUNCH, ended(1), (True, 1)),
        (STOP, ended(143, by_us=True, **LOST), (False, 69)),
        (STOP, ended(1, **LOST), (False, 69)),
        (STOP, ended(0, **LOST), (False, 0)),  # done before it was ended
        (STOP, ended(1), (False, 1)),
    ],
)
def test_what_follows_the_first_attempt(supervision: Supervision, attempt: Ended, expected: tuple[bool, int]) -> None:
    """(run again, exit status)."""
    assert after(supervision, attempt) == expected


def test_retries_are_counted_and_the_drivers_own_status_is_the_last_word() -> None:
    """After the last of them; where we ended it, the status says that a node was lost."""
    failures = [ended(5, at_s=at_s, **LOST) for at_s in (0.0, 1e4, 2e4, 3e4)]
    assert after(RETRIES, *failures[:3]) == (True, 5)
    assert after(RETRIES, *failures) == (False, 5)
    assert after(RELAUNCH, *failures[:3], ended(143, by_us=True, **LOST)) == (False, 69)
    assert "3 retries" in decide(RETRIES, failures, Backoff(1.0, 2.0)).why


def test_a_defect_of_the_program_does_not_use_up_a_thousand_retries() -> None:
    """Twice in a row soon after its start and with a sound cluster; trouble in between excuses, and headway."""
    many = Supervision(retries=1000)
    quick = ended(1, lived_s=5.0)
    assert after(many, quick) == (True, 1)
    assert after(many, quick, quick) == (False, 1)
    assert after(many, quick, ended(1, lived_s=5.0, **LOST), quick) == (True, 1)
    assert after(many, quick, ended(1, lived_s=5000.0), quick) == (True, 1)
    at = {step: ended(1, lived_s=5.0, step=step) for step in (5.0, 10.0, 20.0)}
    assert after(many, quick, at[5.0], at[10.0], at[20.0]) == (True, 1)
    assert after(many, at[5.0], at[10.0], at[10.0]) == (True, 1), "once is not twice in a row"
    assert after(many, at[5.0], at[10.0], at[10.0], at[5.0]) == (False, 1)
    assert after(many, at[10.0], quick) == (False, 1)


def test_a_cluster_that_falls_apart_all_the_time_is_left_to_people() -> None:
    """Eleven ends within an hour; the same over a day is what the retries are for."""
    many = Supervision(retries=1000)
    assert after(many, *(ended(1, at_s=100.0 * n, **LOST) for n in range(11))) == (False, 1)
    assert after(many, *(ended(1, at_s=8000.0 * n, **LOST) for n in range(11))) == (True, 1)


def test_delays_grow_and_begin_anew_after_a_long_life() -> None:
    """A crash loop costs little; a node that is lost once a night costs seconds."""
    many, backoff = Supervision(retries=1000), Backoff(4.0, 300.0, random.Random(1))
    attempts: list[Ended] = []
    delays = []
    for lived_s in (100.0, 100.0, 100.0, 100.0, 5000.0):
        attempts.append(ended(1, lived_s=lived_s, **LOST))
        delays.append(decide(many, attempts, backoff).delay_s)
    assert delays[3] > 3 * delays[0]
    assert delays[4] <= 4.0


def test_defaults_and_what_relaunch_brings_along() -> None:
    """Without options a run is what it was: one attempt, left alone."""
    assert Supervision.of(None, "wait") == Supervision(0, OnNodeLoss.WAIT)
    assert not Supervision().is_any
    assert RELAUNCH.retries == 3
    assert Supervision.of(0, "relaunch").retries == 0
    assert decide(Supervision(), [ended(1)], Backoff(1.0, 2.0)).why == "", "the driver has said what there is to say"


def test_a_list_that_nobody_has_is_no_death() -> None:
    """After a restart of the head daemon nobody may be able to say who is alive, for as long as it takes."""
    nodes = watch()
    unknown = [node(rank, None, ray_known=False) for rank in range(3)]
    nodes.update(unknown, 0.0)
    nodes.tick(10 * GONE_AFTER_S)
    assert nodes.lost == ()
    nodes.update([node(0, "a"), node(1, None), node(2, "c")], 300.0)
    nodes.update(unknown, 301.0)
    nodes.tick(301.0 + GONE_AFTER_S)
    assert nodes.lost == (), "nor does it add to what was seen missing before"
    nodes.update([node(rank, None) for rank in range(3)], 400.0)
    nodes.tick(400.0 + GONE_AFTER_S)
    assert nodes.is_head_lost, "the head's Ray is known to have ended"
