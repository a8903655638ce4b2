"""A run whose cluster is hurt under it, with real Ray: the driver is run again, and keeps its lock; and the report
that tells of it afterwards, of all nodes, without a secret."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tarfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import secrets_search
import yaml
from conftest import MakeLab
from faults import cut, kill
from machines import assert_error, records_in, revive, start_with_relay, wait_until
from training_run import CHECKPOINT_EVERY, ROBOT, TrainingRun, find_learner, learned_again, paced
from typed_page import DOCS

from edgelink.clock import SystemClock
from edgelink.config import Paths
from edgelink.lab import CLOUD, RELAY
from edgelink.lab.road import Road, demo_cluster

ENDLESS = 1_000_000  # iterations: the test ends it

OTHERS = pytest.mark.xdist_group("test_driver_supervised.py, others")  # in a world of their own, at the same time

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab) -> Road:
    """One more machine is there, and has not joined."""
    lab = make_shared_lab()
    lab.up(edges=2)
    start_with_relay(lab, (CLOUD, "edge-1"))
    return Road(lab, SystemClock(), print)


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


PENDS = """
import time, ray
from ray.util.placement_group import placement_group
ray.init(log_to_driver=False)
@ray.remote
class Critic:
    pass
group = placement_group([{"CPU": 400}, {"CPU": 400}], strategy="STRICT_PACK", name="pool")
critic = Critic.options(num_cpus=300).remote()
print("asked at", time.monotonic(), flush=True)
ray.get(group.ready())
"""
PENDING_TOLD_S = 10.0


def test_what_waits_in_ray_is_told(road: Road, tmp_path: Path) -> None:
    """A placement group and an actor that no node will ever have room for, in a program of no framework: said by `run`
    and by `status`, and the run goes on."""
    log = tmp_path / "run.log"
    command = road.lab.popen(CLOUD, ["edgelink", "run", "--no-preflight", "--", "python", "-c", PENDS], log)
    try:
        asked = wait_until("it asks", lambda: re.search(r"asked at ([0-9.]+)", log.read_text()), 120)
        told = wait_until(
            "both are told", log.read_text, wanted=lambda text: "placement group pool" in text and "Critic" in text
        )
        took_s = time.monotonic() - float(asked[1])
        (attempt,) = wait_until("in the status", lambda: run_of(road)["attempts"], wanted=lambda a: a[0]["waits_for"])
        assert command.poll() is None
    finally:
        command.terminate()
        command.wait()
    print(f"told after {took_s:.1f} s: {attempt['waits_for']}")
    assert took_s <= PENDING_TOLD_S
    assert re.search(r"placement group pool waits for 2 times 400 CPU.*cloud [0-9.]+ of [0-9.]+ CPU; edge-1", told)
    assert re.search(r"Critic waits for 300 CPU", told)
    assert len(attempt["waits_for"]) == 2
    assert told.count("waits for") == 2


@OTHERS
def test_a_node_that_died_costs_one_interval(road: Road, tmp_path: Path) -> None:
    """raylet SIGKILL at the only robot, which is not commanded again unasked: the trainer is run again, from its newest
    checkpoint, and ends with 0."""
    relaunch = ("--on-node-loss", "relaunch", "--retries", "2")
    training = TrainingRun(road, tmp_path, 12, *relaunch, settings=ROBOT)
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
    # The lock goes with the command's connection, whose end the daemon notices in its own time.
    wait_until("the lock is released", lambda: not run_of(road)["in_progress"])
    shown = road.lab.exec(CLOUD, ["edgelink", "status", "--verbose"], capture=True).stdout
    assert "attempt 2" in shown


@OTHERS
@pytest.mark.long
def test_an_only_simulator_that_dies_is_waited_for(road: Road, tmp_path: Path) -> None:
    """raylet SIGKILL at the only edge: nothing is asked for, and the one attempt goes on where it was."""
    training = TrainingRun(road, tmp_path, 12)
    training.wait_for_iteration(5)
    kill(road.lab, "edge-1", "raylet")
    assert training.command.wait(400) == 0, training.log.read_text()
    assert training.iterations() == list(range(1, 13)), "no step of the learner is lost"
    assert "waiting for env:0 on node 1" in training.log.read_text()


def test_a_run_keeps_its_lock_when_the_head_daemon_is_killed(road: Road, tmp_path: Path) -> None:
    """SIGKILL of the head daemon, then its restart: training is not touched, a second run is refused with 75."""
    lab = road.lab
    road.wait_ready(CLOUD)
    training = TrainingRun(road, tmp_path, ENDLESS)
    training.wait_for_iteration(2)
    lab.kill(CLOUD)
    lab.start(CLOUD)
    wait_until("the lock is kept", lambda: run_of(road)["in_progress"])
    second = lab.exec(CLOUD, ["edgelink", "run", "--timeout", "5s", "--", "true"], capture=True)
    assert_error(second, 75, "RunInProgress")
    # The new daemon knows of the lock from its disk, before the run has come back to it.
    wait_until("the run is back", training.log.read_text, wanted=lambda said: "the head daemon is back" in said)
    training.wait_for_more_than(len(training.iterations()))
    training.command.send_signal(signal.SIGINT)
    assert training.command.wait(400) == 130, training.log.read_text()
    learned = training.iterations()
    assert learned == list(range(1, len(learned) + 1)), "in one go"
    said = training.log.read_text()
    assert said.count("the head daemon is away") == said.count("this run keeps its lock") == 1
    wait_until("the lock is released", lambda: not run_of(road)["in_progress"])
    assert (
        lab.exec(
            CLOUD, ["edgelink", "run", "--no-preflight", "--timeout", "60s", "--", "true"], capture=True
        ).returncode
        == 0
    )


@pytest.mark.long
def test_two_learners_make_each_update_together(road: Road, tmp_path: Path) -> None:
    """One in the cloud and one on the edge, over the overlay, from what both pairs collect; and again from a checkpoint
    of the first one's, which all of them load."""
    road.wait_ready(CLOUD)
    cluster, report = demo_cluster(1), tmp_path / "report.json"
    for component in ("actor", "rollout", "env"):
        cluster["cluster"]["component_placement"][component] = {"node_group": "cluster", "placement": "0-1"}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(tmp_path / "cluster.yaml"), "--", "edgelink", "train"]
    run += ["run.eval_episodes=2", "env.kinds=sim", "run.checkpoint_every=1", "--report", str(report)]

    def train(iterations: int, *options: str) -> dict[str, Any]:
        argv = [*run, f"run.iterations={iterations}", "--checkpoint-dir", str(tmp_path / "c"), *options]
        ended = road.lab.exec(CLOUD, argv, capture=True, timeout_s=300)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        found: dict[str, Any] = json.loads(report.read_text())
        return found

    first = train(3)
    learners = [worker for worker in first["workers"] if worker["component"] == "actor"]
    assert [(each["device_address"], each["device"]) for each in learners] == [
        ("10.10.0.2", "et0"),
        ("10.10.0.3", "et0"),
    ]
    assert set(first["sample_share"]) == {"0", "1"}
    assert min(first["sample_share"].values()) > 0.2, "both pairs count"
    again = train(5, "--resume")
    assert (again["first_iteration"], again["iterations"]) == (4, 5)
    assert again["return_before"] == first["return_before"], "of the policy that nothing was learned by yet"


