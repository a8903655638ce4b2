"""Learners on accelerators of two machines.

Where there is one accelerator, both nodes see it, and learners and NCCL take each node for a machine of its own: so
their sums go over the overlay.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from conftest import MakeLab

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD, RELAY
from edgelink.lab.road import Road, demo_cluster, edge_names

pytestmark = pytest.mark.timeout(420)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # by which learners tell machines apart


@pytest.fixture
def road(make_lab: MakeLab, easytier: None, tmp_path: Path) -> Road:
    """Two nodes; NCCL says in ``tmp_path`` what it does."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no accelerator in this machine")
    road = Road(make_lab(), SystemClock(), print)
    road.lab.up(1, accelerators=True)
    for node in (CLOUD, *edge_names(1)):
        said = {"NCCL_HOSTID": node, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{tmp_path}/nccl.{node}"}
        file = road.lab.host_path(node, Path("/etc/edgelink/edgelink.yaml"))
        config = yaml.safe_load(file.read_text())
        config["ray"]["environment"] = said
        file.write_text(yaml.safe_dump(config))
        own = tmp_path / f"boot-id.{node}"
        own.write_text(f"{node}\n")
        road.lab.exec(node, ["mount", "--bind", str(own), str(_BOOT_ID)], capture=True, check=True)
    road.lab.start(RELAY)
    road.wait_ready(RELAY)
    for node in (CLOUD, *edge_names(1)):
        road.enrol(node)
        road.start(node)
    return road


def test_learners_of_two_machines_sum_by_nccl_over_the_overlay(road: Road, tmp_path: Path) -> None:
    cluster, report = demo_cluster(1), tmp_path / "report.json"
    cluster["cluster"]["component_placement"]["actor"] = {"node_group": "cluster", "placement": "0-1"}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    train = ["edgelink", "train", "run.iterations=3", "run.eval_episodes=2", "env.kinds=sim", "--report", str(report)]
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(tmp_path / "cluster.yaml"), "--", *train]
    ended = road.lab.exec(CLOUD, run, capture=True, timeout_s=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "gloo" not in ended.stdout, "nothing slows the learners down"
    learners = [worker for worker in json.loads(report.read_text())["workers"] if worker["component"] == "actor"]
    assert [each["device_address"] for each in learners] == ["10.10.0.2", "10.10.0.3"]
    for node, each in zip((CLOUD, *edge_names(1)), learners, strict=True):
        said = (tmp_path / f"nccl.{node}").read_text()
        assert f"NET/Socket : Using [0]et0:{each['device_address']}<0>" in said
        assert "Init COMPLETE" in said
