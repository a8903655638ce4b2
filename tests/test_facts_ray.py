"""What follows for Ray from facts: how long an outage may be, and whom a run relies on."""

from __future__ import annotations

import pytest
from head_world import CLOUD, EDGE_1

from edgelink.condition_table import Place
from edgelink.facts.derive import Held, Patience, ride_through_s, run_members
from edgelink.ray_cluster.held_run import HeldRun
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


def test_a_run_relies_on_the_nodes_that_it_was_granted() -> None:
    assert run_members(Held(None)) == run_members(Held(WAITS)) == frozenset()
    assert run_members(Held(GRANTED)) == {CLOUD.node_id, EDGE_1.node_id}
