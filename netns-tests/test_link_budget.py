"""The link budget on a link whose length and rate are known: what is measured through the tunnel, what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MakeLab
from machines import brought_up_on

from edgelink.lab import CLOUD
from edgelink.lab.road import Road, write_demo_cluster

EDGE = "edge-1"
RTT_MS, MBIT = 80, 10

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("easytier")]


@pytest.fixture(scope="module")
def brought_up(make_shared_lab: MakeLab) -> Road:
    return brought_up_on(make_shared_lab(), 1)


@pytest.fixture
def road(brought_up: Road) -> Iterator[Road]:
    """The edge's link is long and narrow."""
    brought_up.lab.set_wan([EDGE], {"rtt": f"{RTT_MS}ms", "rate": f"{MBIT}mbit"})
    yield brought_up
    brought_up.lab.set_wan([EDGE], {"rtt": "0", "rate": "none"})


def test_the_links_of_a_placement_are_measured_and_a_narrow_one_is_refused(road: Road, tmp_path: Path) -> None:
    """RTT and rate through the tunnel within 20 % of what the machine's link has. What it does not carry is refused
    with the placement that would do."""
    cluster = write_demo_cluster(tmp_path / "cluster.yaml", 1)
    plan = ["edgelink", "plan", str(cluster), "--live", "--json", "--observation", "84x84x4:uint8"]
    plan += ["--parameters", "1.7M"]
    measured = road.lab.exec(CLOUD, [*plan, "--link-budget"], capture=True)
    assert measured.returncode == 0, measured.stderr
    found = json.loads(measured.stdout)["link_budget"]["measured"]
    names = {int(rank): name for rank, name in found["names"].items()}
    ways = {(names[link["source"]], names[link["target"]]): link for link in found["links"]}
    assert set(ways) == {(CLOUD, EDGE), (EDGE, CLOUD)}
    for link in ways.values():
        assert link["rtt_ms"] == pytest.approx(RTT_MS, rel=0.2)
        assert link["mbit_per_s"] == pytest.approx(MBIT, rel=0.2)

    (tmp_path / "links.json").write_text(measured.stdout)
    wanted = ["--links", str(tmp_path / "links.json"), "--env-steps-per-s", "1000"]
    refused = road.lab.exec(CLOUD, [*plan, *wanted], capture=True)
    assert refused.returncode == 75, refused.stderr
    budget = json.loads(refused.stdout)["link_budget"]
    assert budget["limit"] == f"the link {EDGE} → {CLOUD}"
    assert all(name in budget["better"][0]["place"] for name in ("rollout", "env", "beside actor"))


@pytest.mark.long
def test_a_training_tells_its_budget_and_what_came_of_it(road: Road, tmp_path: Path) -> None:
    """Before its first update and after the last one; a pace that the link cannot carry ends it before it begins."""
    cluster, report = write_demo_cluster(tmp_path / "cluster.yaml", 1), tmp_path / "report.json"
    train = ["edgelink", "train", "--config", str(cluster), "--checkpoint-dir", str(tmp_path / "checkpoints")]
    train += ["run.iterations=5", "env.kinds=sim", "run.eval_episodes=1"]
    train += ["env.task=Acrobot-v1", "algorithm.discount=0.99"]
    run = ["edgelink", "run", "--cluster", str(cluster), "--", *train]
    trained = road.lab.exec(CLOUD, [*run, "--report", str(report)], capture=True)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert f"edgelink: measures {CLOUD} ↔ {EDGE}" in trained.stderr
    told = trained.stdout.splitlines()
    before = next(index for index, line in enumerate(told) if line.startswith("link budget, "))
    assert any(line.strip().startswith(f"{EDGE} → {CLOUD} ") for line in told[before:])
    assert [line for line in told[before + 1 :] if line.startswith("link budget: ") and "predicted" in line]
    found = json.loads(report.read_text())["link_budget"]
    assert found["env_steps_per_s"] > 0
    assert found["work"]["max_policy_lag"] > 0
    for link in found["predicted"]["measured"]["links"]:
        assert link["rtt_ms"] == pytest.approx(RTT_MS, rel=0.2)

    assert [line for line in told if line.startswith(f"  {EDGE}: ") and "policy" in line and "received" in line]

    refused = road.lab.exec(CLOUD, [*run, "flow.wanted_env_steps_per_s=1e9"], capture=True)
    assert refused.returncode == 75, refused.stdout + refused.stderr
    assert "return of" not in refused.stdout, "no episode is played for a training that is refused"
    assert "beside actor" in refused.stderr
