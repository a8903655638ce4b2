"""What RLinf accepts in silence is said, and what it refuses is said all at once, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from telling import Words

from edgelink.placement import Driver, InvalidClusterError, Node, Plan, plan, rlinf_rules
from edgelink.placement.cluster_file import read_cluster_file


def node(rank: int, gpus: int = 0, **known: Any) -> Node:
    return Node(rank, f"10.10.0.{rank + 1}", f"n{rank}", "NV_GPU" if gpus else "NO_ACCEL", gpus, **known)


def group(label: Any, ranks: Any, **more: Any) -> dict[str, Any]:
    return {"label": label, "node_ranks": ranks, **more}


def section(components: dict[str, Any], *groups: dict[str, Any], num_nodes: int = 2) -> dict[str, Any]:
    return {"num_nodes": num_nodes, "node_groups": list(groups) or None, "component_placement": components}


def via(label: Any, placement: Any) -> dict[str, Any]:
    return {"node_group": label, "placement": placement}


def codes(result: Plan) -> list[str]:
    return [notice.code for notice in result.notices]


ENV = [{"node_ranks": "all", "env_vars": [{"A": 1}]}]
ROBOT = {"type": "Franka", "configs": [{"node_rank": 1, "robot_ip": "10.0.0.1", "camera_serials": ["a"]}] * 2}


def arm(**more: Any) -> dict[str, Any]:
    return {"type": "Franka", "configs": [{"node_rank": 1, "robot_ip": "10.0.0.1", **more}]}


@pytest.mark.parametrize(
    ("cluster", "code", "names"),
    [
        (section({"a": "0-1", "b": "1"}), "accelerators_shared", "a and b share accelerators 1 of node 0"),
        (section({"a": {**via("cluster", "0"), "plasement": 1}}), "unknown_key_ignored", "a.plasement is ignored"),
        (section({"a": via("g,e", "0")}, group("g", 0), group("e", 1)), "numbers_mean_nodes", "g,e"),
        (section({"a": via("g", "0")}, group("g", "0-1")), "nodes_without_number", "node 0 has one: node 1, "),
        (section({"a": via("g,g", "0")}, group("g", 0)), "group_named_twice", "g,g"),
        (section({"a": "0"}, group("g", 0, env_configs=ENV)), "env_config_not_applied", "node 0: no process"),
        (section({"a": "0"}, group("g", "")), "group_without_nodes", "'g' has no nodes"),
        (section({"a": "0"}, group(True, 0)), "yaml_changed_value", "calls the group 'True'"),
        (section({"a": "0:5"}), "process_ranks_renumbered", "it becomes 0"),
        (section({"a": "0"}, group("r", 1, hardware=ROBOT)), "robot_defined_twice", "node_groups[0].hardware.configs"),
        (section({"a": via("cluster", "0")}, group("r", 1, hardware=arm())), "robot_not_reached", "Franka of node 1"),
        (
            section({"a": via("r", "0")}, group("r", 1, hardware=arm(controller_node_rank=2))),
            "controller_not_a_node",
            "controller_node_rank 2 is no node",
        ),
        ({**section({"a": "0"}), "auto_scheduler": True}, "placed_by_program", "auto_scheduler"),
        (
            section({"a": "0"}, group("g", 0, ignore_hardware=True, hardware_type="Accelerator")),
            "ignore_hardware_without_effect",
            "hardware_type: Accelerator",
        ),
    ],
)
def test_what_users_regret_is_a_notice(cluster: dict[str, Any], code: str, names: str, words: Words) -> None:
    """With the key it is about, and what to do."""
    result = plan(cluster, [node(0, 2), node(1)])

    (notice,) = [notice for notice in result.notices if notice.code == code]
    assert names in str(notice)
    words.on("plan", notice)
    assert notice.key.startswith("cluster.")


def test_the_installed_rlinf_decides_where_versions_differ(words: Words) -> None:
    """RLinf 0.4 reads two keys more, and compares robots that hold a list."""
    twice = section({"a": "0"}, group("r", 1, hardware=ROBOT))
    slow = {**section({"a": "0"}), "net_emulation": {"enabled": True}, "tracer": {}}
    nodes, new = [node(0, 2), node(1, 2)], rlinf_rules("0.4.0")

    with pytest.raises(InvalidClusterError) as caught:
        plan(twice, nodes, rules=new)
    assert [problem.rule for problem in caught.value.problems] == ["hardware entries duplicated"]
    (notice,) = plan(slow, nodes, rules=new).notices
    assert notice.code == "links_slowed_down"
    words.on("plan", notice)
    assert codes(plan(slow, nodes, rules=rlinf_rules("0.3.0"))) == ["unknown_key_ignored"] * 2
    assert codes(plan({**slow, "net_emulation": {"enabled": False}}, nodes, rules=new)) == []


def test_a_group_of_accelerators_that_has_none_next_to_one_that_has_is_valid() -> None:
    """Of the group without any there is no number to tell of."""
    groups = group("gpu", 0), group("more", 1, hardware_type="Accelerator")
    result = plan(section({"a": via("gpu,more", "all")}, *groups), [node(0, 1), node(1)])

    assert [item.node_rank for item in result.placements["a"]] == [0]


def test_a_plain_cluster_has_no_notice() -> None:
    """Else nobody reads them."""
    cluster = section({"a": via("g", "0-1"), "e": via("e", "0")}, group("g", 0), group("e", 1))
    assert codes(plan(cluster, [node(0, 2), node(1)])) == []


def test_a_robot_that_a_component_drives_has_no_notice() -> None:
    """Through its own group or another of its type; nor has what RLinf's own programs read."""
    hardware = arm(controller_node_rank=0)
    more = {"use_pre_process_policy": False, "recreate_nccl_groups": True}
    for label in ("r", "all"):
        cluster = section(
            {"e": via(label, "0")}, group("r", 1, hardware=hardware), group("all", "0-1", hardware_type="Franka")
        )
        assert codes(plan({**cluster, **more}, [node(0, 2), node(1)])) == []


