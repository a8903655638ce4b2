"""What the nodes have of the code and of the interpreters, asked through a Ray that is pretended."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from telling import Words

from edgelink.cli.node_look import look_at_nodes
from edgelink.placement import InvalidClusterError
from edgelink.training.framework import PLAIN, RLINF

# Runs each task here, with what the file named after the node says instead of what was searched.
RAY = """
import json, os, pathlib
HERE = pathlib.Path(__file__).parent.parent
def init(address, **_):
    (HERE / "asked").write_text(address)
class remote:
    def __init__(self, function): self.function = function
    def options(self, scheduling_strategy, **_): self.node = scheduling_strategy; return self
    def remote(self, interpreters, package, search):
        places = [str(HERE / self.node), *search]
        return lambda: self.function(interpreters, package, places)
def wait(waiting, timeout):
    return waiting[:1], waiting[1:]
def get(task): return task()
"""
STRATEGIES = "def NodeAffinitySchedulingStrategy(node, soft): return node\n"
GROUP = {"label": "edge", "node_ranks": "1"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two nodes, cloud and edge-1, with an rlinf each; the driver's is cloud's."""
    (tmp_path / "ray/util").mkdir(parents=True)
    (tmp_path / "ray/__init__.py").write_text(RAY)
    (tmp_path / "ray/util/__init__.py").touch()
    (tmp_path / "ray/util/scheduling_strategies.py").write_text(STRATEGIES)
    for node in ("cloud", "edge-1"):
        (tmp_path / node / "rlinf").mkdir(parents=True)
        (tmp_path / node / "rlinf/__init__.py").write_text("x = 1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def granted(world: Path) -> dict[str, Any]:
    nodes = [
        {"node_rank": rank, "hostname": name, "overlay_ip": f"10.10.0.{rank + 2}", "ray_node_id": name}
        for rank, name in enumerate(("cloud", "edge-1"))
    ]
    environment = {"RAY_ADDRESS": "10.10.0.2:6379", "EDGELINK_RAY_PYTHON": sys.executable, "PYTHONPATH": str(world)}
    return {"nodes": nodes, "environment": environment}


def told(world: Path, cluster: dict[str, Any] | None = None, framework: Any = RLINF, **environment: str) -> list[str]:
    path = f"{Path(sys.executable).parent}:{os.defpath}"
    driver = {"PATH": path, "PYTHONPATH": str(world / "cloud"), **environment}
    lines: list[str] = []
    look_at_nodes(granted(world), cluster, framework, driver, lines.append)
    return lines


def section(python: str) -> dict[str, Any]:
    config = [{"node_ranks": "1", "python_interpreter_path": python}]
    return {
        "num_nodes": 2,
        "node_groups": [{**GROUP, "env_configs": config}],
        "component_placement": {"env": {"node_group": "edge", "placement": 0}},
    }


def test_the_same_code_is_said_to_be_the_same(world: Path, words: Words) -> None:
    """By the cluster that the run was granted."""
    (line,) = told(world)
    assert all(figure in line for figure in ("rlinf", "2 nodes", "1 files"))
    words(line)
    assert (world / "asked").read_text() == "10.10.0.2:6379"


def test_code_that_differs_is_named_with_node_and_file(world: Path, words: Words) -> None:
    """And what to do; the run goes on."""
    (world / "edge-1/rlinf/__init__.py").write_text("x = 2")
    (line,) = told(world)
    assert line.startswith(f"warning: rlinf on edge-1: {world / 'edge-1/rlinf'} ")
    assert all(name in line for name in (str(world / "cloud/rlinf"), "__init__.py", "RLINF_CODE_WORKING_DIR=auto"))
    words(line, WORLD=world)


def test_an_interpreter_of_the_section_has_its_own_code(world: Path) -> None:
    """It is what the workers of that node import."""
    python = world / "python"
    python.symlink_to(sys.executable)
    (world / "edge-1/rlinf/__init__.py").write_text("x = 2")
    (line,) = told(world, section(str(python)))
    assert line.startswith(f"warning: rlinf on edge-1, edge-1 ({python}): ")


@pytest.mark.parametrize("framework", [RLINF, PLAIN])
def test_an_interpreter_that_is_not_there_is_refused(world: Path, framework: Any) -> None:
    """With its key, its node and the reason."""
    with pytest.raises(InvalidClusterError) as refused:
        told(world, section("/no/such"), framework)
    (problem,) = refused.value.problems
    assert problem.key.endswith("env_configs[0].python_interpreter_path")
    assert (problem.value, problem.rule) == ("/no/such", "interpreter missing on node")
    assert "node 1, edge-1: No such file" in problem.detail


@pytest.mark.parametrize(
    ("framework", "environment"),
    [(PLAIN, {}), (RLINF, {"RLINF_CODE_WORKING_DIR": "auto"}), (RLINF, {"PYTHONPATH": ""})],
)
def test_nobody_is_asked_where_there_is_nothing_to_ask(
    world: Path, framework: Any, environment: dict[str, str]
) -> None:
    """Other frameworks, code that RLinf carries, no rlinf here."""
    assert told(world, None, framework, **environment) == []
    assert not (world / "asked").exists()


def test_a_ray_that_does_not_answer_is_no_reason_to_wait(world: Path, words: Words) -> None:
    """The run goes on; it is said that nobody looked."""
    (world / "ray/__init__.py").write_text("raise RuntimeError('no Ray today')")
    lines = told(world)
    assert [line.split(": ")[:2] for line in lines] == [["warning", "cloud"], ["warning", "edge-1"]]
    assert all(line.endswith("RuntimeError: no Ray today") for line in lines)
    words(lines[0])
