"""A whole run with workers that are played."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from played_crew import LosingCrew, PlayedRunCrew, first, slots_of, whole_run

from edgelink.training.trainer.crew import Crew
from edgelink.training.trainer.crew_checks import Patience, StallError, WorkerFailedError, WorkerLostError
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.link_budget.links import Link, Measured
from edgelink.training.trainer.robot.hindrance import Hindrance
from edgelink.training.trainer.slots import Slot


def test_a_robot_gives_its_share_whatever_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the rigs that it has: one, where simulators are sixteen."""
    crew = PlayedRunCrew([1, 1])
    whole_run(monkeypatch, tmp_path, crew, "env.kinds=robot,sim")
    assert crew.steps == {0: 64, 1: 12}


def test_workers_that_die_after_the_last_update_cost_only_their_figures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next pair evaluates; with nobody left the report is there all the same."""
    one_dead = whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1], kills={8: 0}), "env.kinds=sim,robot")
    assert (one_dead["return_after"], one_dead["evaluated_on"], one_dead["iterations"]) == (2.0, "robot:1", 8)
    assert one_dead["events"][-1]["worker"] == "env:0"
    crew = PlayedRunCrew([1, 1], kills={7: 0, 8: 1}, away={0, 1})
    none_left = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim,sim")
    assert (none_left["return_after"], none_left["iterations"]) == (None, 8)


def test_workers_that_are_being_made_when_the_training_is_done_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor asked: the others evaluate and tell their figures."""
    monkeypatch.setattr("edgelink.training.trainer.making._FIRST_PAUSE_S", 0.0)

    class Making(PlayedRunCrew):
        gone: ClassVar[set[int]] = set()
        asked_in_vain: ClassVar[set[Any]] = set()

        def has(self, slot: Slot) -> bool:
            return slot.process_rank not in self.gone or slot.component == "actor"

        def drop(self, index: int) -> None:
            self.gone.add(index)

        def call(self, slot: Slot, method: str, *arguments: Any, **more: Any) -> Any:
            answer = super().call(slot, method, *arguments, **more)
            if slot.process_rank in self.remade and slot.component != "actor":
                self.asked_in_vain.add(answer)
            return answer

        def remake(self, index: int, kind: str) -> dict[Any, Slot] | None:
            self.gone.discard(index)
            return super().remake(index, kind)

        def wait(self, answer: Any, purpose: str, within_s: float | None = None) -> Any:
            if answer in self.asked_in_vain:
                raise TrainerError("no answer for 900 s", exit_status=75)
            return super().wait(answer, purpose, within_s)

    crew = Making([1, 1], kills={3: 0}, remake_looks=[10**9])
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim")
    assert crew.remade == [0]
    assert (report["return_after"], report["evaluated_on"]) == (2.0, "sim:1")


def test_a_node_that_is_silent_when_the_training_is_done_costs_no_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its figures are waited for once, and not for as long as an outage is ridden through."""
    waited: list[float] = []

    class Silent(LosingCrew):
        def wait(self, answer: Any, purpose: str, within_s: float | None = None) -> Any:
            if self._of[answer] == 1 and len(self.learned) == 8:
                assert within_s is not None, "the training is done"
                waited.append(within_s)
                raise StallError("no answer")
            return super().wait(answer, purpose, within_s)

    report = whole_run(monkeypatch, tmp_path, Silent([1, 1]), "env.kinds=sim")
    assert report["iterations"] == 8
    assert report["return_after"] is not None
    assert len(waited) == 1
    assert sum(waited) < 100


def test_workers_that_are_made_anew_count_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What those before them made and got is in the sums; they themselves begin at 0."""
    monkeypatch.setattr("edgelink.training.trainer.making._FIRST_PAUSE_S", 0.0)
    crew = PlayedRunCrew([1, 1], kills={8: 1})
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim", "run.iterations=30")
    (rollout,) = [worker for worker in report["workers"] if worker["component"] == "rollout"]
    of_the_first = rollout["samples_produced"] - 9  # which is what the others say in the end
    assert of_the_first >= 8 * 64
    assert of_the_first % 64 == 0
    assert report["bytes"]["weights_by_node"]["2"] > 500


