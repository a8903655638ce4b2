"""What a driver asks for against what the nodes have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telling import Words

from edgelink.training.resources import Demand, NodeResources, device_of, shortage


def node(name: str, gpus: float, free: float | None = None, cpus: float = 64, device: str = "GPU") -> NodeResources:
    return NodeResources(name, {device: gpus, "CPU": cpus}, {device: gpus if free is None else free, "CPU": cpus})


CLUSTER = [node("cloud", 8), node("edge-1", 4), node("edge-2", 0)]


@pytest.mark.parametrize(
    ("demand", "fitting"),
    [
        (Demand("one", 1, 8), None),
        (Demand("two", 2, 8), 1),
        (Demand("fours", 3, 4), None),
        (Demand("too many fours", 4, 4), 3),
        (Demand("ones", 12, 1), None),
        (Demand("thirteen", 13, 1), 12),
        (Demand("large", 1, 9), 0),
        (Demand("none", 0, 8), None),
    ],
)
def test_groups_do_not_span_nodes(demand: Demand, fitting: int | None) -> None:
    """A group's devices are of one node; several groups may share one."""
    short = shortage([demand], CLUSTER)
    assert (None if short is None else short.fitting) == fitting
    assert short is None or short.is_for_good


def test_the_message_names_what_each_node_has(words: Words) -> None:
    """So that nobody has to look it up."""
    short = shortage([Demand("trainer.nnodes=2", 2, 8)], CLUSTER)
    assert short is not None
    words(short.message(CLUSTER))


def test_what_others_hold_may_come_back(words: Words) -> None:
    """Too little free is another thing than too little at all."""
    nodes = [node("cloud", 8, free=3)]
    short = shortage([Demand("actor", 4, 1, 1)], nodes)
    assert short is not None
    assert (short.fitting, short.is_for_good) == (3, False)
    words(short.message(nodes))


def test_cpus_count_where_they_are_asked_for() -> None:
    """A GPU whose CPU is not there is no use."""
    nodes = [node("cloud", 8, cpus=2)]
    assert shortage([Demand("actor", 8, 1)], nodes) is None
    short = shortage([Demand("actor", 8, 1, 1)], nodes)
    assert short is not None
    assert short.fitting == 2


def test_the_second_demand_finds_what_the_first_left() -> None:
    """And is the one that is named."""
    short = shortage([Demand("actor", 8, 1, 1), Demand("critic", 8, 1, 1)], CLUSTER)
    assert short is not None
    assert (short.demand.what, short.fitting) == ("critic", 4)


def test_other_accelerators_are_called_by_their_name() -> None:
    """As Ray does; without any it is GPUs that are missing."""
    assert device_of([node("cloud", 0), node("edge", 8, device="NPU")]) == "NPU"
    assert device_of([node("cloud", 0)]) == "GPU"
    assert shortage([Demand("pool", 1, 8)], [node("edge", 8, device="NPU")]) is None


@given(st.lists(st.integers(0, 8), min_size=1, max_size=5), st.integers(0, 12), st.integers(1, 4))
def test_equal_groups_fit_exactly_as_often_as_they_can(gpus: list[int], groups: int, devices: int) -> None:
    """Of groups of one size there is room for the sum of what each node takes."""
    room = sum(count // devices for count in gpus)
    short = shortage([Demand("pool", groups, devices)], [node(str(i), count) for i, count in enumerate(gpus)])
    assert (short is None) == (groups <= room)
    assert short is None or short.fitting == room
