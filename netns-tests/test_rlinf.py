"""Real RLinf 0.3.0 (PyPI): its workers are where the plan said, its edges keep what is theirs, an outage is no end.

One lab serves all tests of this file; the last one cuts an edge off.
"""

from __future__ import annotations

import json
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeLab
from faults import cut
from framework_python import FrameworkPython
from machines import brought_up_on, records_in, wait_until

from edgelink.lab import CLOUD
from edgelink.lab.road import Road, write_demo_cluster

EXAMPLE = Path(__file__).parent.parent / "docs/examples/rlinf"
EDGES = ("edge-1", "edge-2")
CUT_S = 60
SLACK_S = 15.0  # see test_ride_through.py
LAUNCH_S = 400.0  # every process imports RLinf and torch; minutes on two busy cores

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("easytier"),
    pytest.mark.skipif(os.environ.get("EDGELINK_SOAK") != "1", reason="takes 5 minutes: `make soak`"),
]


@pytest.fixture(scope="module")
def rlinf_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with RLinf 0.3.0 over this one's Ray and torch.

    Without RLinf's dependencies, most of which are for models and simulators: its scheduler needs two of them.
    """
    made = FrameworkPython(tmp_path_factory.mktemp("rlinf") / "venv")
    made.install(Path(__file__).with_name("rlinf.lock"))
    return made.python


@pytest.fixture(scope="module")
def road(make_shared_lab: MakeLab, rlinf_python: Path) -> Road:
    return brought_up_on(make_shared_lab(), len(EDGES), ray_python=rlinf_python)


def test_each_worker_is_where_the_plan_said(road: Road) -> None:
    """Node, rank and every variable that `plan --live` printed; tensors went over the overlay, by a channel, too."""
    file = str(EXAMPLE / "config.yaml")
    argv = ["edgelink", "plan", file, "--live", "--json", "--show-env"]
    plan = json.loads(road.lab.exec(CLOUD, argv, capture=True, check=True).stdout)
    listed = json.loads(road.lab.exec(CLOUD, ["edgelink", "nodes", "--json"], capture=True).stdout)["nodes"]
    ray_node_ids = {node["overlay_ip"]: node["ray_node_id"] for node in listed}

    run = ["edgelink", "run", "--cluster", file, "--", "python", str(EXAMPLE / "program.py"), file]
    ran = road.lab.exec(CLOUD, run, capture=True, timeout_s=LAUNCH_S)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert any("rlinf" in line and "3 nodes" in line for line in ran.stderr.splitlines())
    told = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith('{"workers"')))
    assert (told["learnt"], told["played"]) == ([3.0], [3.0, 3.0]), "tensors through the channel, and back"
    assert {name: len(found) for name, found in told["workers"].items()} == plan["world_size"]
    assert [item["node_rank"] for item in plan["placements"]["env"]] == [1, 1, 1, 2]
    for name, placements in plan["placements"].items():
        for planned, found in zip(placements, told["workers"][name], strict=True):
            node = plan["nodes"][planned["node_rank"]]
            assert found["rank"] == planned["process_rank"]
            assert (found["ip"], found["hostname"]) == (node["ip"], node["hostname"])
            assert found["ray_node_id"] == ray_node_ids[node["ip"]]
            environment = found["environment"]
            assert {variable: environment.get(variable) for variable in planned["env"]} == planned["env"]
            of_rlinf = {name for name in environment if name.startswith("RLINF_") or name.endswith("_SOCKET_IFNAME")}
            assert of_rlinf <= set(planned["env"]), "nothing that RLinf reads comes from elsewhere"
    print(f"{sum(plan['world_size'].values())} workers, {len(plan['placements']['env'][0]['env'])} variables each")


def test_ray_by_hand_is_refused_before_rlinf_meets_it(road: Road, tmp_path: Path) -> None:
    """With a rank that another node has: RLinf would refuse it once every process is up."""
    file, ran = str(EXAMPLE / "config.yaml"), tmp_path / "ran"
    status = road.status(EDGES[0])
    assert status is not None
    ip = status["overlay_ip"]
    start = ["start", "--block", "--address=10.10.0.2:6379", f"--node-ip-address={ip}"]
    by_hand, log = ["edgelink", "exec", "--", "python", "-m", "ray.scripts.scripts", *start], tmp_path / "ray.log"

    def strangers() -> list[dict[str, Any]]:
        listed = road.lab.exec(CLOUD, ["edgelink", "nodes", "--json"], capture=True).stdout
        found: list[dict[str, Any]] = json.loads(listed)["strangers"]
        return found

    def strangers_while_it_runs() -> list[dict[str, Any]]:
        assert second.poll() is None, log.read_text()
        return strangers()

    def launch(*options: str) -> str:
        run = ["edgelink", "run", *options, "--timeout", "1m", "--", "touch", str(ran)]
        result = road.lab.exec(CLOUD, run, capture=True)
        assert result.returncode == 78, result.stderr
        return result.stderr

    second = road.lab.popen(EDGES[0], by_hand, log, env={"RLINF_NODE_RANK": "2"})
    try:
        wait_until("Ray lists it", strangers_while_it_runs, LAUNCH_S)
        placed = launch("--cluster", file)
        assert "node rank missing with node_groups" in placed
        assert f"{EDGES[0]} ({ip})" in placed
        assert f"a second Ray on {EDGES[0]}" in placed
        assert "reason: PlacementInvalid" in placed
        assert "reason: RankMissing" in launch("--framework", "rlinf")
        assert not ran.exists()
    finally:
        second.terminate()
        second.wait(60)
    wait_until("Ray has lost it", lambda: not strangers())


def test_the_heads_shell_does_not_reach_the_edges(road: Road, tmp_path: Path) -> None:
    """Its own workers on the edges have the edges' own; without `edgelink run` they have the head's shell's."""
    shell = {
        "HOME": str(tmp_path),
        "RLINF_NODE_RANK": "7",
        "RLINF_COMM_NET_DEVICES": "lan9",
        "https_proxy": "http://192.0.2.9:3128",
        "TMPDIR": "/tmp",
        "WANDB_MODE": "offline",
    }
    script = str(Path(__file__).with_name("rlinf_shell.py"))

    def workers(*command: str) -> list[dict[str, str]]:
        answer = road.lab.exec(CLOUD, [*command, "python", script], capture=True, env=shell, timeout_s=LAUNCH_S)
        line = next((line for line in answer.stdout.splitlines() if line.startswith("[{")), None)
        assert line is not None, answer.stdout + answer.stderr
        found: list[dict[str, str]] = json.loads(line)
        return found

    for worker in workers("edgelink", "exec", "--"):
        assert shell.items() <= worker.items()
    for rank, worker in enumerate(workers("edgelink", "run", "--"), start=1):
        assert (worker["RLINF_NODE_RANK"], worker["RLINF_COMM_NET_DEVICES"]) == (str(rank), "et0")
        assert worker["WANDB_MODE"] == "offline"
        assert worker["HOME"] != shell["HOME"]
        assert not {"https_proxy", "TMPDIR"} & set(worker)


