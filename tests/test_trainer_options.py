"""What users ask of the trainer: file, command line, and what is said about mistakes. Without Ray or torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from telling import Words

from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.options import SECTIONS, configuration, parse, sections_of
from edgelink.training.trainer.setting import open_fields


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    """Key by key; and the file may be the one that has the cluster."""
    file = tmp_path / "train.yaml"
    file.write_text(
        "cluster: {num_nodes: 3}\nactor: {of: a framework}\nrun: {iterations: 7, seed: 3}\nalgorithm: {clip: 0.1}\n"
        "robot: {options: {a: '01', b: '2'}}\n"
    )
    options = parse(
        [
            "--config",
            str(file),
            "run.iterations=9",
            "robot.options.b=c=d",
            "env.kinds=robot, sim",
            "algorithm.discount=1",
        ]
    )
    config = options.config
    assert (config.run.iterations, config.run.seed, config.run.eval_episodes) == (9, 3, 16)
    assert config.env.kinds == ("robot", "sim")
    assert config.robot.options == {"a": "01", "b": "c=d"}
    assert config.algorithm == {"clip": 0.1, "discount": 1.0}


@pytest.mark.parametrize("text", ["044322070234", "0x68", "1.10", "on", "1e3", "2025-13-01", "a: b", "[a", '"a"'])
def test_a_text_on_the_command_line_stays_as_it_was_typed(text: str) -> None:
    """What YAML takes for a number, a truth or a mapping is a serial number, a version or a name of the user's."""
    config = configuration({}, [f"robot.options.x={text}", f"env.task={text}", f"robot.type={text}"])
    assert config.robot.options == {"x": text}
    assert config.env.task == config.robot.type == text


@pytest.mark.parametrize("text", ["", "null", "~"])
def test_an_option_of_a_robot_may_be_empty(text: str) -> None:
    """Its code is told what was typed, not Python's None."""
    assert configuration({}, [f"robot.options.x={text}"]).robot.options == {"x": text}


def test_what_is_no_text_on_the_command_line_is_yaml() -> None:
    """So are the keyword arguments of a task, which may be of any type."""
    options = ["env.options.id=0x68", "env.options.name='0x68'", "robot.options={serial: '0123'}"]
    config = configuration({}, [*options, "env.options.dt=1e-3", "env.options.g=[-.5E+1, 2.e0]", "env.options.e='1e3'"])
    assert config.env.options == {"id": 104, "name": "0x68", "dt": 0.001, "g": [-5.0, 2.0], "e": "1e3"}
    assert config.robot.options == {"serial": "0123"}


def test_digits_are_no_octals_and_no_times(tmp_path: Path) -> None:
    """YAML 1.1 takes 0123 for 83, and an address of digits alone for a number to the base of sixty."""
    file = tmp_path / "train.yaml"
    file.write_text(
        "run: {seed: 010, eval_every: 0x10}\n"
        "env: {options: {serial: 0123, mac: 12:34:56:12:34:56, at: 1:30.5, zero: 0, pi: 3.14, big: 1_000, half: .5}}\n"
        "robot: {options: {serial: 0123, port: 12:34}}\n"
    )
    config = configuration(sections_of(file))
    assert (config.run.seed, config.run.eval_every) == (10, 16)
    assert config.env.options == {
        "serial": "0123",
        "mac": "12:34:56:12:34:56",
        "at": "1:30.5",
        "zero": 0,
        "pi": 3.14,
        "big": 1000,
        "half": 0.5,
    }
    assert config.robot.options == {"serial": "0123", "port": "12:34"}
    with pytest.raises(TrainerError, match=r"algorithm\.learning_rate: must be a number, not '0:30'"):
        configuration({}, ["algorithm.learning_rate=0:30"])


@pytest.mark.parametrize("seed", [9007199254740993, 2**63 - 1])
def test_a_whole_number_is_that_number(seed: int) -> None:
    """Also one that no float has: another seed is another training."""
    assert configuration({"run": {"seed": seed}}).run.seed == seed
    assert configuration({"run": {"seed": str(seed)}}).run.seed == seed
    assert configuration({}, [f"run.seed={seed}"]).run.seed == seed
    assert configuration({}, ["run.iterations=1e3"]).run.iterations == 1000


def test_who_stops_a_run_is_told_how_it_goes_on(tmp_path: Path) -> None:
    """Without checkpoints there is nothing to go on from."""
    assert "--resume auto" in parse(["--checkpoint-dir", str(tmp_path)]).how_to_go_on
    assert "saved nothing" in parse([]).how_to_go_on


def test_settings_may_follow_an_option_whose_value_may_be_left_out(tmp_path: Path) -> None:
    """As `--resume` is."""
    options = parse(["--checkpoint-dir", str(tmp_path), "--resume", "run.seed=4"])
    assert (options.resume, options.config.run.seed) == ("always", 4)


