"""What a driver's file of figures is taken for."""

from __future__ import annotations

import json
from pathlib import Path

from edgelink.cli.run_metrics import MetricsTail
from edgelink.training.run_record import MOST_METRICS, MOST_POINTS, RunMetrics
from edgelink.training.trainer.metrics import shown


def test_finished_lines_are_points(tmp_path: Path) -> None:
    """Half a line waits for its rest; what is no figure is left out, and nothing is told twice."""
    file = tmp_path / "metrics"
    tail = MetricsTail(file)
    assert tail.new_points() == []
    file.write_text('{"step": 7, "return": 21.5, "name": "x", "ok": true}\n{"step": 8, "ret')
    assert tail.new_points() == [{"step": 7.0, "values": {"return": 21.5}}]
    with file.open("a") as more:
        more.write('urn": 22}\nno JSON\n[1]\n{"step": 9, "return": NaN, "huge": 1e999}\n{"loss": 0.5}\n')
    assert tail.new_points() == [{"step": 8.0, "values": {"return": 22.0}}, {"step": 6.0, "values": {"loss": 0.5}}]
    assert tail.new_points() == []


def test_what_is_told_can_be_taken(tmp_path: Path) -> None:
    """Whatever the file holds, the daemon does not refuse it; a line without an end is passed over."""
    file = tmp_path / "metrics"
    names = {"n" * 100 + str(number): number for number in range(80)}
    with file.open("w") as out:
        out.writelines(json.dumps({"iteration": step, "a": step}) + "\n" for step in range(MOST_POINTS + 5))
        out.write(json.dumps({f"{number}": 1 for number in range(80)} | names) + "\n")
        out.write("x" * 600_000)
    tail = MetricsTail(file)
    points = tail.new_points()
    assert len(points) == MOST_POINTS
    assert len(points[-1]["values"]) == MOST_METRICS
    RunMetrics.model_validate({"run_id": "r", "points": points})
    for _ in range(3):
        assert tail.new_points() == []
    with file.open("a") as out:
        out.write('\n{"step": 1, "a": 2}\n')
    assert [point["values"] for point in tail.new_points()] == [{"a": 2.0}]


def test_the_built_in_trainer_tells_its_return() -> None:
    """The mean over its workers, once there is one; the evaluation's beside it."""
    record = {"iteration": 3, "returns": {"0": 20.0, "1": None, "2": 30.0}, "env_steps_per_s": 900.0}
    record |= {"lag": {"mean": 0.5, "max": 2}, "learning_s": 0.1, "waited_s": {"0": 0.2, "1": 0.4}}
    record["missed_updates"] = {"1": 7}
    assert shown(record)["return"] == 25.0
    assert (shown(record)["step"], shown(record)["lag"], shown(record)["waited s"]) == (3, 2, 0.4)
    assert shown(record)["pairs left out"] == 1
    assert "return" not in shown(record | {"returns": {"0": None}})
    assert shown(record | {"evaluations": [{"return": 7.0}, {"return": 42.0}]})["evaluation return"] == 42.0