def test_rlinf_goes_on_after_a_cut(road: Road, tmp_path: Path) -> None:
    """An edge's link is cut for a minute while tensors move: no error, same processes, no round lost or repeated."""
    record, log = tmp_path / "record", tmp_path / "driver.log"
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", len(EDGES))
    script = Path(__file__).with_name("rlinf_driver.py")
    run = road.lab.popen(
        CLOUD, ["edgelink", "run", "--cluster", str(cluster), "--", "python", str(script), str(record)], log
    )

    def done_so_far() -> list[dict[str, Any]]:
        """The rounds of a driver that still runs."""
        assert run.poll() is None, log.read_text()
        return records_in(record)

    try:
        wait_until("five rounds", done_so_far, LAUNCH_S, wanted=lambda done: len(done) >= 5)
        started_s = time.monotonic()
        with cut(road.lab, EDGES[0]):
            time.sleep(CUT_S)  # the outage itself
        mended_s = time.monotonic()
        wait_until("a round after the cut", done_so_far, CUT_S + 60, wanted=lambda done: done[-1]["at_s"] > mended_s)
        count = len(records_in(record))
        wait_until("five rounds more", done_so_far, wanted=lambda done: len(done) >= count + 5)
    finally:
        run.send_signal(signal.SIGTERM)
        run.wait(60)
    done = records_in(record)
    gap_s = max(later["at_s"] - earlier["at_s"] for earlier, later in pairwise(done))
    print(f"outage {mended_s - started_s:.1f} s: gap {gap_s:.1f} s, {len(done)} rounds")
    assert gap_s >= CUT_S / 2, "the cut did not stop the rounds"
    assert gap_s <= mended_s - started_s + SLACK_S
    assert [entry["means"] for entry in done] == [[float(n)] * 2 for n in range(1, len(done) + 1)]
    assert len({pid for entry in done for pid, _ in entry["workers"]}) == len(EDGES)