def test_the_last_version_is_evaluated_in_the_records_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the update that made it; it is a record an update all the same."""
    progress = tmp_path / "progress"
    whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), "env.kinds=sim", "--progress", str(progress))
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, 9))
    assert [one["version"] for record in records for one in record.get("evaluations", ())] == [8]


def test_an_edge_that_came_later_is_one_for_a_driver_that_is_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only who was there when the run began and is not in the placement was left out on purpose."""
    kept = ["env.kinds=sim", "--checkpoint-dir", str(tmp_path / "c")]
    monkeypatch.setenv("EDGELINK_RUN_ID", "today")
    crew = PlayedRunCrew([1, 1])
    crew.left_out = {"10.0.0.50"}  # type: ignore[misc]
    whole_run(monkeypatch, tmp_path, crew, *kept)
    monkeypatch.setenv("EDGELINK_ATTEMPT", "2")
    crew = PlayedRunCrew([1, 1])
    crew.left_out = {"10.0.0.50", "10.0.0.60"}  # type: ignore[misc]
    whole_run(monkeypatch, tmp_path, crew, *kept, "run.iterations=16")
    assert crew.left_out == {"10.0.0.50"}


@pytest.mark.parametrize(("least", "is_told"), [(-4.0, True), (-7.0, False)])
def test_a_policy_that_becomes_wider_by_a_resume_is_told_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], least: float, is_told: bool
) -> None:
    """A robot moves by it."""
    kept = ["env.kinds=sim", "--checkpoint-dir", str(tmp_path / "c")]
    crew = PlayedRunCrew([1, 1])
    real = crew.start

    def start(*arguments: Any) -> Any:
        started = real(*arguments)
        crew.figures["state"] = {"w": np.zeros(2), "net/policy/log_std": np.asarray([-1.0, -6.5])}
        return started

    crew.start = start  # type: ignore[method-assign]
    whole_run(monkeypatch, tmp_path, crew, *kept)
    settings = ["run.iterations=9", f"algorithm.least_log_std={least}", "--resume=always"]
    whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), *kept, *settings)
    said = "".join(capsys.readouterr())
    assert "resumed after iteration 8" in said
    assert ("was -6.5, and algorithm.least_log_std is -4" in said) == is_told


def test_a_budget_that_does_not_do_is_told_before_anything_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A robot plays no episode with the untrained policy for a training that is refused."""
    ways = [Link(source, target, 100.0, 0.01) for source, target in ((0, 1), (1, 0), (0, 2), (2, 0))]
    links = Measured({link.way: link for link in ways}, {0: "cloud", 1: "edge-1", 2: "edge-2"})
    (tmp_path / "links.json").write_text(json.dumps(links.to_dict()))
    monkeypatch.setenv("EDGELINK_LINKS", str(tmp_path / "links.json"))
    crew = PlayedRunCrew([1, 1])
    with pytest.raises(TrainerError, match="1,000 env steps/s") as refused:
        whole_run(monkeypatch, tmp_path, crew, "env.kinds=robot", "flow.wanted_env_steps_per_s=1000")
    assert refused.value.exit_status == 75
    assert crew.asked_for == []
    assert crew.steps == {}


def test_a_task_that_fails_in_its_first_evaluation_ends_the_run_with_its_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other pair evaluates; where there is none, what the task raised is what the run says."""

    class Failing(LosingCrew):
        def wait_while(self, answer: Any, purpose: str, steps: Any, within_s: float | None = None) -> Any:
            env = slots_of(9).envs[self._of[answer]]
            raise WorkerFailedError(env, TrainerError(f"{env} failed: no such joint", "its log"))

    with pytest.raises(TrainerError, match=r"env:1 .* failed: no such joint"):
        whole_run(monkeypatch, tmp_path, Failing([1, 1]), "env.kinds=sim")


