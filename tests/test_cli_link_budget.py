"""``edgelink plan --link-budget`` over links that were measured before: what is said, refused and written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result
from telling import Words

from edgelink.cli.main import edgelink
from edgelink.errors import ExitCode, UsageError
from edgelink.lab.road import demo_cluster
from edgelink.training.trainer.link_budget.traffic import Work

NODES = [
    {"rank": 0, "ip": "10.10.0.2", "hostname": "cloud"},
    {"rank": 1, "ip": "10.10.0.3", "hostname": "edge-1"},
]
REMOTE_POLICY = {
    "num_nodes": 2,
    "node_groups": [{"label": "cloud", "node_ranks": "0"}, {"label": "edge", "node_ranks": "1"}],
    "component_placement": {
        "actor": {"node_group": "cloud", "placement": "0"},
        "rollout": {"node_group": "cloud", "placement": "0"},
        "env": {"node_group": "edge", "placement": "0:0-1"},
    },
}
RLINF = {
    "cluster": REMOTE_POLICY,
    "algorithm": {"rollout_epoch": 2},
    "env": {"group_name": "EnvGroup", "train": {"total_num_envs": 2, "max_steps_per_rollout_epoch": 100}},
    "rollout": {"group_name": "RolloutGroup"},
    "actor": {"group_name": "ActorGroup", "model": {"model_type": "openpi", "num_action_chunks": 5}},
}


_CROSSES = re.compile(r"crosses (once|\d times) where (\w+)")


class World:
    """A cluster file, two machines, and links of 80 ms between them, 20 Mbit/s to the edge and 4 from it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes, self.links = directory / "nodes.json", directory / "links.json"
        self.nodes.write_text(json.dumps(NODES))
        common = {"rtt_ms": 80.0, "jitter_ms": 1.0, "loss": 0.001, "congestion_control": "cubic"}
        ways = [
            {"source": 0, "target": 1, "mbit_per_s": 20.0, **common},
            {"source": 1, "target": 0, "mbit_per_s": 4.0, **common},
        ]
        self.links.write_text(json.dumps({"link_budget": {"measured": {"names": {}, "links": ways}}}))

    def three_nodes(self) -> Path:
        file = self.directory / "three.json"
        file.write_text(json.dumps([*NODES, {"rank": 2, "ip": "10.10.0.4", "hostname": "edge-2"}]))
        return file

    def plan(self, content: dict[str, Any], *arguments: str) -> Result:
        file = self.directory / "c.yaml"
        file.write_text(yaml.safe_dump(content))
        argv = ["plan", str(file), "--nodes", str(self.nodes), "--links", str(self.links), *arguments]
        return CliRunner().invoke(edgelink, argv, standalone_mode=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_links_are_shown_beside_what_a_training_needs(world: World, words: Words) -> None:
    """The plan first, then each direction with its share."""
    told = world.plan(demo_cluster(1), "--observation", "84x84x4:uint8", "--parameters", "1.7M")
    assert told.return_value == ExitCode.OK, told.exception
    assert "node  machine" in told.stdout
    (up,) = [line for line in told.stdout.splitlines() if line.startswith("edge-1 → cloud  ")]
    assert up.split()[3:] == ["80", "ms", "0.1", "%", "4", "Mbit/s", "4", "Mbit/s", "100", "%"]
    assert "3.4 MB" in told.stdout
    assert "1.6 s" in told.stdout
    assert "edge-1 → cloud" in told.stderr
    assert "100 %" in told.stderr
    words.on("plan", told.stdout)
    words.on("plan", told.stderr)


def test_a_placement_that_is_too_slow_is_refused_with_the_better_one(world: World, words: Words) -> None:
    """Simulators can move beside the learner, where no link is in their way."""
    wanted = ("--observation", "84x84x4:uint8", "--env-steps-per-s", "100")
    told = world.plan(demo_cluster(1), *wanted)
    assert told.return_value == ExitCode.TRY_AGAIN
    assert all(figure in told.stderr for figure in ("100 env steps/s", "18"))
    words.on("plan", told.stderr)
    content = json.loads(world.plan(demo_cluster(1), *wanted, "--json").stdout)
    assert content["ok"] is False
    assert content["link_budget"]["is_too_much"] is True
    assert content["link_budget"]["better"][0]["place"] in told.stderr


def test_of_rlinf_the_crossings_and_the_model_are_told(world: World, words: Words) -> None:
    """An image three times over the link; with the policy beside the robot five times, and 6.6 GB of weights."""
    told = world.plan(RLINF, "--observation", "224x224x3:uint8", "--env-steps-per-s", "5")
    assert told.return_value == ExitCode.TRY_AGAIN, told.exception
    assert {(where, times) for times, where in _CROSSES.findall(told.stdout)} == {
        ("env", "3 times"),
        ("rollout", "once"),
    }
    assert "place env beside rollout" in told.stderr  # at the robot the policy would wait for its weights
    words.on("plan", told.stdout)
    told = world.plan(
        {
            **RLINF,
            "cluster": {**REMOTE_POLICY, "component_placement": demo_cluster(1)["cluster"]["component_placement"]},
        },
        "--observation",
        "224x224x3:uint8",
    )
    assert "weights 6.6 GB an update" in told.stdout
    assert ("5 times", "env") in _CROSSES.findall(told.stdout)


def test_of_rlinf_each_action_is_waited_for(world: World) -> None:
    """Two env workers of one environment each: 80 ms an action make 25 a second at most, whatever the link carries."""
    told = world.plan(RLINF, "--observation", "17", "--parameters", "10k", "--env-steps-per-s", "26")
    assert told.return_value == ExitCode.TRY_AGAIN, told.exception
    assert "wanted, 25 are possible" in told.stderr
    many = {**RLINF, "env": {"train": {"total_num_envs": 16, "max_steps_per_rollout_epoch": 100}}}
    told = world.plan(many, "--observation", "17", "--parameters", "10k", "--env-steps-per-s", "26")
    assert told.return_value == ExitCode.OK, told.exception


def test_a_configuration_is_budgeted_as_it_is_composed(world: World) -> None:
    """Where RLinf's own examples have model and environments in other files."""
    python = world.directory / "python"
    answer = json.dumps({"section": REMOTE_POLICY, "content": RLINF})
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    told = world.plan({"defaults": ["x"]}, "--observation", "17", "--python", str(python))
    assert told.return_value == ExitCode.OK, told.exception
    assert (
        told.stdout.partition("env steps/s")[2]
        == world.plan(RLINF, "--observation", "17").stdout.partition("env steps/s")[2]
    )
    assert _CROSSES.search(told.stdout)


def test_a_model_of_unknown_size_is_said(world: World, words: Words) -> None:
    """Not that its weights take no time."""
    unknown = {**RLINF, "actor": {"model": {"model_type": "mlp"}}}
    told = world.plan(unknown, "--observation", "17").stdout
    assert "give --parameters" in told
    assert "give --parameters" not in world.plan(RLINF, "--observation", "17").stdout
    words.on("plan", told)


def test_links_of_before_are_those_of_the_same_machines(world: World) -> None:
    """Whatever rank they have now; those of other machines are of no use."""
    content = json.loads(world.links.read_text())
    content["link_budget"]["measured"]["names"] = {"0": "edge-1", "1": "cloud"}
    world.links.write_text(json.dumps(content))
    assert "edge-1 → cloud: 80 ms, 20 Mbit/s" in world.plan(demo_cluster(1)).stdout
    content["link_budget"]["measured"]["names"] = {"0": "aeroplane", "1": "edge-7"}
    world.links.write_text(json.dumps(content))
    refused = world.plan(demo_cluster(1)).exception
    assert isinstance(refused, UsageError)
    assert all(names in str(refused) for names in ("aeroplane, edge-7", "cloud, edge-1"))


def test_links_of_machines_without_a_process_are_not_emulated(world: World) -> None:
    """Last night's links, another placement."""
    content = json.loads(world.links.read_text())
    ways = content["link_budget"]["measured"]["links"]
    ways += [{**way, **{end: 2 for end in ("source", "target") if way[end] == 1}} for way in ways]
    content["link_budget"]["measured"]["names"] = {"0": "cloud", "1": "edge-1", "2": "edge-2"}
    world.links.write_text(json.dumps(content))
    file = world.directory / "emulation.yaml"
    told = world.plan(RLINF, "--nodes", str(world.three_nodes()), "--write-net-emulation", str(file))
    assert told.return_value == ExitCode.OK, told.exception
    (pair,) = yaml.safe_load(file.read_text())["cluster"]["net_emulation"]["crossdc_pairs"]
    assert pair["dst"] == ["Env:0", "Env:1"]
    assert "&" not in file.read_text()


@pytest.mark.parametrize("option", [("--env-steps-per-s", "9"), ("--observation", "4"), ("--report", "/nowhere")])
def test_an_option_of_the_budget_asks_for_one(world: World, option: tuple[str, str]) -> None:
    """A script that counts on the refusal is not told that all is well."""
    file = world.directory / "c.yaml"
    file.write_text(yaml.safe_dump(demo_cluster(1)))
    argv = ["plan", str(file), "--nodes", str(world.nodes), *option]
    told = CliRunner().invoke(edgelink, argv, standalone_mode=False)
    assert isinstance(told.exception, UsageError)
    assert "--links FILE" in told.exception.hint


def test_a_run_before_tells_what_the_next_one_will_be_like(world: World) -> None:
    """Its report has the bytes as they were sent, and how fast workers and learner are by themselves."""
    work = Work(4.0, 5.0, 10_000, (512,), 2, env_steps_per_s=(1000.0,), update_s=0.1, rest_bytes=0.0)
    file = world.directory / "report.json"
    file.write_text(json.dumps({"link_budget": {"work": work.to_dict()}}))
    told = world.plan(demo_cluster(1), "--report", str(file))
    assert "env steps/s: 1,000, limited by the environments" in told.stdout
    more = world.plan(demo_cluster(2), "--nodes", str(world.three_nodes()), "--report", str(file))
    assert isinstance(more.exception, UsageError)
    assert all(figure in str(more.exception) for figure in ("1 env workers", "2"))
    file.write_text("{}")
    assert isinstance(world.plan(demo_cluster(1), "--report", str(file)).exception, UsageError)


def test_links_alone_are_shown_where_nothing_is_known_of_the_training(world: World) -> None:
    told = world.plan(demo_cluster(1))
    assert told.return_value == ExitCode.OK, told.exception
    assert "edge-1 → cloud: 80 ms, 4 Mbit/s" in told.stdout
    assert "--observation" in told.stdout
    world.links.write_text(world.links.read_text().replace('"mbit_per_s": 4.0', '"mbit_per_s": 1234.5'))
    assert "edge-1 → cloud: 80 ms, 1.23 Gbit/s" in world.plan(demo_cluster(1)).stdout


def test_the_links_become_rlinfs_net_emulation(world: World) -> None:
    """Half of the round trip each way, the slower direction as the edge's bandwidth; endpoints as RLinf names them."""
    file = world.directory / "emulation.yaml"
    told = world.plan(RLINF, "--write-net-emulation", str(file))
    assert told.return_value == ExitCode.OK, told.exception
    assert yaml.safe_load(file.read_text())["cluster"]["net_emulation"] == {
        "enabled": True,
        "symmetric": True,
        "crossdc_pairs": [{"src": ["Actor:0", "Rollout:0"], "dst": ["Env:0", "Env:1"], "delay_ms": 40.0}],
        "bandwidth_groups": [{"members": ["Env:0", "Env:1"], "bandwidth_mbps": 4.0}],
    }


def test_an_emulated_link_is_never_without_a_limit(world: World) -> None:
    """RLinf reads a bandwidth of 0 as none; three kilobit a second are not that."""
    world.links.write_text(world.links.read_text().replace('"mbit_per_s": 4.0', '"mbit_per_s": 0.003'))
    file = world.directory / "emulation.yaml"
    told = world.plan(RLINF, "--write-net-emulation", str(file))
    assert told.return_value == ExitCode.OK, told.exception
    (group,) = yaml.safe_load(file.read_text())["cluster"]["net_emulation"]["bandwidth_groups"]
    assert group["bandwidth_mbps"] == 0.003


@pytest.mark.parametrize("mbit_per_s", ["0", "NaN"])
def test_a_link_that_carries_no_number_is_refused(world: World, mbit_per_s: str) -> None:
    """As somebody has written it; not answered with a budget of it."""
    world.links.write_text(world.links.read_text().replace('"mbit_per_s": 4.0', f'"mbit_per_s": {mbit_per_s}'))
    told = world.plan(demo_cluster(1), "--observation", "4")
    assert isinstance(told.exception, UsageError)
    assert "--links" in str(told.exception)
    assert "the link 1 → 0 has mbit_per_s" in str(told.exception)


@pytest.mark.parametrize("option", [("--observation", "0"), ("--observation", "84x0:uint8"), ("--parameters", "0")])
def test_a_size_of_nothing_is_refused(world: World, option: tuple[str, str], words: Words) -> None:
    """It is not taken for an option that was left out."""
    told = world.plan(demo_cluster(1), *option)
    assert isinstance(told.exception, click.BadParameter)
    assert told.exception.param is not None
    assert told.exception.param.opts == [option[0]]
    assert option[1] in str(told.exception)
    words.on("plan", told.exception)


def test_a_report_without_env_steps_predicts_nothing(world: World) -> None:
    work = Work(4.0, 5.0, 10_000, (0,), 2, env_steps_per_s=(1000.0,), update_s=0.1, rest_bytes=0.0)
    file = world.directory / "report.json"
    file.write_text(json.dumps({"link_budget": {"work": work.to_dict()}}))
    told = world.plan(demo_cluster(1), "--report", str(file))
    assert isinstance(told.exception, UsageError)
    assert "fragment_steps" in str(told.exception)


def test_what_cannot_be_used_is_refused_with_what_to_do(world: World) -> None:
    """No links at all, links that cannot be read, a shape that is none, a placement without the three components."""
    argv = ["plan", str(world.nodes), "--nodes", str(world.nodes), "--link-budget"]
    told = CliRunner().invoke(edgelink, argv, standalone_mode=False)
    assert isinstance(told.exception, UsageError)
    assert "--live" in told.exception.hint

    cluster = demo_cluster(1)
    del cluster["cluster"]["component_placement"]["env"]
    told = world.plan(cluster)
    assert isinstance(told.exception, UsageError)
    assert "rollout" in str(told.exception)

    world.links.write_text("{}")
    told = world.plan(demo_cluster(1))
    assert isinstance(told.exception, UsageError)
    assert "--links" in str(told.exception)
    assert world.plan(demo_cluster(1), "--observation", "round").exception is not None
    assert world.plan(demo_cluster(1), "--observation", "4:money").exception is not None


def test_the_way_from_the_trainer_to_rlinf_resolves_and_is_budgeted(world: World) -> None:
    """The configuration that the page shows: the trainer's own cluster section, and RLinf's below it."""
    page = (Path(__file__).parent.parent / "docs/how-to/from-the-trainer-to-rlinf.md").read_text()
    content = yaml.safe_load(page.split("```yaml\n")[1].split("```")[0])
    assert content["cluster"] == yaml.safe_load(yaml.safe_dump(demo_cluster(1)))["cluster"]
    told = world.plan(content, "--observation", "224x224x3:uint8")
    assert told.return_value == ExitCode.OK, told.exception
    assert "rollout 0" in told.stdout
    assert "weights 6.6 GB an update" in told.stdout
    assert ("3 times", "rollout") in _CROSSES.findall(told.stdout)
