"""The resolver's promises: exact placements, strict input, and errors that say where, what, why and what to do."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from telling import Words

from edgelink.errors import ExitCode
from edgelink.placement import InvalidClusterError, Node, Plan, plan
from edgelink.placement.explain import explain


def nodes(*accelerators: int) -> list[Node]:
    """One node a number: its count of accelerators."""
    return [
        Node(rank, f"10.10.0.{rank + 1}", f"node-{rank}", "NV_GPU" if count else "NO_ACCEL", count)
        for rank, count in enumerate(accelerators)
    ]


def cluster(placement: Any, *, num_nodes: int = 1, groups: dict[Any, Any] | None = None, **more: Any) -> dict[str, Any]:
    listed = None if groups is None else [{"label": label, "node_ranks": ranks} for label, ranks in groups.items()]
    return {"num_nodes": num_nodes, "node_groups": listed, "component_placement": placement, **more}


def nsight(**fields: Any) -> dict[str, Any]:
    return {"profiling": {"backend": "nsight", **fields}}


def landed(result: Plan, component: str) -> list[tuple[int, str]]:
    """(node rank, visible devices) of each process."""
    return [(item.node_rank, item.visible_devices) for item in result.placements[component]]


DEMO = cluster(
    {
        "actor": {"node_group": "cloud", "placement": "0"},
        "rollout": {"node_group": "edge", "placement": "0-1"},
        "env": {"node_group": "edge", "placement": "0-1"},
    },
    num_nodes=3,
    groups={"cloud": "0", "edge": "1-2"},
)


def broken(section: Any, there: list[Node], **given: Any) -> list[tuple[str, str, str]]:
    """Stage, key and rule of all problems of a plan that is refused."""
    with pytest.raises(InvalidClusterError) as caught:
        plan(section, there, **given)
    return [(str(problem.stage), problem.key, problem.rule) for problem in caught.value.problems]


def test_the_demo_puts_the_learner_in_the_cloud_and_a_pair_on_each_edge() -> None:
    """The cluster file of the README lands as the README says."""
    result = plan(DEMO, nodes(0, 0, 0))

    assert landed(result, "actor") == [(0, "")]
    assert landed(result, "rollout") == landed(result, "env") == [(1, ""), (2, "")]
    assert result.placements["env"][1].strategy == "NODE"


def test_plan_as_json_has_the_documented_fields() -> None:
    """``to_dict`` is JSON, with RLinf's field names."""
    content = json.loads(json.dumps(plan(DEMO, nodes(0, 0, 0)).to_dict(env=False)))

    assert content["world_size"] == {"actor": 1, "rollout": 2, "env": 2}
    assert content["groups"][1] == {
        "label": "edge",
        "node_ranks": [1, 2],
        "hardware_type": None,
        "resource_count": 2,
    }
    assert content["nodes"][2]["labels"] == ["edge"]
    assert content["placements"]["env"][1] == {
        "process_rank": 1,
        "node_rank": 2,
        "placement_node_rank": 1,
        "node_group": "edge",
        "strategy": "NODE",
        "resource_ranks": [1],
        "hardware_ranks": [],
        "accelerator_type": "NO_ACCEL",
        "accelerators": [],
        "local_accelerator_rank": -1,
        "local_rank": 0,
        "local_world_size": 1,
        "visible_devices": "",
        "isolate": True,
        "actor_name": "env:1",
    }


@pytest.mark.parametrize(
    ("placement", "counts", "expected"),
    [
        ("0-3", (4,), [(0, "0"), (0, "1"), (0, "2"), (0, "3")]),
        ("all", (2, 0, 1), [(0, "0"), (0, "1"), (2, "0")]),  # the CPU node has no rank number
        ("0-3:0-1", (4,), [(0, "0,1"), (0, "2,3")]),
        ("0-1:0-3", (2,), [(0, "0"), (0, "0"), (0, "1"), (0, "1")]),
        ("1:0-1,3", (4,), [(0, "1"), (0, "1"), (0, "3")]),
        ("0:5", (1,), [(0, "0")]),  # the first process rank may be any; ranks are counted from 0
        (" ALL ", (0, 0), [(0, ""), (1, "")]),
        ("0:0-1,1:2", (0, 0), [(0, ""), (0, ""), (1, "")]),
        (1, (0, 0), [(1, "")]),
        ("007", (8,), [(0, "7")]),
        (",0,,1,", (2,), [(0, "0"), (0, "1")]),
    ],
)
def test_placement_strings_mean_what_they_mean_in_rlinf(
    placement: Any, counts: tuple[int, ...], expected: list[tuple[int, str]]
) -> None:
    """Numbers are accelerators if any node has one, else nodes; ``resources:processes`` shares or slices."""
    result = plan(cluster({"x": placement}, num_nodes=len(counts)), nodes(*counts))

    assert landed(result, "x") == expected


