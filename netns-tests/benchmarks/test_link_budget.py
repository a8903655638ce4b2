"""The link budget against what happens: the trainer over six links, each predicted from a run over a short one."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from contenders import EDGE, bench_lab
from figures import Figure, Figures

from edgelink.clock import SystemClock
from edgelink.lab import CLOUD
from edgelink.lab.road import Road, write_demo_cluster
from edgelink.training.trainer.flow import FlowSettings
from edgelink.training.trainer.link_budget.links import Measured
from edgelink.training.trainer.link_budget.predict import Prediction, predict, traffic
from edgelink.training.trainer.link_budget.traffic import Seats, Work

DEFAULT = FlowSettings().max_policy_lag
# Round trip, rate and loss that the edge's way adds; a lag of 0 is a loop that takes turns with the learner.
LINKS = (
    ("80ms", "20mbit", "0", 0),
    ("100ms", "20mbit", "0.5%", 0),
    ("300ms", "5mbit", "0", 1),
    ("500ms", "2mbit", "0.2%", 1),
    ("60ms", "0.5mbit", "0", DEFAULT),
    ("40ms", "1mbit", "1%", DEFAULT),
)
SEATS = Seats(actor=(0,), rollout=(1,), env=(1,))
UPDATES = 150  # a packet that a long link loses holds up several of them: with 60 in 20 s, luck was measured
WITHIN = 0.25
RANK = 1  # the edge's
STEPS, SYNC, SENT, RECEIVED = "env steps", "a new policy", "sent", "received"
UNITS = {STEPS: "1/s", SYNC: "s", SENT: "Mbit/s", RECEIVED: "Mbit/s"}
FORGETS_S = 12  # BBR sends by the shortest round trip of ten seconds: no real link becomes longer all at once

pytestmark = pytest.mark.timeout(1800)


def train(road: Road, directory: Path, lag: int) -> dict[str, Any]:
    """What the trainer's report says of its link budget."""
    cluster, report = write_demo_cluster(directory / "cluster.yaml", 1), directory / "report.json"
    train = ["edgelink", "train", f"run.iterations={UPDATES}", "env.kinds=sim", "run.eval_episodes=1"]
    train += ["flow.fragment_steps=256", f"flow.max_policy_lag={lag}", "--report", str(report)]
    ran = road.lab.exec(CLOUD, ["edgelink", "run", "--cluster", str(cluster), "--", *train], capture=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return dict(json.loads(report.read_text())["link_budget"])


def expected_of(prediction: Prediction) -> dict[str, float]:
    """What is held against :func:`what_happened`, of the edge."""
    assert prediction.env_steps_per_s is not None
    sent, received = traffic(prediction, RANK)
    return {STEPS: prediction.env_steps_per_s, SYNC: prediction.sync_s[RANK], SENT: sent, RECEIVED: received}


def what_happened(found: dict[str, Any]) -> dict[str, float]:
    moved = found["mbit_per_s"][EDGE]
    return {
        STEPS: found["env_steps_per_s"],
        SYNC: found["sync_s"][EDGE],
        SENT: moved["sent"],
        RECEIVED: moved["received"],
    }


def test_the_prediction_is_what_happens(figures: Figures, tmp_path: Path) -> None:
    """Env steps a second, the age of a new policy when it is there and what each direction carries, within 25 % on each
    link: from the links as they were measured before each start, and from the bytes and paces of a run over a short
    link, and none of this run."""
    lab = bench_lab("budget")
    ratios: dict[str, list[float]] = {name: [] for name in UNITS}
    happened, own = [], []
    try:
        road = Road(lab, SystemClock(), print)
        road.bring_up(1)
        near: dict[int, Work] = {}
        for rtt, rate, loss, lag in LINKS:
            if lag not in near:
                lab.set_wan([EDGE], {"rtt": "0", "rate": "none", "loss": "0"})
                near[lag] = Work.from_dict(train(road, tmp_path, lag)["work"])
            lab.set_wan([EDGE], {"rtt": rtt, "rate": rate, "loss": loss})
            time.sleep(FORGETS_S)
            found = train(road, tmp_path, lag)
            measured = Measured.from_dict(found["predicted"]["measured"])
            prediction = predict(SEATS, near[lag], measured)
            expected, came = expected_of(prediction), what_happened(found)
            for name, of_link in ratios.items():
                of_link.append(expected[name] / came[name])
            happened.append(came[STEPS])
            own.append(found["predicted"]["env_steps_per_s"])
            told = ", ".join(f"{name} {came[name]:.3g} {unit} ({expected[name]:.3g})" for name, unit in UNITS.items())
            links = "; ".join(f"{link.rtt_ms:.0f} ms {link.mbit_per_s:.3g} Mbit/s" for link in measured.links.values())
            print(
                f"{rtt} {rate} {loss}, lag {lag}: {told}, limited by {prediction.limit}; steps with this run's own "
                f"paces {own[-1]:.0f}; measured {links}",
                flush=True,
            )
    finally:
        lab.down()
    figures.add(Figure("env steps/s over six links", "1/s", happened))
    for name, of_link in ratios.items():
        figures.add(Figure(f"predicted over happened: {name}", "", of_link, bar="0.75 - 1.25"))
    figures.add(Figure("env steps, by the run's own paces", "", [a / b for a, b in zip(own, happened, strict=True)]))
    assert not {name: far for name, of_link in ratios.items() if (far := [r for r in of_link if abs(r - 1) > WITHIN])}