@pytest.mark.parametrize("silent", [{0}, {0, 1}])
def test_an_edge_that_is_silent_when_the_training_is_done_costs_its_own_workers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, silent: set[int]
) -> None:
    """After the stall timeout another one evaluates; with nobody left what was trained is there all the same."""

    class Silent(LosingCrew):
        def wait_while(self, answer: Any, purpose: str, steps: Any, within_s: float | None = None) -> Any:
            if len(self.learned) == 8 and self._of[answer] in silent:
                Patience(print, stall_timeout_s=-1.0).check(purpose, [slots_of(2).rollouts[self._of[answer]]])
            return self.value(answer)

    report = whole_run(monkeypatch, tmp_path, Silent([1, 1]), "env.kinds=sim")
    assert report["return_after"] == (2.0 if silent == {0} else None)
    assert [(event["what"], event["worker"]) for event in report["events"]] == [("lost", f"env:{i}") for i in silent]
    assert "waiting for the evaluation: rollout:0" in report["events"][0]["why"]


def test_attempts_that_were_broken_off_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside those that count. And a robot is asked for one attempt after the other, each of which takes its time."""
    crew = PlayedRunCrew([1, 1], broken_off=3)
    settings = "env.kinds=robot", "run.eval_episodes=5"
    assert whole_run(monkeypatch, tmp_path, crew, *settings)["return_after"] == 2.0
    told = capsys.readouterr()
    assert "(95 %), 5 episodes; 15 broken off" in told.out + told.err
    assert set(crew.asked_for) == {1}


@pytest.mark.parametrize(
    ("hindrances", "evaluator", "is_said"),
    [
        ([Hindrance("env-0 is stopped", needs_person=True), Hindrance()], 1, False),
        ([Hindrance("env-0 is stopped", needs_person=True), Hindrance("env-1 has not begun")], 1, True),
        ([Hindrance("env-0 has not begun"), None], 0, True),
        ([None, Hindrance()], 1, False),
        ([Hindrance(), Hindrance()], 0, False),
    ],
)
def test_a_robot_that_may_move_is_the_one_that_evaluates(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    hindrances: list[Hindrance | None],
    evaluator: int,
    is_said: bool,
) -> None:
    """As each says when it is asked; None: it does not answer. Where none may, it is said who is waited for."""

    class Robots(PlayedRunCrew):
        def call(self, slot: Slot, method: str, *arguments: Any, **more: Any) -> Any:
            if method == "hindrance":
                found = hindrances[slot.process_rank]
                return self._answer(found, 10**9 if found is None else 1, slot.process_rank)
            return super().call(slot, method, *arguments, **more)

    crew = Robots([1, 1])
    monkeypatch.setattr(time, "monotonic", crew.clock)
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=robot")
    assert report["evaluated_on"] == f"robot:{evaluator}"
    told = capsys.readouterr()
    why = f" for env:{evaluator}: {getattr(hindrances[evaluator], 'words', '')}"
    said = [line for line in (told.out + told.err).splitlines() if line.startswith("no robot") and line.endswith(why)]
    assert len(said) == is_said, "after the training: before it, no robot moves for a figure"


@pytest.mark.parametrize(("given", "kept"), [((), [4, 5, 6, 7, 8]), (("run.keep_checkpoints=0",), list(range(1, 9)))])
def test_only_the_newest_checkpoints_of_a_run_are_kept_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], kept: list[int]
) -> None:
    """Of a policy in pixels one is 20 MB, and a training writes thousands."""
    directory = tmp_path / "c"
    settings = ("env.kinds=sim", "run.checkpoint_every=1", "--checkpoint-dir", str(directory), *given)
    whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), *settings)
    assert sorted(int(path.name.split("-")[1]) for path in directory.iterdir()) == kept


@pytest.mark.parametrize(
    ("kinds", "policy", "log_std", "evaluations"),
    [("robot", False, -2.0, 1), ("robot", True, -2.0, 2), ("sim,robot", False, -2.0, 2), ("sim", False, None, 2)],
)
def test_no_robot_is_moved_by_an_untrained_policy_for_a_figure(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kinds: str,
    policy: bool,
    log_std: float | None,
    evaluations: int,
) -> None:
    """And where one takes part, the policy begins narrow. With another training's policy, robots evaluate it, too."""

    class Beginning(PlayedRunCrew):
        settings: Any = None

        def start(self, *arguments: Any) -> dict[Slot, Any]:
            found = super().start(*arguments)
            self.settings, self.figures["begin_with"] = arguments[0], first()
            return found

    given = [f"env.kinds={kinds}", "run.eval_episodes=1"]
    if policy:
        whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), *given, "--checkpoint-dir", str(tmp_path / "c"))
        (file,) = (tmp_path / "c").glob("*8-*.npz")
        given += ["--policy", str(file)]
    capsys.readouterr()
    crew = Beginning([1, 1])
    report = whole_run(monkeypatch, tmp_path, crew, *given)
    assert crew.settings.initial_log_std == log_std
    assert len(crew.asked_for) == evaluations
    assert (report["return_before"] is None) == (evaluations == 1)
    said = "".join(capsys.readouterr())
    assert ("only robots" in said) == (evaluations == 1)
    assert (given[-1] in said) == policy, "whose policy it begins with"
    assert ("to begin with: " in said) == policy