@OTHERS
def test_an_edge_that_dies_takes_only_its_own_workers(road: Road, tmp_path: Path) -> None:
    """Of two pairs one goes on, without a step of the learner lost, and the other is used again when its node is back.

    The task is in pixels, two frames of which the policy sees at once, and is a file on the head only.
    """
    road.wait_ready(CLOUD)
    (tmp_path / "crane.py").write_text(_TASK)
    cluster = demo_cluster(1)
    for component in ("rollout", "env"):
        cluster["cluster"]["component_placement"][component] = {"node_group": "cluster", "placement": "0-1"}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    progress, log = tmp_path / "progress", tmp_path / "train.log"
    train = ["edgelink", "train", f"run.iterations={ENDLESS}", "run.eval_episodes=1", "env.kinds=sim"]
    train += [f"env.modules=[{tmp_path}/crane.py]", "env.task=crane:Crane-v0", "env.per_worker=2"]
    train += ["flow.frame_stack=2"]
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(tmp_path / "cluster.yaml"), "--", *train]
    command = road.lab.popen(CLOUD, [*run, "--progress", str(progress)], log)

    def records() -> list[dict[str, Any]]:
        assert command.poll() is None, log.read_text()
        return records_in(progress)

    def live_pairs() -> int:
        return records()[-1]["live_pairs"] if records() else 0

    try:
        wait_until(
            "both pairs give something", records, 120, wanted=lambda told: told and len(told[-1]["samples"]) == 2
        )
        kill(road.lab, "edge-1", "raylet")
        wait_until("training goes on with one", live_pairs, 120, wanted=lambda pairs: pairs == 1)
        wait_until("the node is used again", live_pairs, 240, wanted=lambda pairs: pairs == 2)
        wait_until("it gives something", records, wanted=lambda told: len(told[-1]["samples"]) == 2)
    finally:
        command.send_signal(signal.SIGINT)
        command.wait(60)
    told = records_in(progress)
    assert [record["iteration"] for record in told] == list(range(1, len(told) + 1)), "no step of the learner is lost"
    frame_bytes = 12 * 12
    # What moves in such frames is a square of 3 × 3: each frame sent once, and packed, is far below one as it is.
    assert 0 < told[-1]["bytes_per_env_step"]["observations"] < frame_bytes


