"""verl 0.9.1 and OpenRLHF 0.11.2 from PyPI, as far as a machine without GPUs carries them, through `edgelink run`.

Ray is told of one GPU a node, so that placement groups are those of a real run; the processes use none. All that both
import is the real package, vLLM and DeepSpeed included, but for one module: ``flash_attn_2_cuda``, the compiled part of
flash-attn. Only nvcc builds it, so without CUDA the import of OpenRLHF's launcher ends in ``No module named
'flash_attn_2_cuda'``; an empty module stands in for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLab
from framework_python import FrameworkPython
from machines import brought_up_on, wait_until

from edgelink.errors import ExitCode
from edgelink.lab import CLOUD
from edgelink.lab.road import Road

EDGES = ("edge-1", "edge-2")
EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
LOCK = Path(__file__).with_name("frameworks.lock")
LAUNCH_S = 400.0  # every process imports torch, transformers and DeepSpeed; minutes on two busy cores
SHELL = {"NCCL_DEBUG": "INFO", "WANDB_MODE": "offline", "GLOO_SOCKET_IFNAME": "lan9", "MASTER_ADDR": "192.0.2.9"}

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("easytier"),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="installs 1.2 GB, takes 5 minutes: `make soak`"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with both frameworks over this one's Ray and torch; without what only their models need."""
    made = FrameworkPython(tmp_path_factory.mktemp("frameworks") / "venv")
    without_cuda = {"DS_BUILD_OPS": "0", "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}
    made.install(LOCK, env=without_cuda)
    (made.packages / "flash_attn_2_cuda.py").touch()
    return made.python


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab, python: Path) -> Road:
    """A cloud and two edges with one GPU each, as far as Ray knows."""
    return brought_up_on(make_shared_lab(), len(EDGES), ray_python=python, config={"ray": {"num_gpus": 1}})


def run(road: Road, *command: str) -> subprocess.CompletedProcess[str]:
    return road.lab.exec(CLOUD, ["edgelink", "run", "--", *command], capture=True, env=SHELL, timeout_s=LAUNCH_S)


def workers(road: Road, output: Path, *command: str) -> list[dict[str, Any]]:
    done = run(road, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in output.read_text().splitlines()]


def addresses(road: Road) -> dict[str, str]:
    """Of the nodes that Ray runs on, by name."""
    found = {}
    for name in (CLOUD, *EDGES):
        status = road.status(name)
        assert status is not None
        found[name] = status["overlay_ip"]
    return found


def check_groups(road: Road, found: list[dict[str, Any]]) -> None:
    """Every group met over the overlay, at an overlay address of its first worker, with the environment that counts."""
    overlay = set(addresses(road).values())
    for name in {worker["group"] for worker in found}:
        group = sorted((worker for worker in found if worker["group"] == name), key=lambda worker: worker["rank"])
        size = len(group)
        assert [worker["rank"] for worker in group] == list(range(size))
        assert {worker["sum"] for worker in group} == {size * (size + 1) / 2}
        at = {worker["node_ip"] for worker in group}
        for worker in group:
            assert worker["environment"]["MASTER_ADDR"] == group[0]["node_ip"]
            assert at - {worker["node_ip"]} <= set(worker["peers"]), "its group's processes"
            assert set(worker["peers"]) <= overlay, "and nobody but by overlay addresses"
    for worker in found:
        assert worker["node_ip"] in overlay
        assert worker["environment"]["GLOO_SOCKET_IFNAME"] == "et0"
        assert worker["environment"]["TOKENIZERS_PARALLELISM"] == "true", "the program's own runtime_env"
        assert worker["environment"]["NCCL_DEBUG"] == "INFO", "the caller's, over the program's default"
        assert worker["environment"]["WANDB_MODE"] == "offline", "a setting that the program does not hand on"


def test_verls_worker_group_meets_over_the_overlay(road: Road, tmp_path: Path) -> None:
    """One worker on each node, without a GPU; all know each other by overlay addresses."""
    output = tmp_path / "workers"
    found = workers(road, output, "python", str(EXAMPLES / "verl/group.py"), "trainer.nnodes=3", str(output))
    check_groups(road, found)
    assert sorted(worker["node_ip"] for worker in found) == sorted(addresses(road).values())


def test_verls_pools_are_those_that_were_compared(road: Road, tmp_path: Path) -> None:
    """With a GPU a node three fit, four are refused by name before anything starts."""
    script, output = str(EXAMPLES / "verl/group.py"), tmp_path / "workers"
    found = workers(road, output, "python", script, "trainer.nnodes=3", "trainer.n_gpus_per_node=1", str(output))
    check_groups(road, found)
    assert len({worker["node_ip"] for worker in found}) == 3
    refused = run(road, "python", script, "trainer.nnodes=2", "trainer.n_gpus_per_node=2")
    assert refused.returncode == ExitCode.CONFIG
    assert "trainer.nnodes=2 trainer.n_gpus_per_node=2" in refused.stderr
    for name in (CLOUD, *EDGES):
        assert f"{name} 1 of 1 GPU free" in refused.stderr