def test_a_robot_that_only_the_environment_knows_is_said() -> None:
    """ROBOT_IP on a machine makes a robot of RLinf's, whether or not anybody asked for one."""
    env = {"ROBOT_IP": "10.0.0.1,10.0.0.2", "DISABLE_VALIDATE": "1,yes"}
    result = plan(section({"a": via("node", "0")}), [node(0, 1), node(1, env=env, cameras=())])

    assert codes(result) == ["robot_from_environment"]
    assert "n1 (10.10.0.2) gets 2 Franka only because ROBOT_IP is set" in result.notices[0].message
    assert result.nodes[1].hardware == {"Franka": 2}


def test_what_is_not_known_of_a_node_is_not_refused() -> None:
    """Offline nobody knows which files a machine has."""
    env_configs = [{"node_ranks": 1, "python_interpreter_path": "/opt/python"}]
    cluster = section({"a": via("g", "0")}, group("g", 1, env_configs=env_configs))

    result = plan(cluster, [node(0), node(1)])
    assert codes(result) == ["interpreter_not_checked"]
    assert result.py_executable("a", 0) == "/opt/python"

    with pytest.raises(InvalidClusterError) as caught:
        plan(cluster, [node(0), node(1, paths=frozenset())])
    (problem,) = caught.value.problems
    assert (problem.value, problem.rule) == ("/opt/python", "interpreter missing on node")
    assert "node 1, n1" in problem.detail


def test_a_hidden_duplicate_of_a_rank_is_said(words: Words) -> None:
    """RLinf takes whichever Ray lists first."""
    result = plan(section({"a": "0"}), [node(0), node(1), Node(1, "10.10.0.9", "twin")])

    assert codes(result) == ["extra_nodes_ignored", "duplicate_rank_hidden"]
    assert all(name in result.notices[1].message for name in ("twin (10.10.0.9)", "n1 (10.10.0.2)", "node rank 1"))
    words.on("plan", result.notices[1])