_TASK = """
import time

import gymnasium
import numpy as np


class Crane(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (12, 12, 1), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 4, 0
        return self.look(), {}

    def look(self):
        seen = np.zeros((12, 12, 1), np.uint8)
        seen[4:7, self.place : self.place + 3] = 255
        return seen

    def step(self, action):
        time.sleep(0.001)  # some ten updates a second, where it would take a whole core
        self.place, self.steps = min(9, max(0, self.place + 2 * int(action) - 1)), self.steps + 1
        return self.look(), float(self.place), False, self.steps == 20, {}


gymnasium.register("Crane-v0", Crane)
"""


def test_a_run_survives_the_deaths_of_its_learner_and_of_rays_head(road: Road, tmp_path: Path) -> None:
    """The learner SIGKILL, then the GCS: with retries the run waits for the whole cluster to be back, and runs its
    driver again, from its newest checkpoint."""
    road.wait_ready(CLOUD)
    training = TrainingRun(road, tmp_path, 14, "--retries", "3")
    training.wait_for_iteration(3)
    os.kill(find_learner(road.lab), signal.SIGKILL)
    training.wait_for_iteration(8)
    kill(road.lab, CLOUD, "gcs_server")
    assert training.command.wait(400) == 0, training.log.read_text()
    learned = training.iterations()
    assert sorted(set(learned)) == list(range(1, 15)), "none is left out"
    assert learned.count(1) == 1, "not from the beginning"
    assert max(learned_again(learned), default=0) <= CHECKPOINT_EVERY
    assert [attempt["exit_status"] for attempt in run_of(road)["attempts"]][-1] == 0
    assert len(run_of(road)["attempts"]) == 3


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
    logs = lab.exec("edge-1", ["edgelink", "logs", "--easytier", "-n", "5000"], capture=True, check=True).stdout
    assert logs.count("planted ***") >= 3
    assert secrets_search.find(secrets, [("logs", logs.encode())]) == []
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


@OTHERS
@pytest.mark.long
def test_a_machine_that_joins_gets_a_simulator(road: Road, tmp_path: Path) -> None:
    """In the midst of a training that takes it in: enrolled, in Ray, and learned from, without a step lost."""
    road.wait_ready(CLOUD)
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(demo_cluster(1)))
    progress, log = tmp_path / "progress", tmp_path / "train.log"
    train = ["edgelink", "train", f"run.iterations={ENDLESS}", *paced(updates_per_s=10), "elastic.grow=true"]
    train += ["--progress", str(progress)]
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(tmp_path / "cluster.yaml"), "--", *train]
    command = road.lab.popen(CLOUD, run, log)

    def records() -> list[dict[str, Any]]:
        assert command.poll() is None, log.read_text()
        return records_in(progress)

    try:
        wait_until("the training runs", records, 120)
        road.enrol("edge-2")
        road.lab.start("edge-2")
        wait_until("it is learned from", records, 240, wanted=lambda told: set(told[-1]["samples"]) == {"0", "1"})
    finally:
        command.send_signal(signal.SIGINT)
        command.wait(60)
    told = records_in(progress)
    assert [record["iteration"] for record in told] == list(range(1, len(told) + 1))
    assert "node 2 (edge-2) has joined" in log.read_text()