@pytest.mark.parametrize(
    ("placement", "rule"),
    [
        ("0-8", "resource rank out of range"),
        ("3-1", "resource range descending"),
        ("0,0", "resource rank repeated"),
        ("all,0", "resource rank repeated"),
        ("4-7,0-3", "resource ranks not ascending"),
        ("4,0-1:x", "resource ranks not ascending"),  # before the processes are looked at
        ("0-3:all", "process ranks cannot be all"),
        ("0-3:0-5", "process and resource counts not divisible"),
        ("0-1:0-1,2-3:1-2", "process rank repeated"),
        ("0:0,1:2", "process ranks not contiguous"),
        ("0:3-1", "process range descending"),
        ("0-1:", "process ranks empty"),
        (":0-3", "resource ranks empty"),
        ("0::1", "too many colons"),
        ("", "placement string empty"),
        ("0--1", "placement string malformed"),
        ("0-1-2", "placement string malformed"),
        (-1, "placement string malformed"),
        ([0, 1], "placement string malformed"),
        (True, "placement string malformed"),
        ({"node_group": "node"}, "placement string missing"),
        ({"node_group": "gpu", "placement": 0}, "node_group label unknown"),
        ({"node_group": ["cloud"], "placement": 0}, "node_group label unknown"),
    ],
)
def test_bad_placements_are_refused_by_the_rule_they_break(placement: Any, rule: str) -> None:
    """Each error names the key, the rule and what to do."""
    with pytest.raises(InvalidClusterError) as caught:
        plan(cluster({"actor": placement}), nodes(8))

    (problem,) = caught.value.problems
    assert problem.rule == rule
    assert problem.key.startswith("cluster.component_placement.actor")
    assert problem.fix
    assert (caught.value.exit_code, caught.value.condition_reason) == (ExitCode.CONFIG, "PlacementInvalid")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"num_nodes": 0}, "num_nodes not a positive integer"),
        ({"num_nodes": True}, "num_nodes not a positive integer"),
        ({"num_nodes": None}, "num_nodes not a positive integer"),
        ({"num_nodes": 4}, "waits for missing nodes"),
        ({"component_placement": None}, "component_placement not a mapping"),
        ({"component_placement": {"x": 0, " x": 1}}, "component named twice"),
        ({"node_groups": "edge"}, "node group not a mapping"),
        ({"node_groups": 3}, "wrong YAML type"),
        ({"node_groups": ["edge"]}, "node group not a mapping"),
        ({"node_groups": [{"label": "a"}]}, "node group field missing"),
        ({"node_groups": [{"label": "a", "node_ranks": 0, "color": 1}]}, "node group field unknown"),
        ({"node_groups": [{"label": "cluster", "node_ranks": 0}]}, "reserved label"),
        (
            {"node_groups": [{"label": True, "node_ranks": 0}, {"label": "True", "node_ranks": 1}]},
            "node group label duplicated",
        ),
        ({"node_groups": [{"label": "a", "node_ranks": [0, 1]}]}, "node_ranks malformed"),
        ({"node_groups": [{"label": "a", "node_ranks": "1-0"}]}, "node_ranks range descending"),
        ({"node_groups": [{"label": "a", "node_ranks": "0-3"}]}, "node_ranks out of cluster range"),
        ({"node_groups": [{"label": "a", "node_ranks": 0, "hardware": {"type": "Franka"}}]}, "hardware field missing"),
        ({"node_groups": [{"label": "a", "node_ranks": 0, "env_configs": [{}]}]}, "env config field missing"),
        ({"node_groups": [{"label": "a", "node_ranks": " all "}]}, "node_ranks malformed"),
        (nsight(steps=[-1]), "profiling step negative"),
        (nsight(steps="1"), "profiling steps not a list"),
        (nsight(steps=["first"]), "profiling step not an integer"),
        (nsight(worker_groups=3), "profiling worker_groups not a list"),
        (nsight(options=["t"]), "profiling options not a mapping"),
        (nsight(args={"t": 1}), "profiling field unknown"),
        (nsight(flags=[""]), "profiling flag empty"),
        (nsight(flags="t", options={"t": "cuda"}), "profiling options contradict"),
        (nsight(options={"o": "a", "output": "b"}), "profiling options contradict"),
        (nsight(options={"stop-on-range-end": True, "capture-range-end": "none"}), "profiling options contradict"),
    ],
)
def test_bad_sections_are_refused_by_the_rule_they_break(change: dict[str, Any], rule: str) -> None:
    """The cluster level and the groups are as strict as the placements."""
    with pytest.raises(InvalidClusterError) as caught:
        plan({**cluster({"x": "0"}, num_nodes=3), **change}, nodes(0, 0, 0))

    assert rule in [problem.rule for problem in caught.value.problems]


