"""Nodes that have no Ray by their configuration: Ready without it, told so, and left out of every run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from conftest import MakeLab
from faults import by_command
from machines import wait_until

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD
from edgelink.lab.road import Road
from edgelink.ray_cluster.no_ray import NO_RAY_BRIEF as NO_RAY

EDGE = "edge-1"
CONFIG = Path("/etc/edgelink/edgelink.yaml")

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("easytier"), pytest.mark.story]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program in the place of `ray.python`, which notes that it was called."""
    directory = tmp_path_factory.mktemp("python")
    program = directory / "python"
    program.write_text(f'#!/bin/sh\necho "$@" >> {directory}/called\nexit 1\n')
    program.chmod(0o755)
    return program


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab, asked: Path) -> Iterator[Road]:
    road = Road(make_shared_lab(), SystemClock(), print)
    road.bring_up(1, config={"ray": {"enabled": False, "python": str(asked)}})
    yield road


def test_head_and_edge_are_ready_without_ray(road: Road, asked: Path) -> None:
    """Overlay and reachability make them Ready. Nothing looks for an interpreter, and nothing of Ray runs."""
    for name in (CLOUD, EDGE):
        status = road.wait_ready(name)
        joined = next(one for one in status["conditions"] if one["type"] == "RayJoined")
        assert (joined["status"], joined["reason"]) == ("False", "NoRay")
        assert status["has_ray"] is False
        shown = road.lab.exec(name, ["edgelink", "status"], capture=True)
        assert shown.returncode == 0, shown.stdout
        assert NO_RAY in shown.stdout
        assert not {"raylet", "gcs_server"} & by_command(road.lab.pids(name)).keys()
    assert not (asked.parent / "called").exists()

    told = road.lab.exec(CLOUD, ["edgelink", "nodes", "--json"], capture=True, check=True)
    rows = {row["hostname"]: row for row in json.loads(told.stdout)["nodes"]}
    assert {name: (row["ready"], row["has_ray"], row["node_rank"]) for name, row in rows.items()} == {
        CLOUD: (True, False, None),
        EDGE: (True, False, None),
    }
    refused = road.lab.exec(CLOUD, ["edgelink", "run", "--", "true"], capture=True)
    assert refused.returncode == 78
    assert "NoRay" in refused.stderr


def test_a_head_with_ray_leaves_such_an_edge_out(road: Road, asked: Path, tmp_path: Path) -> None:
    """It is in no cluster spec, no rank is waited for, and a run that wants it is refused before anything starts."""
    file = road.lab.host_path(CLOUD, CONFIG)
    config = yaml.safe_load(file.read_text())
    config["ray"] |= {"enabled": True}
    del config["ray"]["python"]
    file.write_text(yaml.safe_dump(config))
    road.lab.stop(CLOUD)
    road.start(CLOUD)

    def nodes() -> dict[str, dict[str, object]]:
        told = road.lab.exec(CLOUD, ["edgelink", "nodes", "--json"], capture=True)
        return {row["hostname"]: row for row in json.loads(told.stdout)["nodes"]}

    rows = wait_until("both are ready", nodes, wanted=lambda rows: all(row["ready"] for row in rows.values()))
    assert (rows[CLOUD]["ray"], rows[CLOUD]["node_rank"]) == ("alive", 0)
    assert (rows[EDGE]["ray"], rows[EDGE]["node_rank"]) == (NO_RAY, None)
    ran = road.lab.exec(CLOUD, ["edgelink", "run", "--", "true"], capture=True)
    assert ran.returncode == 0, ran.stderr

    for options in (["--nodes", EDGE], ["--cluster", str(_two_nodes(tmp_path))]):
        command = ["edgelink", "run", *options, "--", "touch", str(tmp_path / "ran")]
        refused = road.lab.exec(CLOUD, command, capture=True)
        assert refused.returncode in (2, 78), refused.stderr
        assert f"{EDGE} has {NO_RAY}" in refused.stderr
    assert not (tmp_path / "ran").exists()
    checked = road.lab.exec(EDGE, ["edgelink", "doctor", "--json", "ray"], capture=True)
    verdicts = {one["check"]: one["verdict"] for one in json.loads(checked.stdout)["checks"]}
    assert "failed" not in verdicts.values(), checked.stdout
    assert not {"raylet", "gcs_server"} & by_command(road.lab.pids(EDGE)).keys()
    assert not (asked.parent / "called").exists()


def _two_nodes(directory: Path) -> Path:
    file = directory / "cluster.yaml"
    groups = [{"label": "all", "node_ranks": "0-1"}]
    placed = {"env": {"node_group": "all", "placement": "0-1"}}
    section = {"num_nodes": 2, "node_groups": groups, "component_placement": placed}
    file.write_text(yaml.safe_dump({"cluster": section}))
    return file