COMES_FURTHER = """
import os, pathlib, sys
number = int(os.environ["EDGELINK_ATTEMPT"])
pathlib.Path(os.environ["EDGELINK_STEP_FILE"]).write_text(str(10 * number))
sys.exit(5 if number < 3 else 0)
"""


@pytest.mark.long
def test_a_driver_that_comes_further_each_time_has_no_defect(road: Road) -> None:
    """It dies within seconds, with nothing wrong in the cluster, but went on from where it had been."""
    run = ["edgelink", "run", "--retries", "3", "--", sys.executable, "-c", COMES_FURTHER]
    done = road.lab.exec(CLOUD, run, capture=True, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [attempt["exit_status"] for attempt in run_of(road)["attempts"]] == [5, 5, 0]


@OTHERS
def test_who_trains_is_told_that_the_robot_is_stopped(road: Road, tmp_path: Path) -> None:
    """By whom, where, and what lets it go on; and when it has. The robot is the one of docs/how-to/robots.md, in a
    package of its own."""
    road.wait_ready(CLOUD)
    _, slider, *_ = (DOCS / "how-to/robots.md").read_text().split("```python\n")
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "slider.py").write_text(slider.partition("```")[0])
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(demo_cluster(1)))
    progress, log = tmp_path / "progress", tmp_path / "train.log"
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(tmp_path / "cluster.yaml"), "--", "edgelink", "train"]
    train = [*run, f"run.iterations={ENDLESS}", "run.eval_episodes=1", "env.kinds=robot", "--progress", str(progress)]
    # A goal that is near: an untrained policy shall meet it, too.
    train += [f"env.modules=[{package}]", "robot.type=my_package.slider:Slider", "robot.options.goal=0.02"]
    command = road.lab.popen(CLOUD, train, log)

    def learned() -> int:
        assert command.poll() is None, log.read_text()
        return len(records_in(progress))

    try:
        wait_until("the first update", learned)
        wait_until(  # on a busy machine it holds still now and then
            "the robot runs",
            lambda: json.loads(
                road.lab.exec("edge-1", ["edgelink", "robot", "status", "--json"], capture=True).stdout or "[]"
            ),
            wanted=lambda robots: (
                [(robot["robot"], robot["rate_hz"], robot["state"]) for robot in robots]
                == [("my_package.slider:Slider", 200, "running")]
            ),
        )
        road.lab.exec("edge-1", ["edgelink", "robot", "stop"], check=True)
        said = "because of: person; `edgelink robot resume edge-1-env-0` on edge-1"
        wait_until("it is told", log.read_text, wanted=lambda told: said in told)
        before = learned()
        road.lab.exec("edge-1", ["edgelink", "robot", "resume"], check=True)
        wait_until(
            "that, too",
            log.read_text,
            wanted=lambda told: "env:0 on node 1 (edge-1, 10.10.0.3): its robot goes on" in told,
        )
        wait_until("it learns on", learned, wanted=lambda count: count > before)
        assert log.read_text().count(said) == 1
    finally:
        command.send_signal(signal.SIGINT)
        command.wait(60)


_TEN_HZ = """
from edgelink.training.trainer.robot.cart_pole import CartPoleCell


class TenHz(CartPoleCell):
    def __init__(self, settings):
        super().__init__(settings)
        self.action_repeat = round(self.rate_hz / 10)
"""
LEARNED_STEPS = 300  # of the robot: half a minute and more
STOP_AFTER_S, HOLD_AT_MOST_S, RESUME_AFTER_S = 20.0, 4.0, 0.3
EARNS_BACK = 4  # seconds of running for one of hold
FLAP_CUT_S, FLAP_BACK_S = 1.0, 1.5