def test_an_untrained_policy_is_not_handed_on_to_a_robot_where_its_simulator_dies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The evaluation is left out instead."""

    class Dying(LosingCrew):
        def call(self, slot: Slot, method: str, *arguments: Any, **more: Any) -> Any:
            if method == "evaluate" and slot.process_rank == 0:
                raise WorkerLostError(slot, OSError("the node died"))
            return super().call(slot, method, *arguments, **more)

    crew = Dying([1, 1])
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim,robot", "run.eval_episodes=1")
    assert report["return_before"] is None
    assert report["return_after"] == 2.0
    assert report["evaluated_on"] == "robot:1"


def test_two_newcomers_are_told_of_in_whatever_order_they_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their kinds are known when the first of them is learned from."""
    crew = PlayedRunCrew([1, 1], new_nodes=[(7, "10.0.0.97", "a"), (8, "10.0.0.98", "b")], remake_looks=[9, 0])
    report = whole_run(monkeypatch, tmp_path, crew, "env.kinds=sim", "run.iterations=30", "elastic.grow=true")
    assert [event["worker"] for event in report["events"]] == ["env:3", "env:2"]
    assert {3, 4} <= {len(update) for update in crew.learned}


def test_only_nodes_that_were_not_there_at_the_start_are_newcomers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A node that the placement leaves out on purpose gets no worker."""

    def node(rank: int, *, is_alive: bool = True) -> dict[str, Any]:
        labels = {"edgelink.rank": str(rank)}
        return {"Alive": is_alive, "NodeManagerAddress": f"10.0.0.{rank + 1}", "Labels": labels}

    nodes = [node(0), node(1), node(5), node(6, is_alive=False)]
    played = SimpleNamespace(init=lambda **_: None, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", played)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    crew = Crew(slots_of(1), [tmp_path], print, 1.0)
    crew.connect()
    assert crew.newcomers() == []
    nodes[3:] = [node(6), node(7)]
    assert [rank for rank, _, _ in crew.newcomers()] == [6, 7]
    nodes[3:] = [node(6), node(6)]  # Ray was started again there, and has not given up the one before
    assert [rank for rank, _, _ in crew.newcomers()] == [6]