def test_openrlhfs_colocated_groups_share_bundles(road: Road, tmp_path: Path) -> None:
    """Actor and reference of one rank live on one node, and each group has a process group of its own."""
    output = tmp_path / "workers"
    sizes = ["--actor.num_nodes", "3", "--actor.num_gpus_per_node", "1", "--ref.num_nodes", "3"]
    options = [*sizes, "--ref.num_gpus_per_node", "1", "--train.colocate_actor_ref", "--output", str(output)]
    found = workers(road, output, "python", str(EXAMPLES / "openrlhf/groups.py"), *options)
    check_groups(road, found)
    at = {(worker["group"], worker["rank"]): worker["node_ip"] for worker in found}
    assert sorted(at) == [(group, rank) for group in ("actor", "ref") for rank in range(3)]
    assert {at["actor", rank] for rank in range(3)} == set(addresses(road).values())
    assert [at["actor", rank] for rank in range(3)] == [at["ref", rank] for rank in range(3)]
    ports = {worker["environment"]["MASTER_PORT"] for worker in found}
    assert len(ports) == 2
    assert {worker["environment"]["LOCAL_RANK"] for worker in found} == {"0"}


def test_openrlhfs_separate_groups_have_nodes_of_their_own(road: Road, tmp_path: Path) -> None:
    """An actor on two nodes and a critic on the third; one GPU more than there is, and nothing starts."""
    script, output = str(EXAMPLES / "openrlhf/groups.py"), tmp_path / "workers"
    options = ["--actor.num_nodes", "1", "--actor.num_gpus_per_node", "2", "--critic.num_gpus_per_node", "1"]
    found = workers(road, output, "python", script, *options, "--critic.num_nodes", "1", "--output", str(output))
    check_groups(road, found)
    assert {(worker["group"], worker["rank"]) for worker in found} == {("actor", 0), ("actor", 1), ("critic", 0)}
    assert {worker["node_ip"] for worker in found} == set(addresses(road).values())
    refused = run(road, "python", script, *options, "--critic.num_nodes", "2")
    assert refused.returncode == ExitCode.CONFIG
    assert "critic (--critic.num_nodes 2 × --critic.num_gpus_per_node 1)" in refused.stderr


VERLS_SCRIPT = """
TRAINER=(
    trainer.nnodes=${NNODES:-3}
    trainer.n_gpus_per_node=${N_GPUS:-2}
)
echo began
python3 -m verl.trainer.main_ppo "${TRAINER[@]}"
"""
OPENRLHFS_SCRIPT = """
ACTOR=(--actor.num_nodes ${NNODES:-1} --actor.num_gpus_per_node ${N_GPUS:-4})
python3 -m openrlhf.cli.train_ppo_ray "${ACTOR[@]}" --ref.num_gpus_per_node ${N_GPUS:-4} --train.colocate_all \\
    --actor.model_name_or_path /nowhere --reward.remote_url http://127.0.0.1:5000 --algo.advantage.estimator reinforce
"""


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (VERLS_SCRIPT, "trainer.nnodes=3 trainer.n_gpus_per_node=2"),
        (OPENRLHFS_SCRIPT, "actor, ref (--actor.num_nodes 1 × --actor.num_gpus_per_node 4)"),
    ],
    ids=["verl", "openrlhf"],
)
def test_a_script_is_refused_by_the_words_that_python_has(road: Road, tmp_path: Path, script: str, asked: str) -> None:
    """The real main module, whose options are in an array; nothing of it has run but the import of its package."""
    (tmp_path / "train.sh").write_text(script)
    refused = run(road, "bash", str(tmp_path / "train.sh"))
    assert refused.returncode == ExitCode.CONFIG, refused.stderr
    assert "its program starts" in refused.stderr
    assert asked in refused.stderr


def test_what_a_framework_waits_for_is_told(road: Road, tmp_path: Path) -> None:
    """OpenRLHF itself says nothing while it waits for its placement group."""
    (tmp_path / "train.sh").write_text(OPENRLHFS_SCRIPT)
    log = tmp_path / "run.log"
    command = ["edgelink", "run", "--no-preflight", "--no-resource-check", "--", "bash", str(tmp_path / "train.sh")]
    driver = road.lab.popen(CLOUD, command, log, env=SHELL)
    try:
        wait_until("it has joined Ray", lambda: "Connected to Ray" in log.read_text(), LAUNCH_S)
        joined_s = time.monotonic()
        wait_until("it is told", lambda: "waits for 4 times 1 GPU and 1 CPU (PACK)" in log.read_text(), LAUNCH_S)
        took_s = time.monotonic() - joined_s
    finally:
        driver.terminate()
        driver.wait()
    print(f"told {took_s:.1f} s after it had joined Ray")
    assert took_s <= 15, "10 s once it waits, and what it does before"