def test_all_mistakes_of_all_stages_come_at_once() -> None:
    """In the order in which RLinf would meet them one by one, each with its key."""
    cluster = {
        "num_nodes": 3,
        "profiling": {"backend": "perf"},
        "node_groups": [
            {"label": "node", "node_ranks": 0},
            {"label": "e", "node_ranks": "1-9", "env_configs": [{"node_ranks": 1, "env_vars": {"A": 1}}]},
            {"lable": "x", "node_ranks": 0},
        ],
        "component_placement": {"actor": "0:1:2", "env": via("egde", "0"), "agent": via("e", "0-x")},
    }
    with pytest.raises(InvalidClusterError) as caught:
        plan(cluster, [node(0), node(1)])

    assert [(problem.key.removeprefix("cluster."), problem.rule) for problem in caught.value.problems] == [
        ("profiling.backend", "profiling backend unknown"),
        ("node_groups[2].lable", "node group field unknown"),
        ("node_groups[0].label", "reserved label"),
        ("node_groups[1].env_configs[0].env_vars", "env_vars not a list"),
        ("node_groups[1].node_ranks", "node_ranks out of cluster range"),
        ("num_nodes", "waits for missing nodes"),
        ("component_placement.actor", "too many colons"),
        ("component_placement.env.node_group", "node_group label unknown"),
        ("component_placement.agent.placement", "placement string malformed"),
    ]
    assert caught.value.stage == "parse"
    assert "judged against 2 nodes: 0-1 (no accelerator each)" in str(caught.value)
    assert "did you mean label?" in str(caught.value)


@pytest.mark.parametrize(
    ("components", "groups", "form"),
    [
        ({"a": via(["g", "e"], "0")}, (), "write 'g,e'"),
        ({"a": "0"}, (group("l", [0, 1]),), "write '0,1'"),
        (
            {"a": "0"},
            (group("l", "0-1", env_configs=[{"node_ranks": n, "env_vars": [{"A": n}]} for n in (0, 1)]),),
            "once a group",
        ),
    ],
)
def test_where_the_guide_is_wrong_the_error_says_so(components: Any, groups: Any, form: str, words: Words) -> None:
    """And gives the form that works."""
    with pytest.raises(InvalidClusterError) as caught:
        plan(section(components, group("g", 0), group("e", 1), *groups), [node(0), node(1)])
    assert all(part in caught.value.problems[0].fix for part in ("guide", form))
    words.on("plan", caught.value.problems[0].fix)


def test_values_that_yaml_changed_are_said(tmp_path: Path) -> None:
    """Unquoted, 1:0 is 60, 010 is 8, and on is a boolean."""
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "cluster:\n  num_nodes: 010\n  node_groups: [{label: on, node_ranks: 1_0}]\n"
        "  component_placement: {actor: 1:0, env: 0, agent: '1:0', eval: 0-3}\n"
        "logger: {label: 007, placement: on}\n"  # the program's own matter
    )
    assert [(notice.key, notice.message, notice.fix) for notice in read_cluster_file(file).notices] == [
        ("cluster.node_groups[0].label", "YAML reads on as True", "quote it: 'on'"),
        ("cluster.node_groups[0].node_ranks", "YAML reads 1_0 as 10", "quote it: '1_0'"),
        ("cluster.component_placement.actor", "YAML reads 1:0 as 60", "quote it: '1:0'"),
    ]


def test_a_key_that_is_written_twice_is_refused(tmp_path: Path) -> None:
    """As OmegaConf refuses it; plain YAML would take the last."""
    file = tmp_path / "cluster.yaml"
    file.write_text("num_nodes: 1\nnum_nodes: 2\ncomponent_placement: {}\n")
    with pytest.raises(Exception, match="line 2 has the key num_nodes again"):
        read_cluster_file(file)


