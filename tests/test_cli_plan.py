"""``edgelink plan``: what people and scripts see, offline and of a head's Ray, and of Hydra's files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from telling import Words, refuses

from edgelink.cli.compose import read_cluster
from edgelink.cli.main import edgelink
from edgelink.errors import PlacementError, UsageError
from edgelink.placement import InvalidClusterError
from edgelink.placement.explain import masked

CLUSTER = """
runner: {}
cluster:
  num_nodes: 2
  node_groups:
    - {label: cloud, node_ranks: 0}
    - label: edge
      node_ranks: 1
      env_configs: [{node_ranks: 1, env_vars: [{GLOO_SOCKET_IFNAME: et1}], python_interpreter_path: /opt/p}]
  component_placement:
    actor: {node_group: cloud, placement: "0-1"}
    rollout,env: {node_group: edge, placement: "0:0-3"}
"""
NODES = [
    {"rank": 0, "ip": "10.10.0.2", "hostname": "cloud", "accelerator": "NV_GPU", "accelerator_count": 2},
    {
        "rank": 1,
        "ip": "10.10.0.3",
        "hostname": "franka-1",
        "env": {"HOME": "/home/robot", "HF_TOKEN": "hf_1"},
        "paths": ["/opt/p"],
    },
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "nodes.json").write_text(json.dumps({"nodes": NODES, "driver": {"env": {"HOME": "/root"}}}))
    return str(tmp_path / "cluster.yaml"), str(tmp_path / "nodes.json")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(edgelink, ["plan", *arguments], standalone_mode=False)


def shown(*arguments: str) -> str:
    result = run(*arguments)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_the_plan_is_shown_by_machine_and_by_component(files: tuple[str, str]) -> None:
    """Processes that are alike share a line."""
    file, nodes = files
    lines = [line.split() for line in shown(file, "--nodes", nodes).splitlines()]

    assert ["0", "cloud", "(10.10.0.2)", "2", "NV_GPU", "cloud", "actor", "0-1"] in lines
    assert ["1", "franka-1", "(10.10.0.3)", "-", "edge", "rollout", "0-3;", "env", "0-3"] in lines
    assert ["actor", "1", "0", "cloud", "(10.10.0.2)", "cloud", "1", "1", "-"] in lines
    row = ["env", "0-3", "1", "franka-1", "(10.10.0.3)", "edge", "whole", "node", "-", "/opt/p,", "GLOO_SOCKET_IFNAME"]
    assert row in lines


def test_a_plan_is_shown_once_where_its_machines_say_it_all(tmp_path: Path) -> None:
    """Whole nodes, and no environment of a process's own."""
    (tmp_path / "cluster.yaml").write_text("num_nodes: 2\ncomponent_placement: {actor: '0', env: '1'}\n")
    (tmp_path / "nodes.json").write_text(json.dumps([{"rank": rank, "ip": f"10.10.0.{rank + 2}"} for rank in (0, 1)]))
    lines = shown(str(tmp_path / "cluster.yaml"), "--nodes", str(tmp_path / "nodes.json")).splitlines()
    assert [line.split()[0] for line in lines] == ["node", "0", "1"]
    assert [line.count("actor") for line in lines] == [0, 1, 0]


def test_json_is_the_plan(files: tuple[str, str]) -> None:
    """Field names as in RLinf; environments where they are asked for."""
    file, nodes = files
    content = json.loads(shown(file, "--nodes", nodes, "--json"))
    assert content["ok"]
    assert [item["node_rank"] for item in content["placements"]["env"]] == [1, 1, 1, 1]
    assert "env" not in content["placements"]["env"][0]
    with_env = json.loads(shown(file, "--nodes", nodes, "--json", "--show-env"))
    assert with_env["placements"]["env"][0]["env"]["GLOO_SOCKET_IFNAME"] == "et1"
    assert with_env["placements"]["env"][0]["py_executable"] == "/opt/p"


def test_a_component_is_explained(files: tuple[str, str], words: Words) -> None:
    """What a number means, and because of what."""
    file, nodes = files
    told = [
        shown(file, "--nodes", nodes, "--explain", *options)
        for options in (["actor"], ["actor", "--no-isolate"], ["env"])
    ]
    assert "node 0 has 2" in told[0]
    assert len(set(told)) == len(told)
    for text in told:
        words.on("plan", text)
    with pytest.raises(UsageError, match="no component 'critic'") as caught:
        shown(file, "--nodes", nodes, "--explain", "critic")
    assert "actor, rollout, env" in caught.value.hint


