"""What follows for Ray from facts: who takes part, and how long an outage may be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from head_world import CLOUD, EDGE_1, EDGE_2, member

from edgelink.condition_table import Place
from edgelink.facts.derive import Patience, ride_through_s
from edgelink.protocol.payloads import Directory, DirectoryEntry
from edgelink.ray_cluster.held_run import HeldRun
from edgelink.ray_cluster.ray_members import RayMember, alive_with_rank
from edgelink.runs.roster import Candidates, Joining, publishable, ranks
from edgelink.testing.payloads import cluster_spec

WAITS, GRANTED = HeldRun("pid 1"), HeldRun("pid 1", ((CLOUD, 0), (EDGE_1, 1)))


@pytest.mark.parametrize(
    ("place", "run", "is_told", "expected_s"),
    [
        (Place.EDGE, None, True, 600),
        (Place.EDGE, None, False, 60),
        (Place.HEAD, None, True, 60),
        (Place.HEAD, WAITS, True, 60),
        (Place.HEAD, GRANTED, True, 600),
        (Place.HEAD, GRANTED, False, 60),
        (Place.ADDITIONAL_RELAY, None, True, 60),
    ],
)
def test_an_edge_follows_its_head_and_a_head_the_run_in_progress(
    place: Place, run: HeldRun | None, is_told: bool, expected_s: int
) -> None:
    """The head's own change waits for the end of the run, whose Ray was started with the former value."""
    spec = cluster_spec(CLOUD, ride_through_s=600) if is_told else None
    assert ride_through_s(Patience(spec, run), configured=60, place=place) == expected_s


def test_alive_is_who_has_a_rank() -> None:
    by_hand, former = RayMember("bad", "10.10.0.77", None, True, "laptop"), member("10.10.0.4", 2, alive=False)
    assert alive_with_rank((member("10.10.0.2", 0), by_hand, former)) == {"10.10.0.2"}


MOVED = EDGE_1.model_copy(update={"overlay_ip": EDGE_1.overlay_ip + 100})
NOW = Candidates(
    directory=Directory(network_id="n", epoch=1, entries=(CLOUD, MOVED, EDGE_2)),
    without_ray=frozenset(),
    waiting=frozenset(),
    cluster_spec=cluster_spec(CLOUD, EDGE_1, EDGE_2),
    run=None,
)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, (CLOUD, MOVED, EDGE_2)),
        ({"directory": None}, ()),
        ({"without_ray": {EDGE_1.node_id}}, (CLOUD, EDGE_2)),
        ({"waiting": {EDGE_1.node_id}}, (CLOUD, EDGE_1, EDGE_2)),
        ({"waiting": {EDGE_1.node_id}, "cluster_spec": None}, (CLOUD, MOVED, EDGE_2)),
        ({"run": HeldRun("pid 1", None, (CLOUD.node_id, EDGE_2.node_id))}, (CLOUD, EDGE_2)),
        ({"run": GRANTED}, (CLOUD, EDGE_1)),
        ({"run": HeldRun("pid 1", ((CLOUD, 0), (MOVED, 1)))}, (CLOUD, MOVED, EDGE_2)),
        ({"run": GRANTED, "directory": None}, (CLOUD, EDGE_1)),
    ],
)
def test_who_takes_part_follows_the_directory_but_for_what_a_run_relies_on(
    change: dict[str, Any], expected: tuple[DirectoryEntry, ...]
) -> None:
    """Who waits with a lease that was changed is known by the head's last word, also to the next daemon."""
    assert ranks(replace(NOW, **change), has_ray=True) == tuple((entry, rank) for rank, entry in enumerate(expected))


def test_without_ray_on_the_head_only_those_of_a_run_take_part() -> None:
    assert ranks(NOW, has_ray=False) == ()
    assert ranks(replace(NOW, run=GRANTED), has_ray=False) == GRANTED.ranks


def test_who_joins_waits_until_its_rank_is_free() -> None:
    now = Joining(NOW.directory, ((CLOUD, 0), (EDGE_2, 1)), (member("10.10.0.2", 0), member(str(MOVED.overlay_ip), 1)))
    assert publishable(now) == ((CLOUD, 0),)
    assert publishable(replace(now, ray_members=(member("10.10.0.2", 0),))) == now.ranks
