"""What is written down of each update."""

from __future__ import annotations

import errno
import json
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from played_crew import PlayedCrew, PlayedRunCrew, first, training, whole_run

from edgelink.training.trainer.metrics import Metrics
from edgelink.training.trainer.report import Account
from edgelink.training.trainer.training import Learned
from edgelink.training.trainer.whereabouts import Traffic


@pytest.mark.filterwarnings("ignore")
def test_steps_go_on_after_a_resume(tmp_path: Path) -> None:
    """In the records, and TensorBoard is told from where its curves are anew; rates are of this part."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    account = Account(0, ["sim", "sim"], first_iteration=6, env_steps_before=1000)
    progress = tmp_path / "progress"
    metrics = Metrics(account, 8, progress, tmp_path / "board", lambda: Traffic(0, 0), print)

    def on_update(learned: Learned) -> None:
        for about in learned.abouts:
            account.learned[about.rank] = account.learned.get(about.rank, 0) + about.samples
            account.sent_bytes["observations"] = account.sent_bytes.get("observations", 0) + 8
        metrics.update(learned, 2)

    loop, _ = training(PlayedCrew([1, 1]), 3, on_update=on_update)
    loop.run(first())
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["env_steps"] for record in records] == [1020, 1040, 1060]
    assert records[-1]["bytes_per_env_step"] == {"observations": 0.8}
    assert account.to_dict()["env_steps"] == 1060
    file = next((tmp_path / "board").iterdir())
    events = list(EventFileLoader(str(file)).Load())
    assert [event.step for event in events if event.HasField("session_log")] == [6]
    curves = [
        (event.step, value.tensor.float_val[0])
        for event in events
        for value in event.summary.value
        if value.tag == "env_steps"
    ]
    assert curves == [(iteration, record["env_steps"]) for iteration, record in enumerate(records, 1)]


@pytest.mark.parametrize(("attempt", "begins_anew"), [("1", []), ("2", [1])])
def test_curves_of_a_run_that_is_started_again_without_a_checkpoint_begin_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attempt: str, begins_anew: list[int]
) -> None:
    """TensorBoard shows what was lost no more. Another run in the same directory hides nothing of the one before."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    monkeypatch.setenv("EDGELINK_ATTEMPT", attempt)
    whole_run(monkeypatch, tmp_path, PlayedRunCrew([1, 1]), "env.kinds=sim", "--tensorboard", str(tmp_path / "board"))
    file = next((tmp_path / "board").iterdir())
    events = list(EventFileLoader(str(file)).Load())
    assert [event.step for event in events if event.HasField("session_log")] == begins_anew


def test_a_full_disk_does_not_end_a_training(tmp_path: Path) -> None:
    """It is said once, and the training goes on."""
    progress, said = tmp_path / "progress", list[str]()
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 3, progress, None, lambda: Traffic(0, 0), said.append)
    progress.mkdir()  # no file any more that can be written to
    loop, _ = training(PlayedCrew([1, 1]), 3, on_update=lambda learned: metrics.update(learned, 2))
    assert loop.run(first()).version == 3
    progress.rmdir()
    assert len(said) == 1
    assert str(progress) in said[0]


@pytest.mark.filterwarnings("ignore")
def test_an_output_that_cannot_be_written_costs_no_other(tmp_path: Path) -> None:
    """The records' disk is full; those who watch, and the curves, are on others."""
    progress, live, said = tmp_path / "progress", tmp_path / "live", list[str]()
    account = Account(0, ["sim"], learned={0: 1})
    progress.mkdir()
    metrics = Metrics(account, 3, progress, tmp_path / "board", lambda: Traffic(0, 0), said.append, live)
    loop, _ = training(PlayedCrew([1]), 3, on_update=lambda learned: metrics.update(learned, 1))
    loop.run(first())
    metrics.close()
    assert [json.loads(line)["step"] for line in live.read_text().splitlines()] == [1, 2, 3]
    assert next((tmp_path / "board").iterdir()).stat().st_size > 1000
    assert len(said) == 1


def test_a_disk_that_takes_no_curves_when_a_training_begins_does_not_end_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TensorBoard's writer begins its file at once."""

    def writer(_directory: str) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("edgelink.training.trainer.metrics.tensorboard_for", lambda _directory: (None, None, writer))
    progress, said = tmp_path / "progress", list[str]()
    account = Account(0, ["sim"], learned={0: 1})
    metrics = Metrics(account, 3, progress, tmp_path / "board", lambda: Traffic(0, 0), said.append)
    loop, _ = training(PlayedCrew([1]), 3, on_update=lambda learned: metrics.update(learned, 1))
    loop.run(first())
    metrics.close()
    assert len(progress.read_text().splitlines()) == 3
    assert [line for line in said if "--tensorboard" in line and "No space left" in line] == said
    assert len(said) == 1


def test_half_a_record_spoils_no_other(tmp_path: Path) -> None:
    """The disk takes part of one, and later ones whole."""
    progress, said = tmp_path / "progress", list[str]()
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 9, progress, None, lambda: Traffic(0, 0), said.append)
    allowed = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_update(learned: Learned) -> None:
        if learned.iteration == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (progress.stat().st_size + 40, allowed[1]))
        try:
            metrics.update(learned, 1)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, allowed)

    loop, _ = training(PlayedCrew([1]), 3, on_update=on_update)
    loop.run(first())
    metrics.close()
    assert [json.loads(line)["iteration"] for line in progress.read_text().splitlines()] == [1, 3]
    assert len(said) == 1