def test_each_variable_has_a_source(files: tuple[str, str]) -> None:
    """What is passed, what is set, and what is dropped for it; no secret is shown."""
    file, nodes = files
    text = shown(file, "--nodes", nodes, "--explain", "env", "--show-env")

    assert "HF_TOKEN=***" in text
    assert "hf_1" not in text
    assert "HOME=/root   (dropped: /home/robot of node)" in text
    before, after = text.split("  set by env_configs of group edge:\n")
    assert "GLOO_SOCKET_IFNAME" not in before.split("env:0")[1]
    assert after.startswith("    GLOO_SOCKET_IFNAME=et1")
    assert "  passed by the node's own" in text
    assert "  set by the driver's shell" in text


def test_no_secret_is_shown_whatever_the_form(files: tuple[str, str], tmp_path: Path) -> None:
    """As data, too; nor the password of a proxy, whose name says nothing of it."""
    nodes = tmp_path / "secret.json"
    env = {"HF_TOKEN": "hf_1", "http_proxy": "http://user:pw1@proxy:3128"}
    nodes.write_text(json.dumps([NODES[0], {**NODES[1], "env": env}]))
    arguments = (files[0], "--nodes", str(nodes), "--show-env")

    for text in (shown(*arguments), shown(*arguments, "--json")):
        assert "hf_1" not in text
        assert "pw1" not in text
        assert "http://***@proxy:3128" in text
    process = json.loads(shown(*arguments, "--json"))["placements"]["env"][0]["env"]
    assert process["HF_TOKEN"] == "***"
    assert process["GLOO_SOCKET_IFNAME"] == "et1"


@pytest.mark.parametrize(
    "name",
    [
        *("SSH_PASSPHRASE", "GITHUB_PAT", "MY_CRED", "AWS_CREDS", "GOOGLE_APPLICATION_CREDENTIALS", "MYSQL_PWD"),
        *("AWS_ACCESS_KEY_ID", "WANDB_API_KEY", "DEPLOY_PRIVATE_KEY", "HF_TOKEN", "PGPASSWORD", "DB_PASS", "dbpass"),
    ],
)
def test_a_name_that_tells_of_a_secret_is_masked(name: str) -> None:
    assert masked(name, "hunter22") == "***"


