"""What holds of every plan, whatever the cluster: judged by invariants that do not repeat the resolver."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgelink.placement import InvalidClusterError, Node, Plan, plan

_QUICK = settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck), database=None)


@dataclass(frozen=True)
class World:
    """Nodes in rank order, and groups of them by label."""

    nodes: tuple[Node, ...]
    groups: dict[str, list[int]]

    def cluster(self, components: dict[str, Any]) -> dict[str, Any]:
        listed = [{"label": label, "node_ranks": ",".join(map(str, ranks))} for label, ranks in self.groups.items()]
        return {"num_nodes": len(self.nodes), "node_groups": listed, "component_placement": components}

    def resources(self, label: str) -> list[tuple[int, int]]:
        """(node rank, accelerator), or (node rank, -1) in a group without any."""
        members = [self.nodes[rank] for rank in self.groups[label]]
        devices = [(node.number, index) for node in members for index in range(node.accelerator_count)]
        return devices or [(node.number, -1) for node in members]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    counts = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    nodes = tuple(
        Node(rank, f"10.10.0.{rank + 1}", f"n{rank}", "NV_GPU" if count else "NO_ACCEL", count, "T4", {"HOME": "/h"})
        for rank, count in enumerate(counts)
    )
    ranks = st.sets(st.integers(0, len(nodes) - 1), min_size=1).map(sorted)
    groups = draw(st.dictionaries(st.sampled_from(["cloud", "edge", "sim", "4090"]), ranks, min_size=1))
    return World(nodes, groups)


@st.composite
def placements(draw: st.DrawFn) -> tuple[World, str, str, list[list[int]]]:
    """A world, a group of it, a placement string that is right by construction, and each process's resources.

    A process takes resources of one node only: the parts are cut so.
    """
    world = draw(worlds())
    label = draw(st.sampled_from(sorted(world.groups)))
    resources = world.resources(label)
    parts, expected, position = [], [], 0
    while position < len(resources) and (not parts or draw(st.booleans())):
        position += draw(st.integers(0, min(1, len(resources) - position - 1)))
        node = resources[position][0]
        on_node = sum(1 for item in resources[position:] if item[0] == node)
        if draw(st.booleans()):
            size, sharers = draw(st.integers(1, on_node)), 1  # one process, several resources
            expected.append(list(range(position, position + size)))
        else:
            size, sharers = draw(st.integers(1, len(resources) - position)), draw(st.integers(1, 3))
            expected += [[resource] for resource in range(position, position + size) for _ in range(sharers)]
        first = len(expected) - (1 if len(expected[-1]) > 1 else size * sharers)
        written = f"{position}-{position + size - 1}"
        if size == 1 and draw(st.booleans()):
            written = f"{position}"
        parts.append(f"{written}:{first}-{len(expected) - 1}")
        position += size
    return world, label, draw(st.sampled_from([",", ", ", " ,,"])).join(parts), expected


def resolved(world: World, label: str, text: str, *, isolate: bool = True) -> Plan:
    return plan(world.cluster({"x": {"node_group": label, "placement": text}}), world.nodes, isolate=isolate)


@_QUICK
@given(placements(), st.booleans())
def test_each_process_gets_what_its_string_says(case: tuple[World, str, str, list[list[int]]], isolate: bool) -> None:
    """The string was written from the processes; they come back, on the node that has their resources."""
    world, label, text, expected = case
    by_hardware = any(world.nodes[rank].accelerator_count for rank in world.groups[label])
    resources = world.resources(label)

    items = resolved(world, label, text, isolate=isolate).placements["x"]

    assert [list(item.resource_ranks) for item in items] == expected
    assert [item.process_rank for item in items] == list(range(len(expected)))
    for item in items:
        own = [resources[resource] for resource in item.resource_ranks]
        assert {node for node, _ in own} == {item.node_rank}
        assert list(item.hardware_ranks) == ([index for _, index in own] if by_hardware else [])
        count = world.nodes[item.node_rank].accelerator_count
        assert set(map(int, item.accelerators)) == (
            set(item.hardware_ranks) if isolate and by_hardware else {*range(count)}
        )
        assert item.visible_devices == ",".join(item.accelerators)


@_QUICK
@given(placements())
def test_local_ranks_count_the_processes_of_each_node(case: tuple[World, str, str, list[list[int]]]) -> None:
    """Dense per node, in the order of process ranks; nodes of the component are counted in theirs."""
    world, label, text, _ = case
    items = resolved(world, label, text).placements["x"]

    local = defaultdict(list)
    for item in items:
        local[item.node_rank].append(item.local_rank)
    assert all(ranks == list(range(len(ranks))) for ranks in local.values())
    assert Counter(item.node_rank for item in items) == {item.node_rank: item.local_world_size for item in items}
    used = sorted(local)
    assert all(used[item.placement_node_rank] == item.node_rank for item in items)
    assert [item.node_rank for item in items] == sorted(item.node_rank for item in items)


@_QUICK
@given(placements())
def test_the_environment_agrees_with_the_placement(case: tuple[World, str, str, list[list[int]]]) -> None:
    """What a worker reads in its environment is what the plan says of it."""
    world, label, text, _ = case
    result = resolved(world, label, text)
    items = result.placements["x"]

    for item in items:
        env = result.env("x", item.process_rank)
        node = world.nodes[item.node_rank]
        assert (env["RANK"], env["WORLD_SIZE"]) == (str(item.process_rank), str(len(items)))
        assert env["CLUSTER_NODE_RANK"] == env["RLINF_NODE_RANK"] == str(node.rank)
        assert env["MASTER_ADDR"] == world.nodes[items[0].node_rank].ip
        assert env.get("CUDA_VISIBLE_DEVICES", "") == env["VISIBLE_DEVICES"] == item.visible_devices
        assert ("CUDA_VISIBLE_DEVICES" in env) == bool(node.accelerator_count)
        assert env["HOME"] == "/h"


@_QUICK
@given(placements(), st.randoms(use_true_random=False))
def test_the_order_of_the_nodes_is_their_rank(case: tuple[World, str, str, list[list[int]]], random: Any) -> None:
    """In whatever order Ray lists them."""
    world, label, text, _ = case
    cluster = world.cluster({"x": {"node_group": label, "placement": text}})
    shuffled = list(world.nodes)
    random.shuffle(shuffled)

    assert plan(cluster, shuffled).to_dict() == plan(cluster, world.nodes).to_dict()


@_QUICK
@given(placements(), st.integers(1, 3))
def test_what_is_not_named_does_not_matter(case: tuple[World, str, str, list[list[int]]], more: int) -> None:
    """More machines behind the others, and another name of the group, change no process of a group."""
    world, label, text, _ = case
    count = len(world.nodes)
    added = [Node(count + index, f"10.10.1.{index}", "", "NV_GPU", 2) for index in range(more)]
    wider = World((*world.nodes, *added), {**world.groups, "renamed": world.groups[label]})

    before = resolved(world, label, text).placements["x"]
    after = resolved(wider, "renamed", text).placements["x"]

    assert tuple(replace(item, node_group=label) for item in after) == before


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-2, 70)
    | st.sampled_from(["all", "0-1", "a", "", "0:0-3", "1.5", "???", "Franka"])
)
_WORDS = st.sampled_from(
    ["label", "node_ranks", "env_configs", "env_vars", "hardware", "type", "configs", "node_rank", "placement", "x"]
)
_GARBAGE = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4), max_leaves=8
)


@settings(_QUICK, max_examples=80)
@given(_GARBAGE, _GARBAGE, _GARBAGE, _SCALARS)
def test_nonsense_is_refused_and_never_a_crash(groups: Any, components: Any, profiling: Any, num_nodes: Any) -> None:
    """Each refusal names key, rule and fix; nothing else than InvalidClusterError leaves the resolver."""
    listed = groups if isinstance(groups, list) else [groups]
    cluster = {
        "num_nodes": num_nodes,
        "node_groups": listed,
        "component_placement": components,
        "profiling": profiling,
    }
    try:
        result = plan(cluster, [Node(0, "10.10.0.1", "", "NV_GPU", 2), Node(1, "10.10.0.2")])
    except InvalidClusterError as error:
        assert error.problems
        assert [problem.stage for problem in error.problems] == sorted(problem.stage for problem in error.problems)
        for problem in error.problems:
            assert problem.key.startswith("cluster")
            assert problem.rule
            assert problem.fix
    else:
        assert len(result.nodes) == num_nodes