def test_each_update_is_written_down(tmp_path: Path) -> None:
    """As a JSON line, for TensorBoard, and for people with what is left to do."""
    account = Account(0, ["sim", "sim"])
    progress = tmp_path / "progress"
    traffic = iter([Traffic(100, 50), *[Traffic(100 + n, 50) for n in (10, 20, 30)]])
    metrics = Metrics(account, 3, progress, tmp_path / "board", lambda: next(traffic), print)
    lines, last_learned = list[str](), list[Learned]()

    def on_update(learned: Learned) -> None:
        account.counts = loop.flow.counts
        for about in learned.abouts:
            account.learned[about.rank] = account.learned.get(about.rank, 0) + about.samples
            account.sent_bytes["observations"] = account.sent_bytes.get("observations", 0) + 8
        metrics.evaluated(learned.iteration, [3.0, 5.0])
        metrics.update(learned, 2)
        lines.append(metrics.line(learned, ["sim", "sim"], loop.flow.pairs))
        last_learned[:] = [learned]

    loop, _ = training(PlayedCrew([1, 1]), 3, on_update=on_update)
    loop.run(first())
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["iteration"] for record in records] == [1, 2, 3]
    last = records[-1]
    assert (last["env_steps"], last["samples"], last["live_pairs"]) == (60, {"0": 10, "1": 10}, 2)
    assert last["bytes_per_env_step"] == {"observations": 0.8}
    assert last["wan_bytes"] == {"received": 30, "sent": 0}
    assert (last["policy_loss"], last["evaluations"]) == (
        0.5,
        [{"version": 3, "return": 4.0, "margin": 12.706, "episodes": 2}],
    )
    assert last["lag"]["max"] <= 2
    assert lines[-1].startswith("iteration 3/3  0 s left  return sim:0")
    assert metrics.line(replace(last_learned[0], abouts=[]), ["sim", "robot"], (0, 1)).count(" –") == 2
    assert lines[-1].endswith("20 samples")
    assert [path.name.partition(".")[0] for path in (tmp_path / "board").iterdir()] == ["events"]


def test_no_evaluation_is_missing_in_the_records(tmp_path: Path) -> None:
    """Two fall between two updates, and one comes after the last update, before that of the last version."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    progress = tmp_path / "progress"
    account = Account(0, ["sim"], learned={0: 1})
    metrics = Metrics(account, 6, progress, tmp_path / "board", lambda: Traffic(0, 0), print)

    def on_update(learned: Learned) -> None:
        if learned.iteration == 4:
            metrics.evaluated(2, [1.0, 1.0])
            metrics.evaluated(3, [2.0, 2.0])
        metrics.update(learned, 1)

    loop, _ = training(PlayedCrew([1]), 6, on_update=on_update)
    loop.run(first())
    metrics.evaluated(5, [3.0, 3.0])
    metrics.evaluated(6, [4.0, 4.0])
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    told = {record["iteration"]: [one["version"] for one in record.get("evaluations", ())] for record in records}
    assert told == {1: [], 2: [], 3: [], 4: [2, 3], 5: [], 6: [5, 6]}
    file = next((tmp_path / "board").iterdir())
    curve = [
        (event.step, value.tensor.float_val[0])
        for event in EventFileLoader(str(file)).Load()
        for value in event.summary.value
        if value.tag == "evaluation/return"
    ]
    assert curve == [(2, 1.0), (3, 2.0), (5, 3.0), (6, 4.0)]


def test_an_evaluation_before_a_stop_is_not_missing_in_the_records(tmp_path: Path) -> None:
    """No update comes after it: the last one's record comes a second time, and of two of an iteration the last one
    counts."""
    progress = tmp_path / "progress"
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 9, progress, None, lambda: Traffic(0, 0), print)
    metrics.evaluated(0, [1.0, 1.0])
    loop, _ = training(PlayedCrew([1]), 1, on_update=lambda learned: metrics.update(learned, 1))
    loop.run(first())
    metrics.evaluated(1, [2.0, 2.0])
    metrics.close()
    records = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [record["iteration"] for record in records] == [1, 1]
    assert [one["version"] for one in records[-1]["evaluations"]] == [0, 1]


def test_small_figures_are_not_rounded_away(tmp_path: Path) -> None:
    """Rewards may be of any size, and a learning rate may be tiny."""
    progress = tmp_path / "progress"
    metrics = Metrics(Account(0, ["sim"], learned={0: 1}), 1, progress, None, lambda: Traffic(0, 0), print)
    lines = []

    def on_update(learned: Learned) -> None:
        (about,) = learned.abouts
        made = replace(learned.made, figures={"learning_rate": 2.5e-7})
        learned = replace(learned, made=made, abouts=[replace(about, episode_returns=(0.001, 0.003))])
        metrics.update(learned, 1)
        metrics.evaluated(1, [0.002, 0.006])
        lines.append(metrics.line(learned, ["sim"], [0]))

    loop, _ = training(PlayedCrew([1]), 1, on_update=on_update)
    loop.run(first())
    metrics.close()
    record = json.loads(progress.read_text())
    assert (record["learning_rate"], record["returns"]) == (2.5e-7, {"0": 0.002})
    (evaluation,) = record["evaluations"]
    assert (evaluation["return"], evaluation["margin"]) == (0.004, 0.025412)
    assert "return sim:0 0.002 " in lines[0]