@OTHERS
@pytest.mark.long
def test_a_slow_robot_is_learned_from_and_stops_where_its_link_fails(road: Road, tmp_path: Path) -> None:
    """Ten decisions a second on an edge, beside a simulator in the cloud that makes as many updates. Then its link is
    cut, which stops it, and flaps, which stops it as well: before it has been under power for longer than it may."""
    road.wait_ready(CLOUD)
    (tmp_path / "ten_hz.py").write_text(_TEN_HZ)
    cluster, robots = demo_cluster(1), tmp_path / "robots"
    for component in ("rollout", "env"):
        cluster["cluster"]["component_placement"][component] = {"node_group": "cluster", "placement": "0-1"}
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(cluster))
    progress, log = tmp_path / "progress", tmp_path / "train.log"
    pace = [setting for setting in paced(updates_per_s=10) if not setting.startswith(("env.kinds", "env.modules"))]
    train = ["edgelink", "train", f"run.iterations={ENDLESS}", "env.kinds=sim,robot", *pace]
    train += [f"env.modules=[{Path(__file__).with_name('paced_env.py')},{tmp_path / 'ten_hz.py'}]"]
    train += ["env.per_worker=1", "robot.type=ten_hz:TenHz", f"control.directory={robots}"]
    train += [f"deadman.stop_after_s={STOP_AFTER_S:g}", f"deadman.hold_at_most_s={HOLD_AT_MOST_S:g}"]
    train += [f"deadman.resume_after_s={RESUME_AFTER_S:g}"]
    run = ["edgelink", "run", "--no-preflight", "--cluster", str(tmp_path / "cluster.yaml"), "--", *train]
    command = road.lab.popen(CLOUD, [*run, "--progress", str(progress)], log)

    def fragments() -> list[int]:
        """The robot's steps in each update that it took part in."""
        assert command.poll() is None, log.read_text()
        return [record["samples"]["1"] for record in records_in(progress) if "1" in record["samples"]]

    def robot() -> dict[str, Any]:
        told = road.lab.exec("edge-1", ["edgelink", "robot", "status", "--json"], capture=True)
        (found,) = json.loads(told.stdout)
        return dict(found)

    def events() -> list[dict[str, Any]]:
        """Its changes of state so far."""
        (file,) = robots.glob("*.events.jsonl")
        return [event for event in records_in(file) if event["event"] in ("running", "holding", "stopped")]

    def wait_for(event: str, since: int) -> list[str]:
        """The events since then, once this one is among them."""
        return wait_until(
            event, lambda: [each["event"] for each in events()[since:]], wanted=lambda told: event in told
        )

    try:
        wait_until("it is learned from", fragments, 300, wanted=lambda steps: sum(steps) >= LEARNED_STEPS)
        done = robot()["steps"]
        *_, newest = learned = fragments()
        share = sum(learned) / (done - newest)  # of which the next one is being made
        print(f"learned {sum(learned)} of {done} steps, the last {newest} in one update of {len(records_in(progress))}")
        assert share >= 0.95
        before = len(events())
        with cut(road.lab, "edge-1"):
            assert wait_for("stopped", before) == ["holding", "stopped"]
        wait_for("running", before)
        before = len(events())
        while "stopped" not in [event["event"] for event in events()[before:]]:
            with cut(road.lab, "edge-1"):
                time.sleep(FLAP_CUT_S)  # how the link flaps; not a synchronisation
            time.sleep(FLAP_BACK_S)  # likewise
        told = events()[before - 1 :]
        print(f"flapping: {[(event['event'], round((event['at_ns'] - told[0]['at_ns']) / 1e9, 2)) for event in told]}")
        spans = [(one["event"], (next_["at_ns"] - one["at_ns"]) / 1e9) for one, next_ in pairwise(told)]
        held_s = sum(seconds for event, seconds in spans if event == "holding")
        ran_s = sum(seconds for event, seconds in spans[1:] if event == "running")
        assert {event["cause"] for event in told if event["event"] != "running"} == {"link"}
        assert [event for event, _ in spans].count("holding") > 1, "it flapped"
        assert held_s <= HOLD_AT_MOST_S + ran_s / EARNS_BACK + 0.1
        was = sum(fragments())
        wait_for("running", before)
        wait_until("it is learned from again", fragments, wanted=lambda steps: sum(steps) > was)
    finally:
        command.send_signal(signal.SIGINT)
        command.wait(60)
