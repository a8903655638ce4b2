"""``edgelink doctor``: what is wrong comes first, fits a terminal, and can be asked for by name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from doctor_world import Machine
from telling import Words

from edgelink import __version__
from edgelink.api import schema
from edgelink.cli import doctor
from edgelink.doctor import CHECKS, TOPICS
from edgelink.doctor.check import name_of


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path)
    monkeypatch.setattr(doctor, "look_around", lambda _: machine.surroundings)
    return machine


def run(*arguments: str) -> Result:
    return CliRunner().invoke(doctor.command, arguments, standalone_mode=False)


def _in_trouble(machine: Machine) -> None:
    machine.daemon |= {"ready": False, "phase": "Degraded"}
    machine.condition("OverlayUp", "False", "DeviceDown")
    machine.environ["RAY_ADDRESS"] = "192.0.2.1:6379"
    machine.probes.refusing = {11010: "no answer"}


def _not_joined(machine: Machine) -> None:
    machine.daemons = []
    machine.probes.own = {}
    machine.paths.membership.unlink()


@pytest.mark.parametrize(
    ("role", "becomes", "code"),
    [
        ("edge", lambda _: None, 0),
        ("head", lambda _: None, 0),
        ("bootstrap", lambda _: None, 0),
        ("edge", _in_trouble, 1),
        ("edge", _not_joined, 1),
    ],
    ids=["edge", "head", "relay", "in_trouble", "not_joined"],
)
def test_a_whole_screen(
    role: str,
    becomes: Callable[[Machine], object],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: Words,
) -> None:
    monkeypatch.chdir(tmp_path)  # where it lies differs, and so would the ends of lines
    machine = Machine(Path(), role)
    becomes(machine)
    monkeypatch.setattr(doctor, "look_around", lambda _: machine.surroundings)
    monkeypatch.setenv("COLUMNS", "80")
    for options in ((), ("--verbose",)) if (role, code) == ("edge", 0) else ((),):
        result = run(*options)
        assert result.return_value == code
        assert all(len(line) <= 80 for line in result.stdout.splitlines())
        network = {"NETWORK": found.network_id} if (found := machine.surroundings.membership) else {}
        words.on(
            "doctor", f"$ {' '.join(['edgelink doctor', *options])}\n{result.stdout}", VERSION=__version__, **network
        )


def test_what_is_wrong_comes_first_and_fits_a_terminal(edge: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do; then a line for what is well of each topic; then the sums."""
    monkeypatch.setenv("COLUMNS", "80")
    assert run().return_value == 0
    edge.paths.node_key.chmod(0o644)
    edge.environ["RAY_ADDRESS"] = "192.0.2.1:6379"
    result = run()
    assert result.return_value == 1
    lines = result.stdout.splitlines()
    assert lines[0] == "what is wrong"
    assert lines[1].split()[:2] == ["✗", "secrets-private"]
    assert max(map(len, lines)) <= 80
    second = next(number for number, line in enumerate(lines) if line.startswith("! ray-environment"))
    topics = [line.split()[1] for line in lines if line.startswith("✓")]
    assert topics[0] == "node"
    assert second < next(number for number, line in enumerate(lines) if line.startswith("✓"))
    assert "what to do: unset RAY_ADDRESS" in result.stdout
    assert lines[-1].startswith("1 failed, 1 limited, ")


def test_a_machine_that_is_well_is_a_line_a_topic(edge: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with statements as far as they fit. In full there is a line for each check."""
    monkeypatch.setenv("COLUMNS", "80")
    rows = json.loads(run("--json").stdout)["checks"]
    well = {row["topic"] for row in rows if row["verdict"] == "ok"}
    *lines, _ = run().stdout.splitlines()
    assert [line.split()[1] for line in lines] == [topic for topic in TOPICS if topic in well]
    assert max(map(len, lines)) <= 80
    by_topic = {line.split()[1]: line for line in lines}
    told = [row for row in rows if row["message"] in by_topic.get(row["topic"], "")]
    assert {row["topic"] for row in told} == well
    full = run("--verbose").stdout
    assert all(row["check"] in full for row in rows)


def test_what_it_says_to_do_can_be_typed(edge: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files, however many, in one command."""
    secrets = [edge.paths.node_key, edge.paths.membership, *(edge.write(f"more/{n}.key", "x") for n in range(4))]
    monkeypatch.setattr("edgelink.doctor.state._secrets", lambda _: iter(secrets))
    for path in secrets:
        path.chmod(0o644)
    (row,) = json.loads(run("secrets-private", "--json").stdout)["checks"]
    subprocess.run(["sh", "-c", row["remedy"].partition(";")[0]], check=True)
    assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * len(secrets)


def test_what_others_have_written_commands_no_terminal(edge: Machine) -> None:
    """Any user of the machine may have stopped a robot, under a name and for a reason of their own."""
    latch = edge.write("robots/a b\x1b[2J.stopped", json.dumps({"time": "now", "cause": "\x1b]0;mine\x07"}))
    edge.probes.robots = [latch.parent]
    told = run("robot-stopped").stdout
    assert "mine" in told
    assert all(line.isprintable() for line in told.splitlines())


def test_what_was_skipped_is_shown_when_it_is_asked_for(edge: Machine) -> None:
    """With the reason."""
    (row,) = json.loads(run("mosquitto", "--json").stdout)["checks"]
    assert row["verdict"] == "skipped"
    assert row["message"] not in run().stdout
    for arguments in (["-v"], ["mosquitto"], ["overlay"]):
        assert row["message"] in run(*arguments).stdout


def test_checks_are_chosen_by_name_and_by_topic(edge: Machine) -> None:
    """What is not chosen is not asked; what is not there is named."""
    edge.paths.node_key.chmod(0o644)
    found = json.loads(run("tun", "robots", "--json").stdout)
    assert found["ok"] is True
    assert [(row["check"], row["topic"]) for row in found["checks"]] == [
        ("tun", "machine"),
        ("robot-answers", "robots"),
        ("robot-stopped", "robots"),
    ]
    refused = run("tunn")
    assert "no check tunn" in str(refused.exception)


def test_the_whole_answer_for_programs(edge: Machine) -> None:
    """Every check, each with the keys that the page names."""
    edge.environ["RAY_ADDRESS"] = "192.0.2.1:6379"
    result = run("--json")
    found = json.loads(result.stdout)
    schema.Doctor.model_validate(found)
    assert (result.return_value, found["ok"]) == (0, True)  # limited is not failed
    assert [row["check"] for row in found["checks"]] == [name_of(check) for check in CHECKS]