def test_a_driver_that_changed_its_shell_changes_every_node() -> None:
    """RLinf pushes what differs from the driver's node at `ray start`; paths are put in front, not replaced."""
    env = {"HOME": "/home/a", "PATH": "/usr/bin"}
    nodes = [node(0, env=env), node(1, env={**env, "HOME": "/home/robot"})]
    driver = Driver(0, {"HOME": "/root", "PATH": "/opt/bin:/usr/bin", "NCCL_CUMEM_ENABLE": "1"})

    result = plan(section({"a": via("node", "all")}), nodes, driver=driver)

    assert result.env("a", 1)["HOME"] == "/root"
    assert result.env("a", 1)["PATH"] == "/opt/bin:/usr/bin"
    unchanged = plan(section({"a": via("node", "all")}), nodes)
    assert unchanged.env("a", 1)["HOME"] == "/home/robot"


def test_profilers_wrap_the_interpreter_where_they_are_installed() -> None:
    """Of the worker groups that are named; elsewhere the launch would fail."""
    cluster = section({"a": "0", "b": "0"}, num_nodes=1)
    cluster["profiling"] = {"backend": "nsight", "worker_groups": ["A"], "options": {"t": "cuda"}, "steps": [1]}
    there = node(0, python="/usr/bin/python3", profilers=frozenset({"nsight"}))

    result = plan(cluster, [there])
    assert result.py_executable("b", 0) == "/usr/bin/python3"
    assert result.py_executable("a", 0) == (
        "nsys profile -t cuda --capture-range=cudaProfilerApi --capture-range-end=stop "
        "-o /tmp/rlinf_profile_a_0_%p /usr/bin/python3"
    )
    with pytest.raises(InvalidClusterError) as caught:
        plan(cluster, [node(0, profilers=frozenset())])
    assert (caught.value.stage, caught.value.problems[0].rule) == ("placement", "profiling tool missing on node")


def test_a_profiler_of_another_maker_has_variables_of_its_own() -> None:
    """rocprof-sys wraps Python by a program of its own, and is told by the environment where its reports go."""
    cluster = section({"a": "0", "b": "0"}, num_nodes=1)
    cluster["profiling"] = {
        "backend": "rocprof_sys",
        "worker_groups": "a",
        "output_dir": "/data/profiles",
        "args": {"trace": "on", "v": 1},
        "env": {"ROCPROFSYS_TIME_OUTPUT": True},
    }
    there = node(0, python="/usr/bin/python3", profilers=frozenset({"rocprof_sys"}))

    result = plan(cluster, [there])
    assert result.py_executable("a", 0) == "rocprof-sys-python --trace=on -v 1 -- /usr/bin/python3"
    ours = {name: value for name, value in result.env("a", 0).items() if name.startswith("ROCPROFSYS")}
    assert ours == {
        "ROCPROFSYS_TIME_OUTPUT": "True",
        "ROCPROFSYS_OUTPUT_PATH": "/data/profiles",
        "ROCPROFSYS_OUTPUT_PREFIX": "rlinf_profile_a_0_%p",
    }
    assert not any(name.startswith("ROCPROFSYS") for name in result.env("b", 0))


@pytest.mark.parametrize(("word", "meant"), [(True, "stop"), ("off", "none"), ("repeat:3", "repeat:3")])
def test_nsights_older_name_for_the_end_of_a_range_is_understood(word: Any, meant: str) -> None:
    """``stop-on-range-end`` is ``capture-range-end``, by yes or no."""
    cluster = section({"a": "0"}, num_nodes=1)
    cluster["profiling"] = {
        "backend": "nsight",
        "worker_groups": "all",
        "flags": ["f", "stats"],
        "options": {"stop-on-range-end": word, "o": "here"},
    }
    there = node(0, python="/usr/bin/python3", profilers=frozenset({"nsight"}))
    expected = f"nsys profile -f --stats -o here --capture-range-end={meant} /usr/bin/python3"
    assert plan(cluster, [there]).py_executable("a", 0) == expected