@pytest.mark.parametrize(
    "name",
    [
        *("PATH", "PYTHONPATH", "COMPASS", "NO_BYPASS", "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "MONKEY"),
        *("XKB_KEYMAP", "PATTERN", "CREDIT", "PASSENGERS", "SSH_AUTH_SOCK", "DISPATCH"),
    ],
)
def test_an_innocent_name_is_shown(name: str) -> None:
    assert masked(name, "/usr/bin") == "/usr/bin"
    assert masked(name, "-----BEGIN OPENSSH PRIVATE KEY-----\nabc") == "***", "whatever its name is"


@pytest.mark.parametrize(
    "env_configs",
    [
        "{node_ranks: 1, env_vars: [{HF_TOKEN: hf_1}]}",
        "[HF_TOKEN=hf_1]",
        "[{node_ranks: 1, env_vars: {HF_TOKEN: hf_1}}]",
        "[{node_ranks: 1, env_vars: HF_TOKEN=hf_1}]",
        "[{node_ranks: 1, env_vars: [HF_TOKEN=hf_1]}]",
        "[{node_ranks: 1, env_vars: 'HF_TOKEN: hf_1'}]",
        "[{node_ranks: 1, env_vars: [{A: 1, HF_TOKEN: hf_1}]}]",
        "[{node_ranks: 1, env_var: [{HF_TOKEN: hf_1}]}]",
    ],
)
def test_a_mistake_in_the_environment_shows_no_value(tmp_path: Path, env_configs: str) -> None:
    """Errors are pasted into chats."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(
        f"{{num_nodes: 2, node_groups: [{{label: e, node_ranks: 1, env_configs: {env_configs}}}],"
        " component_placement: {actor: {node_group: e, placement: 0}}}"
    )
    with pytest.raises(InvalidClusterError, match="env") as caught:
        shown(str(bad))
    assert "hf_1" not in str(caught.value)
    assert "hf_1" not in run(str(bad), "--json").stdout


def test_all_mistakes_are_told_with_78(files: tuple[str, str], tmp_path: Path) -> None:
    """For people as an error, for scripts as data."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("cluster: {num_nodes: 2, component_placement: {actor: 1:0, env: 0:x, agent: {node_group: eg}}}")
    _, nodes = files

    with pytest.raises(InvalidClusterError) as caught:
        shown(str(bad), "--nodes", nodes)
    assert caught.value.exit_code == 78
    assert len(caught.value.problems) == 4
    assert "quote it: YAML reads" in str(caught.value)

    result = run(str(bad), "--nodes", nodes, "--json")
    content = json.loads(result.stdout)
    assert result.return_value == 78
    assert (content["ok"], content["stage"], len(content["problems"])) == (False, "component", 4)
    assert content["notices"][0]["code"] == "yaml_changed_value"
    assert "2 nodes: 0 cloud (10.10.0.2) (2 NV_GPU)" in content["judged_against"]


def test_without_nodes_what_no_node_can_mend_is_found(files: tuple[str, str], tmp_path: Path, words: Words) -> None:
    """And nothing is said of where a process lands."""
    file, _ = files
    told = shown(file)
    assert "actor" not in told
    words.on("plan", told, FILE=file)
    bad = tmp_path / "bad.yaml"
    bad.write_text("cluster: {num_nodes: 2, component_placement: {actor: '0-900', env: '0::1'}}")
    with pytest.raises(InvalidClusterError) as caught:
        shown(str(bad))
    rules = [problem.rule for problem in caught.value.problems]
    assert rules == ["too many colons"], "900 accelerators may come"


@pytest.mark.parametrize(
    ("placement", "rule"),
    [
        ("0-99999999999999999999", "more resources than a cluster can have"),
        ("0-100000", "more processes than a cluster can have"),
        ("0:0-59999,1:60000-119999", "more processes than a cluster can have"),
    ],
)
def test_without_nodes_numbers_have_a_bound(tmp_path: Path, placement: str, rule: str) -> None:
    """What no cluster has is a slip of the finger, whatever nodes there are."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(f"cluster: {{num_nodes: 2, component_placement: {{actor: '{placement}'}}}}")
    with pytest.raises(InvalidClusterError) as caught:
        shown(str(bad))
    assert [problem.rule for problem in caught.value.problems] == [rule]


@pytest.mark.parametrize("arguments", [("--explain", "nobody"), ("--show-env",), ("--no-isolate",)])
def test_what_tells_of_nodes_needs_nodes(files: tuple[str, str], arguments: tuple[str, ...]) -> None:
    """Exit status 0 would say that all is well with a component that is not there."""
    with refuses(UsageError) as caught:
        shown(files[0], *arguments)
    assert "--nodes FILE or --live" in caught.value.hint


def test_keys_that_are_no_texts_are_no_defect(files: tuple[str, str], tmp_path: Path) -> None:
    """Elsewhere in a training configuration they are no matter of EdgeLink."""
    whole = tmp_path / "train.yaml"
    whole.write_text(f"days: {{!!timestamp 2024-01-01: 1, !!binary aGk=: 2}}\n{CLUSTER}")
    assert shown(str(whole)).replace(str(whole), files[0]) == shown(files[0])


def test_a_file_is_read_once(files: tuple[str, str]) -> None:
    """So that ``<(…)`` and /dev/stdin can be named."""
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as pipe:
        pipe.write(CLUSTER)
        pipe.close()
        content = json.loads(shown(f"/dev/fd/{reader}", "--nodes", files[1], "--json"))
    assert content["world_size"]["actor"] == 2


def test_the_heads_ray_is_the_other_source_of_nodes(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its daemon tells who is alive; which files a node has it cannot tell, and says so."""
    listed = [{key: value for key, value in node.items() if key not in ("env", "paths")} for node in NODES]
    asked: list[Any] = []

    def call(_socket: Path, *request: str) -> dict[str, Any]:
        asked.append(request)
        return {"nodes": listed, "paused": [{"hostname": "edge-1", "why": "no answer for 12s"}]}

    monkeypatch.setattr("edgelink.cli.patience.call", call)
    monkeypatch.setattr("edgelink.cli.driver_run.refuse_elsewhere", lambda paths: {})
    file, nodes = files

    result = run(file, "--live", "--json")

    assert asked == [("GET", "/placement/nodes")]
    content = json.loads(result.stdout)
    assert [item["node_rank"] for item in content["placements"]["actor"]] == [0, 0]
    assert [notice["code"] for notice in content["notices"]] == ["interpreter_not_checked", "node_paused"]
    assert "edge-1 is paused" in run(file, "--live").stderr
    asked.clear()
    with refuses(UsageError, "--live", "--nodes"):
        shown(file, "--live", "--nodes", nodes)


@pytest.mark.parametrize(
    ("place", "content"),
    [
        ("", "{"),
        ("", '{"node": []}'),
        ("nodes[0].ip", '[{"rank": 0}]'),
        ("nodes[0].gpus", '[{"ip": "10.0.0.1", "gpus": 8}]'),
        ("nodes[0].accelerator", '[{"ip": "10.0.0.1", "accelerator": "GPU"}]'),
        ("driver.node", '{"nodes": [{"ip": "10.0.0.1"}], "driver": {"node": 3}}'),
        ("", "[" * 100_000),
        *(
            (f"nodes[0].{place}", f'[{{"ip": "10.0.0.1", "{name}": {value}}}]')
            for place, name, value in (
                ("rank", "rank", "[1]"),
                ("rank", "rank", "{}"),
                ("rank", "rank", "Infinity"),
                ("rank", "rank", "1.5"),
                ("rank", "rank", "true"),
                ("python", "python", "[]"),
                ("hostname", "hostname", "5"),
                ("model", "model", "{}"),
                ("cameras", "cameras", "5"),
                ("cameras", "cameras", '"abc"'),
                ("accelerator", "accelerator_count", "2"),
                ("accelerator_count", "accelerator_count", "1000000000"),
            )
        ),
        *(
            (f"driver{place}", f'{{"nodes": [{{"ip": "10.0.0.1"}}], "driver": {value}}}')
            for place, value in (
                ("", '"x"'),
                ("", "1.5"),
                ("", "[0]"),
                (".node", '{"node": "1"}'),
                (".unset", '{"unset": 5}'),
                (".unset", '{"unset": "PATH"}'),
                (".environment", '{"environment": {}}'),
            )
        ),
    ],
    ids=lambda text: text if len(text) < 100 else "deep",
)
def test_a_nodes_file_that_cannot_be_used_is_named(
    files: tuple[str, str], tmp_path: Path, place: str, content: str, words: Words
) -> None:
    """With the place in it."""
    path = tmp_path / "other.json"
    path.write_text(content)
    with refuses(PlacementError, place or path) as caught:
        shown(files[0], "--nodes", str(path))
    assert caught.value.hint
    words.on("plan", caught.value, FILE=path)


def test_without_hydra_it_is_said_what_was_not_seen(files: tuple[str, str], tmp_path: Path, words: Words) -> None:
    """The section that the file has itself is resolved."""
    whole = tmp_path / "train.yaml"
    whole.write_text(f"defaults: [model/pi0, {{env: maniskill}}, _self_]\n{CLUSTER}")
    without = tmp_path / "python"
    without.write_text('#!/bin/sh\necho "{\\"error\\": \\"No module named \'omegaconf\'\\"}"\nexit 3\n')
    without.chmod(0o755)

    result = run(str(whole), "--nodes", files[1], "--python", str(without), "--json")

    (notice,) = json.loads(result.stdout)["notices"]
    assert notice["code"] == "defaults_not_composed"
    assert "model/pi0, env/maniskill" in notice["message"]
    words.on("plan", notice["message"], PYTHON=without)
    assert "No module named 'omegaconf'" in notice["message"]
    with pytest.raises(PlacementError, match=r"cannot be composed: .*No module named 'omegaconf'"):
        shown(str(whole), "cluster.num_nodes=2", "--nodes", files[1], "--python", str(without))


STAND_IN = {
    "omegaconf.py": """
import yaml
class Config(dict):
    __getattr__ = dict.__getitem__
class OmegaConf:
    load = staticmethod(lambda path: Config(yaml.safe_load(open(path))))
    to_container = staticmethod(lambda section, resolve: section)
""",
    "hydra.py": """
import contextlib, os
from omegaconf import Config
@contextlib.contextmanager
def initialize_config_dir(config_dir, version_base):
    print("noise of a search path plugin in", config_dir)
    yield
def compose(config_name, overrides):
    if "EMBODIED_PATH" not in os.environ:
        raise LookupError("Environment variable 'EMBODIED_PATH' not found")
    count = int(dict(text.split("=") for text in overrides)["machines"])
    return Config(cluster={"num_nodes": count, "component_placement": {config_name: "all"}})
""",
}


def test_an_interpreter_that_has_hydra_composes(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's name, its directory and the overrides reach it; what it cannot do is told in its words."""
    for name, text in STAND_IN.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    whole = tmp_path / "train.yaml"
    whole.write_text("defaults: [{cluster: two}, _self_]\nmachines: 3\n")
    arguments = (str(whole), "machines=2", "--nodes", files[1], "--python", sys.executable, "--json")

    with pytest.raises(PlacementError, match=r"cannot be composed: .*'EMBODIED_PATH' not found"):
        shown(*arguments)
    monkeypatch.setenv("EMBODIED_PATH", "/somewhere")
    assert json.loads(shown(*arguments))["world_size"] == {"train": 2}
    whole.rename(tmp_path / "train.yml")  # Hydra would take another file, train.yaml, if that is there
    with refuses(PlacementError, "*.yaml", "train.yaml"):
        shown(str(tmp_path / "train.yml"), *arguments[1:])


@pytest.mark.parametrize(
    "text", [CLUSTER.replace("num_nodes: 2", "num_nodes: ${machines}"), "defaults: [{cluster: two}]\n"]
)
def test_why_a_section_cannot_be_composed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Not that interpolations need an interpreter: there was one. Of an error, its cause."""
    (tmp_path / "omegaconf.py").write_text(
        "class OmegaConf:\n    def load(path):\n        raise RuntimeError('error') from KeyError('machines')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    whole = tmp_path / "train.yaml"
    whole.write_text(text)
    with pytest.raises(PlacementError, match=r"cannot be composed: .*KeyError: 'machines'") as caught:
        shown(str(whole), "--python", sys.executable)
    assert "--python" in caught.value.hint


@pytest.mark.parametrize(
    ("rollout", "codes"),
    [
        ("{tensor_parallel_size: 4}", ["placed_by_program"]),
        ("{tensor_parallel_size: 1, pipeline_parallel_size: 2}", ["placed_by_program"]),
        ("{tensor_parallel_size: 1}", []),
        ("{tensor_parallel_size: two}", []),
        ("sglang", []),
    ],
)
def test_what_the_program_places_itself_is_said(
    files: tuple[str, str], tmp_path: Path, rollout: str, codes: list[str]
) -> None:
    """RLinf's reasoning programs give a process of rollout several accelerators."""
    whole = tmp_path / "train.yaml"
    whole.write_text(f"{CLUSTER}rollout: {rollout}\n")
    notices = json.loads(shown(str(whole), "--nodes", files[1], "--json"))["notices"]
    assert [notice["code"] for notice in notices if notice["code"] == "placed_by_program"] == codes


RLINF = """\
class ComponentPlacement: ...
class ModelParallelComponentPlacement(ComponentPlacement):
    def __init__(self, config, cluster):
        super().__init__(config, cluster)
        last = self._component_rank_map["train"].popitem()[0][-1]
        from types import SimpleNamespace
        self._placements["train"] = SimpleNamespace(
            _start_hw_rank=0, _end_hw_rank=last, _num_hardware_per_process=config["size"], _stride=1)
"""


@pytest.fixture
def rlinf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter whose RLinf places `train` itself; real ones are in netns-tests/test_rlinf_placement.py."""
    for name, text in {
        "__init__": "",
        "scheduler": "from rlinf.utils.placement import *",
        "utils/placement": RLINF,
    }.items():
        file = tmp_path / "rlinf" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "omegaconf.py").write_text("class OmegaConf:\n    create = dict\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("rlinf")
@pytest.mark.parametrize(
    ("changes", "world_size"),
    [
        ({}, 1),
        ({"runner": {"task_type": "embodied"}}, 2),  # follows the section
        ({"cluster": {"component_placement": {"train": "all", "rollout_judge": "0"}}}, 2),  # another class, of wideseek
    ],
)
def test_a_program_that_places_itself_is_asked(tmp_path: Path, changes: dict[str, Any], world_size: int) -> None:
    content = {
        "cluster": {"num_nodes": 1, "component_placement": {"train": "all"}},
        "runner": {"task_type": "reasoning"},
        "rollout": {"tensor_parallel_size": 2},
        "size": 2,
    }
    for name, value in changes.items():
        content[name] = {**content[name], **value}
    whole, nodes = tmp_path / "train.yaml", tmp_path / "nodes.json"
    whole.write_text(json.dumps(content))
    nodes.write_text(json.dumps([{"rank": 0, "ip": "10.10.0.2", "accelerator": "NV_GPU", "accelerator_count": 2}]))

    plan = json.loads(shown(str(whole), "--nodes", str(nodes), "--python", sys.executable, "--json"))

    assert plan["world_size"]["train"] == world_size
    codes = {notice["code"] for notice in plan["notices"]}
    assert ("placed_by_program" in codes) == (world_size == 2)


@pytest.mark.usefixtures("rlinf")
@pytest.mark.parametrize(("version", "code"), [("0.3.0", "unknown_key_ignored"), ("0.4.0", "links_slowed_down")])
def test_the_rules_are_those_of_the_rlinf_that_would_be_imported(
    tmp_path: Path, files: tuple[str, str], version: str, code: str
) -> None:
    """A checkout on the search path tells its version in its pyproject.toml."""
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "rlinf"\nversion = "{version}"\n')
    whole = tmp_path / "train.yaml"
    whole.write_text(f"{CLUSTER}  net_emulation: {{enabled: true}}\n")

    plan = json.loads(shown(str(whole), "--nodes", files[1], "--python", sys.executable, "--json"))

    assert [notice["code"] for notice in plan["notices"] if "net_emulation" in notice["key"]] == [code]


def test_what_hydra_refuses_is_refused_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not blamed on the interpreter, nor let pass without what the defaults list would bring."""
    (tmp_path / "omegaconf.py").write_text(
        "class MissingConfigException(Exception): pass\n"
        "class OmegaConf:\n    def load(path):\n"
        "        raise MissingConfigException(\"In 'train': Could not load 'training/fsdp'.\\n\\nsearch path:\\n x\")\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    whole = tmp_path / "train.yaml"
    whole.write_text(f"defaults: [training/fsdp]\n{CLUSTER}")
    with refuses(PlacementError, "Hydra refuses it", "Could not load 'training/fsdp'", whole) as caught:
        shown(str(whole), "--python", sys.executable)
    assert "search path" not in str(caught.value)
    assert "--python" not in caught.value.hint


def test_the_interpreter_of_the_training_is_asked_first(
    files: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one that will compose the file in earnest."""
    whole, python = tmp_path / "train.yaml", tmp_path / "python"
    whole.write_text("defaults: [x]\n")
    answer = json.dumps({"section": {"num_nodes": 2, "component_placement": {"agent": "all"}}})
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    monkeypatch.setenv("EDGELINK_RAY__PYTHON", str(python))
    assert json.loads(shown(str(whole), "--nodes", files[1], "--json"))["world_size"] == {"agent": 2}


def test_hydra_itself_composes(files: tuple[str, str], tmp_path: Path) -> None:
    """Where hydra is: defaults, interpolations and overrides are resolved as the training program gets them."""
    pytest.importorskip("hydra")
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster/two.yaml").write_text("num_nodes: ${machines}\ncomponent_placement: {actor: all}\n")
    whole = tmp_path / "train.yaml"
    whole.write_text("defaults: [{cluster: two}, _self_]\nmachines: 3\n")

    content = shown(str(whole), "machines=2", "--nodes", files[1], "--python", sys.executable, "--json")

    assert [item["node_rank"] for item in json.loads(content)["placements"]["actor"]] == [0, 0]

    whole.write_text("defaults: [{cluster: two}, _self_]\nmachines: 2\nx: {known: '${machines}', own: '${mine:1}'}\n")
    assert read_cluster(whole, [], Path(sys.executable)).content["x"] == {"known": 2}


def test_resolving_offline_imports_neither_ray_nor_the_daemon() -> None:
    """It is run in every shell, often in a loop."""
    script = (
        "import sys, edgelink.cli.plan; print([m for m in ('aiohttp', 'ray', 'torch', 'nacl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
