"""`edgelink plan` asks the installed RLinf where its reasoning programs place. Real RLinf 0.3.0, no lab."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from framework_python import FrameworkPython

NODE = {"rank": 0, "ip": "10.10.0.2", "hostname": "cloud", "accelerator": "NV_GPU", "accelerator_count": 8}
PROGRAM = """\
cluster: {{num_nodes: 1, component_placement: {{{placement}}}, auto_scheduler: {auto}}}
runner: {{task_type: reasoning}}
algorithm: {{recompute_logprobs: true}}
actor: {{model: {{tensor_model_parallel_size: {actor_size}}}}}
rollout: {{tensor_parallel_size: {rollout_size}}}
"""

pytestmark = pytest.mark.timeout(180)  # each answer imports RLinf and torch


@pytest.fixture(scope="module")
def rlinf_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = FrameworkPython(tmp_path_factory.mktemp("rlinf") / "venv")
    made.install(Path(__file__).with_name("rlinf.lock"))
    return made.python


def planned(tmp_path: Path, python: Path, text: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit status, the plan, and what was said beside it."""
    (tmp_path / "program.yaml").write_text(text)
    (tmp_path / "nodes.json").write_text(json.dumps([NODE]))
    argv = [str(Path(sys.executable).parent / "edgelink"), "plan", "program.yaml", "--nodes", "nodes.json", "--json"]
    done = subprocess.run(
        [*argv, "--python", str(python)], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.parametrize(
    ("placement", "auto", "actor_size", "rollout_size", "component", "hardware"),
    [
        ("'actor,rollout,reward': all", "false", 1, 4, "rollout", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        # RLinf shares weights by CUDA IPC there, so that a process of rollout has every second accelerator.
        ("'actor,rollout,reward': all", "false", 4, 2, "rollout", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("actor: 0-3, rollout: 4-7, reward: 0-3", "false", 1, 2, "rollout", [[4, 5], [6, 7]]),
        ("actor: 0-3, rollout: 4-7, reward: 0-3", "true", 1, 1, "actor", [[rank] for rank in range(8)]),
    ],
    ids=["collocated", "strided", "disaggregated", "auto_scheduler"],
)
def test_processes_are_where_the_program_puts_them(
    tmp_path: Path,
    rlinf_python: Path,
    placement: str,
    auto: str,
    actor_size: int,
    rollout_size: int,
    component: str,
    hardware: list[list[int]],
) -> None:
    text = PROGRAM.format(placement=placement, auto=auto, actor_size=actor_size, rollout_size=rollout_size)

    status, plan, said = planned(tmp_path, rlinf_python, text)

    assert status == 0, said
    placed = plan["placements"][component]
    assert [process["hardware_ranks"] for process in placed] == hardware
    assert [process["visible_devices"] for process in placed] == [",".join(map(str, ranks)) for ranks in hardware]
    assert plan["world_size"][component] == len(hardware)
    assert "placed_by_program" not in {notice["code"] for notice in plan["notices"]}


def test_what_the_program_refuses_is_refused_in_its_words(tmp_path: Path, rlinf_python: Path) -> None:
    text = PROGRAM.format(placement="'actor,rollout': all", auto="false", actor_size=1, rollout_size=4)

    status, _, said = planned(tmp_path, rlinf_python, text)

    assert status == 78
    assert "Reward GPUs must be specified" in said
    assert "Traceback" not in said