@pytest.mark.parametrize(
    ("content", "overrides", "named"),
    [
        ({"run": {"iteration": 3}}, [], ["run.iteration:"]),
        ({"run": {"iterations": 0}}, [], ["run.iterations:"]),
        ({"run": {"iterations": 2.5}}, [], ["run.iterations:"]),
        ({"run": {"iterations": True}}, [], ["run.iterations:"]),
        ({"run": {"seed": "x"}}, ["run.seed=-1"], ["run.seed:"]),
        ({"run": 3}, [], ["run:"]),
        ({"algorithm": {"discount": 1.01}}, [], ["algorithm.discount:"]),
        ({"algorithm": {"learning_rate": "nan"}}, [], ["algorithm.learning_rate:"]),
        ({"deadman": {"link_timeout_s": "inf"}}, [], ["deadman.link_timeout_s:"]),
        ({}, ["control.watchdog_s=-inf"], ["control.watchdog_s:"]),
        ({"algorithm": {"seed": 1}}, [], ["algorithm.seed:"]),  # the run's to give
        ({}, ["env.kinds=sim,toy"], ["env.kinds:", "'toy'"]),
        ({"env": {"kinds": []}}, [], ["env.kinds:"]),
        ({}, ["env.kinds=[]"], ["env.kinds:"]),
        ({}, ["run.seed=9223372036854775808"], ["run.seed:", "9223372036854775807"]),
        ({}, ["run.seed=" + "9" * 5000], ["run.seed:"]),
        ({}, ["run.seed=0x" + "f" * 5000], ["run.seed:"]),
        ({}, ["run.eval_every=" + "[" * 2000], ["run.eval_every:"]),
        ({}, ["env.options={id: 1, id: 2}"], ["env.options:"]),
        ({}, ["agent.x=1"], ["agent.x:"]),
        ({}, ["iterations=5"], ["'iterations=5'"]),
        ({"robot": {"options": [1]}}, [], ["robot.options:"]),
        (
            {"robot": {"options": {"serial": 83, "mode": True, "port": "x"}}},  # written as 0x53 and on
            [],
            ["robot.options.serial:", "robot.options.mode:"],
        ),
        ({"robot": {"options": {True: "x"}}}, [], ["robot.options.True:"]),
        ({}, ["robot.options={serial: 123}"], ["robot.options.serial:"]),
        ({"control": {"record": 20251101}}, [], ["control.record:"]),
        ({}, ["env.task=", "control.record=null"], ["env.task:", "control.record:"]),
        ({"control": {"tick": 1}}, [], ["control.tick:"]),
        ({}, ["control.robot=x"], ["control.robot:"]),  # the run's to give
        ({"control": {"stop_hook": "beep twice"}}, [], ["stop_hook"]),
        ({}, ["control.record=recordings"], ["control.record"]),
        ({"control": {"directory": "~/events"}}, [], ["control.directory", "'~/events'"]),
        ({}, ["deadman.resume=maybe"], ["deadman.resume:", "'maybe'"]),
        ({}, ["flow.frame_stack=4"], ["flow.frame_stack:"]),
        ({}, ["flow.max_policy_lag=-1", "flow.chunk_kib=1"], ["flow.max_policy_lag", "flow.chunk_kib"]),
        ({"run": {"seed": -1}, "env": {"per_worker": 0}}, ["run.x=1"], ["run.seed", "env.per_worker", "run.x"]),  # all
    ],
)
def test_mistakes_are_named_all_at_once(
    content: dict[str, Any], overrides: list[str], named: list[str], words: Words
) -> None:
    """Each with its place, and what would be right."""
    with pytest.raises(TrainerError) as caught:
        configuration(content, overrides)
    assert caught.value.exit_status == 2
    for name in named:
        assert name in str(caught.value)
    words(re.sub(r"(.)\1{99,}", r"\1…", str(caught.value)))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("- 1\n", []),
        ("run: {\n", []),
        ("run: {seed: 1}\nrun: {seeed: 2}\n", ["run", "line 2"]),
        ("cluster: {}\nenv:\n  task: a\n  task: b\n", ["task", "line 4"]),
        ("run: " + "[" * 2000, []),
        ("run: {seed: !!bool maybe}\n", []),
        ("run: {seed: 0x" + "f" * 5000 + "}\n", []),
        ("robot: {options: {serial: 2025-13-01}}\n", []),
        ("trainer: {}\n", ["trainer"]),
        ("cluster: {}\nalgoritm: {}\n", ["algoritm"]),  # beside a cluster only what looks like ours
    ],
    ids=range(10),
)
def test_a_file_that_is_not_right_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, named: list[str], words: Words
) -> None:
    """With status 2, before anything starts."""
    file = tmp_path / "train.yaml"
    file.write_text(text)
    with pytest.raises(SystemExit) as caught:
        parse(["--config", str(file)])
    assert caught.value.code == 2
    said = capsys.readouterr().err.partition("error: ")[2].splitlines()[0]
    for name in (str(file), *named):
        assert name in said
    words(said.partition("read: ")[0], FILE=file)  # what follows may be the library's


def test_a_file_that_is_not_there_is_named_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it was looked for, and without the system's number for it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        parse(["--config", "none.yaml"])
    assert caught.value.code == 2
    assert f"the configuration {tmp_path}/none.yaml cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--resume"], ["--iterations"], ["--policy", "/nowhere.npz"]])
def test_wrong_options_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2 and the name of what is wrong."""
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


def test_every_setting_is_in_the_help_and_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Both are made of the fields themselves."""
    with pytest.raises(SystemExit):
        parse(["--help"])
    help_text = capsys.readouterr().out
    page = Path(__file__).parent.parent / "docs" / "reference" / "training.md"
    for name, kind in SECTIONS.items():
        for key in open_fields(kind):
            assert f"  {key} " in help_text
            assert f"`{name}.{key}`" in page.read_text()