@pytest.mark.parametrize("section", [None, "num_nodes: 1", [1]])
def test_what_is_no_section_is_refused(section: Any) -> None:
    """As everything else: with a key and a rule."""
    assert broken(section, nodes(0))[0] == ("parse", "cluster", "cluster not a mapping")


def test_the_section_is_left_as_it_was() -> None:
    """A plan may be made again of the same section, for other nodes."""
    section = cluster({"x": "all"}, groups={"g": 0}, profiling={"backend": "nsight", "options": {"t": 1}, "steps": [1]})
    section["node_groups"][0]["env_configs"] = [{"node_ranks": 0, "env_vars": [{"A": 1}]}]
    before = json.dumps(section)
    plan(section, nodes(2))
    assert json.dumps(section) == before


def test_all_problems_come_at_once(words: Words) -> None:
    """One look shows every mistake, each with its key."""
    bad = cluster({"actor": "9", "env": {"node_group": "egde", "placement": "0"}}, num_nodes=3, groups={"edge": "1-2"})

    with pytest.raises(InvalidClusterError) as caught:
        plan(bad, nodes(0, 0, 0))

    assert [(each.key, each.value, each.rule) for each in caught.value.problems] == [
        ("cluster.component_placement.actor", "9", "resource rank out of range"),
        ("cluster.component_placement.env.node_group", "egde", "node_group label unknown"),
    ]
    words.on("plan", caught.value)


@pytest.mark.parametrize(
    ("counts", "there_is", "order"),
    [
        ((4, 0, 8), "0-11", (1, 0, 2)),
        ((0, 0, 0), "0-2", (0, 1, 2)),
    ],
)
def test_nodes_without_the_accelerators_that_are_expected_are_named(
    counts: tuple[int, ...], there_is: str, order: tuple[int, ...], words: Words
) -> None:
    """Ray may see none where a driver is broken; who brings least is named first."""
    there = nodes(*counts)
    with pytest.raises(InvalidClusterError) as caught:
        plan(cluster({"actor": "0-15"}, num_nodes=3), there)
    (problem,) = caught.value.problems
    assert problem.rule == "resource rank out of range"
    assert all(figure in problem.detail for figure in ("15", there_is))
    assert re.search(".*".join(re.escape(there[rank].name) for rank in order), problem.fix)
    assert caught.value.condition_reason == "PlacementInvalid"
    words.on("plan", caught.value)


def test_more_nodes_than_there_are_names_who_is_there(words: Words) -> None:
    """A cluster file for three machines on two says so, instead of RLinf's endless wait."""
    with pytest.raises(InvalidClusterError) as caught:
        plan(DEMO, nodes(0, 0))

    (problem,) = caught.value.problems
    assert (problem.key, problem.value, problem.rule) == ("cluster.num_nodes", 3, "waits for missing nodes")
    assert all(node.name in problem.detail for node in nodes(0, 0))
    words.on("plan", caught.value)
    words.on("plan", caught.value.hint)


def test_an_unquoted_base_60_number_is_explained() -> None:
    """YAML turns 1:0 into 60; the error says so."""
    with pytest.raises(InvalidClusterError, match="quote it: YAML reads"):
        plan(cluster({"actor": 60}), nodes(8))


def test_an_unknown_cluster_key_is_noticed() -> None:
    """RLinf ignores it silently; a typo should at least be said."""
    result = plan(cluster({"x": "0"}, node_group=[]), nodes(0)).to_dict()

    (notice,) = result["notices"]
    assert (notice["code"], notice["fix"]) == ("unknown_key_ignored", "did you mean node_groups?")
    assert "cluster.node_group " in notice["message"]
    assert result["warnings"] == [], "RLinf itself warns of nothing here"


def test_without_isolation_every_process_sees_all_accelerators_of_its_node() -> None:
    """``isolate=False`` widens what is visible, not where a process runs."""
    result = plan(cluster({"x": "0-1"}), nodes(4), isolate=False)

    assert landed(result, "x") == [(0, "0,1,2,3")] * 2


def test_ignore_hardware_makes_numbers_mean_nodes() -> None:
    """A group of GPU nodes can still be addressed by node."""
    section = cluster({"x": {"node_group": "g", "placement": "1"}}, num_nodes=2)
    section["node_groups"] = [{"label": "g", "node_ranks": "all", "ignore_hardware": True}]

    assert landed(plan(section, nodes(4, 2)), "x") == [(1, "0,1")]


