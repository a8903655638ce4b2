"""Which paths are looked for on which nodes, and which missing ones keep a run from being started."""

from __future__ import annotations

from typing import Any

import click
import pytest
from telling import refuses

from edgelink.cli.options import REQUIRED_PATH
from edgelink.errors import UsageError
from edgelink.training.required_paths import NeededPath, asked_for, by_node, judge_paths, named_by_config

NODES = {0: "cloud", 1: "edge-1", 2: "edge-2"}
PLACEMENT: dict[str, Any] = {
    "placements": {"actor": [{"node_rank": 0}], "env": [{"node_rank": 1}, {"node_rank": 2}, {"node_rank": 2}]},
    "groups": [{"label": "robots", "node_ranks": [2]}, {"label": "cluster", "node_ranks": [0, 1, 2]}],
}
WHY = "No such file or directory"


def test_the_option_takes_a_path_with_or_without_a_name() -> None:
    option = REQUIRED_PATH
    assert option.convert("/data/x", None, None) == (None, "/data/x")
    assert option.convert("/data/a:/b", None, None) == (None, "/data/a:/b")
    assert option.convert("env:/data/x", None, None) == ("env", "/data/x")
    for wrong in ("data/x", "env:data", ":/data", "env:", ""):
        with pytest.raises(click.BadParameter, match=f"'{wrong}' .*NAME:/PATH"):
            option.convert(wrong, None, None)


def test_a_path_is_looked_for_on_the_nodes_of_its_component_or_group() -> None:
    needed = asked_for([(None, "/all"), ("env", "/env"), ("robots", "/robots")], NODES, PLACEMENT)
    assert by_node(needed) == {
        "cloud": ["/all"],
        "edge-1": ["/all", "/env"],
        "edge-2": ["/all", "/env", "/robots"],
    }


def test_a_name_that_the_plan_does_not_have_is_refused() -> None:
    with refuses(UsageError, "rollout:", "actor, env, robots, cluster"):
        asked_for([("rollout", "/x")], NODES, PLACEMENT)
    with refuses(UsageError, "env:", "cluster file"):
        asked_for([("env", "/x")], NODES, None)


def test_the_configuration_names_what_it_reads() -> None:
    """By the names of the keys; not what is written, relative, composed, or of the cluster section."""
    config = {
        "cluster": {"component_placement": {}, "model_path": "/not/looked/at"},
        "runner": {"logger": {"log_path": "/results"}, "resume_dir": "/checkpoints/7"},
        "data": {"train_data_paths": ["/data/train.jsonl", "relative"], "val_data_paths": "${data.train_data_paths}"},
        "actor": {"model": {"model_path": "/models/pi0"}, "checkpoint_save_path": "/out", "seed": 3},
        "env": {"train": {"assets_path": "/assets", "video_base_dir": "/videos"}},
    }
    found = {each.key: (each.path, each.nodes, each.is_shared) for each in named_by_config(config, NODES, PLACEMENT)}
    everybody = ("cloud", "edge-1", "edge-2")
    assert found == {
        "runner.resume_dir": ("/checkpoints/7", everybody, True),
        "data.train_data_paths": ("/data/train.jsonl", everybody, True),
        "actor.model.model_path": ("/models/pi0", ("cloud",), False),
        "env.train.assets_path": ("/assets", ("edge-1", "edge-2"), False),
    }
    assert named_by_config(None, NODES, PLACEMENT) == []


def test_what_the_command_overrides_counts() -> None:
    """Hydra's words, also behind a shell."""
    config = {"actor": {"model": {"model_path": "/path/to/model"}}, "data": {"data_paths": ["/a", "/b"]}}

    def paths(*argv: str) -> list[str]:
        return [each.path for each in named_by_config(config, NODES, PLACEMENT, argv)]

    assert paths("python", "train.py", "runner.seed=3") == ["/path/to/model", "/a", "/b"]
    assert paths("python", "train.py", "actor.model.model_path=/m") == ["/m", "/a", "/b"]
    assert paths("bash", "-c", "python t.py '++actor.model.model_path=/m' x") == ["/m", "/a", "/b"]
    assert paths("t.py", "actor.model.model_path=org/name", "data.data_paths=[/c]") == []
    assert paths("t.py", "+env.assets_path=/s", "+env.log_path=/l") == ["/s", "/path/to/model", "/a", "/b"]
    assert named_by_config({}, NODES, PLACEMENT, ["+env.assets_path=/s"])[0].nodes == ("edge-1", "edge-2")


def test_what_is_asked_for_has_to_be_on_every_node() -> None:
    needed = [NeededPath("/x", ("edge-1", "edge-2"))]
    (finding,), told = judge_paths(needed, {"edge-1": {}, "edge-2": {"/x": WHY}})
    assert finding.message == f"--require-path /x: missing on edge-2 ({WHY})"
    assert not finding.may_pass
    assert told == []
    assert judge_paths(needed, {"edge-1": {}, "edge-2": {}}) == ([], [])


def test_what_the_configuration_names_has_to_be_somewhere() -> None:
    """Missing on all nodes of the component: refused; on some: told, where a component is named."""
    component = NeededPath("/m", ("edge-1", "edge-2"), "env.model_path")
    shared = NeededPath("/m", ("cloud", "edge-1"), "data.data_path", is_shared=True)
    some, everywhere = {"edge-1": {"/m": WHY}}, {name: {"/m": WHY} for name in NODES.values()}
    assert judge_paths([component], some) == ([], [f"env.model_path: /m: missing on edge-1 ({WHY})"])
    assert judge_paths([shared], some) == ([], [])
    findings, told = judge_paths([component, shared], everywhere)
    assert [finding.message.partition(":")[0] for finding in findings] == ["env.model_path", "data.data_path"]
    assert told == []
