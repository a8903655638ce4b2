"""A run whose cluster is hurt under it, with real Ray: the driver is run again, and keeps its lock; and the report
that tells of it afterwards, of all nodes, without a secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
import secrets_search
from conftest import MakeLab
from faults import kill
from machines import brought_up_on, revive, wait_until
from training_run import CHECKPOINT_EVERY, TrainingRun, learned_again

from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY
from edgelink.lab.road import Road

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab) -> Road:
    return brought_up_on(make_shared_lab(), 1)


@pytest.fixture
def road(brought_up: Road) -> Road:
    """Every node Ready and no run in progress, whatever the test before has left."""
    revive(brought_up, (RELAY, CLOUD, "edge-1"))
    wait_until("no run is in progress", lambda: run_of(brought_up), wanted=lambda run: not run["in_progress"])
    return brought_up


def run_of(road: Road) -> dict[str, Any]:
    """The account of the run, as the head's status has it."""
    status = road.status(CLOUD)
    return (status or {}).get("run") or {"attempts": [], "in_progress": False}


def test_a_node_that_died_costs_one_interval(road: Road, tmp_path: Path) -> None:
    """raylet SIGKILL on the edge: the trainer is run again, from its newest checkpoint, and ends with 0."""
    training = TrainingRun(road, tmp_path, 12, "--on-node-loss", "relaunch", "--retries", "2")
    training.wait_for_iteration(5)
    kill(road.lab, "edge-1", "raylet")
    assert training.command.wait(400) == 0, training.log.read_text()
    learned = training.iterations()
    # None where the kill came between a checkpoint and the next iteration.
    assert max(learned_again(learned), default=0) <= CHECKPOINT_EVERY, "at most one interval is learned again"
    assert learned.count(1) == 1, "not from the beginning"
    assert sorted(set(learned)) == list(range(1, 13)), "none is left out"
    run = run_of(road)
    assert [attempt["number"] for attempt in run["attempts"]] == [1, 2]
    # The driver may end before the head knows that the silent Ray is dead; what was wrong is told in either case.
    assert run["attempts"][0]["lost_nodes"] in (["edge-1"], [])
    assert "edge-1" in run["attempts"][0]["what_followed"]
    assert run["attempts"][1]["exit_status"] == 0
    assert not run["in_progress"]
    shown = road.lab.exec(CLOUD, ["edgelink", "status"], capture=True).stdout
    assert "attempt 2" in shown


def test_a_run_keeps_its_lock_when_the_head_daemon_is_killed(road: Road, tmp_path: Path) -> None:
    """SIGKILL of the head daemon, then its restart: training is not touched, a second run is refused with 75."""
    lab = road.lab
    road.wait_ready(CLOUD)
    training = TrainingRun(road, tmp_path, 25)
    training.wait_for_iteration(2)
    lab.kill(CLOUD)
    lab.start(CLOUD)
    wait_until("the lock is kept", lambda: run_of(road)["in_progress"])
    second = lab.exec(CLOUD, ["edgelink", "run", "--timeout", "5s", "--", "true"], capture=True)
    assert second.returncode == 75, second.stderr
    assert "a run is in progress" in second.stderr
    assert training.command.wait(400) == 0, training.log.read_text()
    assert training.iterations() == list(range(1, 26)), "in one go"
    said = training.log.read_text()
    assert said.count("the head daemon is away") == said.count("this run keeps its lock") == 1
    wait_until("the lock is released", lambda: not run_of(road)["in_progress"])
    assert (
        lab.exec(
            CLOUD, ["edgelink", "run", "--no-preflight", "--timeout", "60s", "--", "true"], capture=True
        ).returncode
        == 0
    )


def test_a_run_survives_the_death_of_rays_head(road: Road, tmp_path: Path) -> None:
    """GCS SIGKILL: with retries the run waits for the whole cluster to be back, and runs its driver again."""
    road.wait_ready(CLOUD)
    training = TrainingRun(road, tmp_path, 8, "--retries", "3")
    training.wait_for_iteration(3)
    kill(road.lab, CLOUD, "gcs_server")
    assert training.command.wait(400) == 0, training.log.read_text()
    assert training.iterations()[-1] == 8
    assert training.iterations().count(1) == 1, "not from the beginning"
    assert run_of(road)["attempts"][-1]["exit_status"] == 0


def test_the_report_of_all_nodes_tells_what_happened_and_no_secret(road: Road, tmp_path: Path) -> None:
    """By the real broker's access rules, each node's part sealed to the head; secrets are planted in every log."""
    lab = road.lab
    nodes = (RELAY, CLOUD, "edge-1")
    for node in nodes:
        road.wait_ready(node)
    token = lab.exec(RELAY, ["edgelink", "token", "create"], capture=True, check=True).stdout.strip()
    secrets = secrets_search.secrets_of(lab, nodes, [token])
    for node in nodes:  # each its own, and what all nodes know
        own = [secret for name, secret in secrets.items() if name.endswith(node) or name == "network secret"]
        with lab.host_path(node, Paths().logs / "easytier.log").open("a") as log:
            log.writelines(f"\nplanted {secret}\n" for secret in [*own, token])
    bundle = tmp_path / "report.tar.gz"
    made = lab.exec(CLOUD, ["edgelink", "report", "--all", "-o", str(bundle)], capture=True)
    assert made.returncode == 0, made.stderr
    with tarfile.open(bundle) as archive:
        files = {
            member.name.partition("/")[2]: archive.extractfile(member).read()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert files["missing.txt"] == b""
    assert secrets_search.find(secrets, files.items()) == []
    for place, socket in (("", "node"), ("edge-1/", "node"), (f"{RELAY}/", "bootstrap")):
        assert files[f"{place}logs/easytier.log"].count(b"planted ***") >= 3, place
        flight = [json.loads(line) for line in files[f"{place}flight-{socket}.jsonl"].decode().splitlines()]
        assert {"started", "sample", "condition"} <= {entry["what"] for entry in flight}
    assert b"raylet" in files["edge-1/ray/raylet.out"]
    last = json.loads(files["last-run.json"])["attempts"][-1]
    assert (last["exit_status"], int(last["step"]) >= 8) == (0, True), "how far the driver said it was"