@pytest.mark.parametrize(
    ("label", "placement", "expected"),
    [
        ("a,b", "all:0-1", [(0, "0,1"), (1, "0,1")]),
        ("a,c", "0-1", [(0, "0,1"), (2, "")]),  # one group without accelerators: whole nodes for all
        ("b,a", "0-3", "groups not in node order"),
        ("a,c", "2", "node index out of range"),
        ("a,b", "0-3:0", "process hardware spans nodes"),
        ("c,c", "0-1", "node placement over overlapping groups"),
        ("c,node", "0:0", "node placement over overlapping groups"),
    ],
)
def test_several_groups_are_numbered_through(label: str, placement: str, expected: Any) -> None:
    """Ranks run through the named groups in written order, with RLinf's limits."""
    section = cluster(
        {"x": {"node_group": label, "placement": placement}}, num_nodes=3, groups={"a": 0, "b": 1, "c": 2}
    )
    if isinstance(expected, str):
        assert [rule for *_, rule in broken(section, nodes(2, 2, 0))] == [expected]
    else:
        assert landed(plan(section, nodes(2, 2, 0)), "x") == expected


@pytest.mark.parametrize(
    ("ranks", "grouped", "rule"),
    [
        ([0, None], False, "node rank set on only some nodes"),
        ([None, 1], True, "node rank missing with node_groups"),
        ([0, 0], False, "node ranks not unique and contiguous"),
        ([0, 2], False, "node rank too large"),
        ([0, -3], False, "node rank negative"),
        ([0, "1.0"], False, "node rank not an integer"),
    ],
)
def test_ranks_that_rlinf_would_refuse_are_refused_before(ranks: list[Any], grouped: bool, rule: str) -> None:
    """Duplicate, missing or impossible ranks are named with the node that has them."""
    there = [Node(rank, f"10.10.0.{index}") for index, rank in enumerate(ranks)]

    section = cluster({"x": "all"}, num_nodes=2, groups={"g": 0} if grouped else None)
    assert [found for *_, found in broken(section, there)] == [rule]


def test_each_kind_of_group_is_explained(words: Words) -> None:
    """What a number means in it and why; who has nothing that is numbered; and how several are numbered."""
    arms = {"type": "Franka", "configs": [{"node_rank": 2, "robot_ip": "172.16.0.2"}]}
    section = cluster(
        {
            "learner": {"node_group": "gpu", "placement": "0-3"},
            "everywhere": {"node_group": "node", "placement": "all"},
            "robot": {"node_group": "arm", "placement": "0"},
            "helper": {"node_group": "plain", "placement": "0"},
            "both": {"node_group": "plain, arm", "placement": "0-1"},
        },
        num_nodes=3,
    )
    section["node_groups"] = [
        {"label": "gpu", "node_ranks": "0-1"},
        {"label": "arm", "node_ranks": 2, "hardware": arms},
        {"label": "plain", "node_ranks": 0, "ignore_hardware": True},
    ]
    planned = plan(section, nodes(4, 0, 0))
    told = {name: "\n".join(explain(planned, section, name)) for name in section["component_placement"]}
    assert "node 0 has 4" in told["learner"]
    assert "node 1 has no" in told["learner"]
    assert "nodes" in told["everywhere"]
    assert "Franka" in told["robot"]
    assert "ignore_hardware" in told["helper"]
    assert "2 processes" in told["both"]
    for text in told.values():
        words.on("plan", text)


def test_nodes_without_ranks_are_ordered_as_rlinf_orders_them() -> None:
    """By accelerator type, then IP as a string; the driver's node comes first."""
    there = [Node(None, "10.0.0.2"), Node(None, "10.0.0.10"), Node(None, "10.0.0.1", "", "NV_GPU", 1)]

    result = plan(cluster({"x": {"node_group": "node", "placement": "all"}}, num_nodes=3), there, driver=2)

    assert [node.ip for node in result.nodes] == ["10.0.0.1", "10.0.0.10", "10.0.0.2"]


def test_surplus_nodes_are_left_out_and_named() -> None:
    """More nodes than asked for is a notice; a driver on one of them is an error."""
    result = plan(cluster({"x": "all"}, num_nodes=2), nodes(0, 0, 0))

    assert [notice.code for notice in result.notices] == ["extra_nodes_ignored"]
    assert "node-2" in result.notices[0].message
    found = broken(cluster({"x": "all"}, num_nodes=2), nodes(0, 0, 0), driver=2)
    assert [rule for *_, rule in found] == ["driver node outside num_nodes"]


def test_the_drivers_own_num_nodes_must_agree() -> None:
    """``Cluster(num_nodes=…)`` and the file may not differ."""
    found = broken(cluster({"x": "all"}, num_nodes=2), nodes(0, 0), num_nodes=3)
    assert [rule for *_, rule in found] == ["num_nodes argument differs from config"]
