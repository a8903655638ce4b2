"""verl's and OpenRLHF's wishes against what Ray has free; the interpreter that asks Ray is played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from telling import refuses

from edgelink.errors import ConfigError, DeadlineError
from edgelink.training import launch_check
from edgelink.training.framework import OPENRLHF, PLAIN, VERL, Framework
from edgelink.training.launch_check import check_launch

GRANTED = [{"hostname": "cloud", "overlay_ip": "10.10.0.2"}, {"hostname": "edge-1", "overlay_ip": "10.10.0.3"}]
MAIN = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=4 trainer.nnodes="
PPO = "python3 -m openrlhf.cli.train_ppo_ray --init_kl_coef 0 --advantage_estimator rloo --remote_rm_url x "


def ray(cloud: float, edge: float, *, grpcio: str | None = "1.80.0", cpus: float = 64) -> dict[str, Any]:
    """Four GPUs a node, of which so many are free."""
    nodes = [
        {"ip": ip, "total": {"GPU": 4.0, "CPU": cpus}, "free": {"GPU": free, "CPU": cpus}}
        for ip, free in (("10.10.0.2", cloud), ("10.10.0.3", edge))
    ]
    return {"versions": {"ray": "2.60.0", "grpcio": grpcio}, "nodes": nodes}


class Driver:
    """Its interpreter gives one answer after the other, the last one for ever."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.python = directory / "python3"
        self.said: list[str] = []

    def answers(self, *answers: dict[str, Any] | str) -> None:
        for number, answer in enumerate(answers):
            text = answer if isinstance(answer, str) else json.dumps(answer)
            (self.directory / f"answer-{number}").write_text(f"what a .pth file prints\n{text}\n")
        self.python.write_text(
            f'#!/bin/sh\ncd {self.directory}\nset -- answer-*\n[ "$#" -gt 1 ] && mv "$1" said-"$1"\n'
            '[ -e said-"$1" ] && exec cat said-"$1"\nexec cat "$1"\n'
        )
        self.python.chmod(0o755)

    @property
    def asked(self) -> int:
        return len(list(self.directory.glob("said-*")))

    def check(self, framework: Framework, command: str, *, compares: bool = True) -> None:
        environment = {"RAY_ADDRESS": "10.10.0.2:6379", "PATH": "/usr/bin:/bin"}
        words, program = command.split(), str(self.python)
        check_launch(framework, words, program, environment, GRANTED, self.said.append, compares=compares)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_what_fits_is_started_without_a_word(driver: Driver) -> None:
    """Of both frameworks."""
    driver.answers(ray(4, 4))
    driver.check(VERL, MAIN + "2")
    driver.check(OPENRLHF, PPO + "--actor.num_nodes 2 --actor.num_gpus_per_node 4")
    assert driver.said == []


def test_more_than_there_is_is_refused_by_name(driver: Driver) -> None:
    """At once: it does not get better by waiting."""
    driver.answers(ray(4, 4), "never asked")
    asked, room = (
        "trainer.nnodes=3 trainer.n_gpus_per_node=4",
        "2 of 3: cloud 4 of 4 GPUs free; edge-1 4 of 4 GPUs free",
    )
    with refuses(ConfigError, "verl", asked, room, reason="ResourcesMissing"):
        driver.check(VERL, MAIN + "3")
    assert driver.asked == 1


def test_what_rests_on_options_can_be_overridden(driver: Driver) -> None:
    """Programs change faster than what is known of them. A package that is too old stays too old."""
    contradiction = PPO + "--train.colocate_all --vllm.num_engines 3"
    with refuses(ConfigError, reason="BundlesDisagree"):
        driver.check(OPENRLHF, contradiction)
    driver.answers(ray(4, 4))
    driver.check(VERL, MAIN + "3", compares=False)
    driver.check(OPENRLHF, contradiction, compares=False)
    assert driver.said == []
    driver.answers(ray(4, 4, grpcio="1.60.0"))
    with refuses(ConfigError, reason="PackageTooOld"):
        driver.check(OPENRLHF, contradiction, compares=False)


def test_what_a_former_driver_still_holds_is_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers are ended some seconds after it."""
    monkeypatch.setattr(launch_check, "_LOOK_S", 0.0)
    driver.answers(ray(0, 4), ray(2, 4), ray(4, 4))
    driver.check(VERL, MAIN + "2")
    assert driver.asked == 2
    assert len(driver.said) == 1, "the wait is told once"
    assert "cloud 0 of 4 GPUs free" in driver.said[0]


def test_what_others_hold_is_another_error(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again may help: exit status 75."""
    monkeypatch.setattr(launch_check, "_FREED_S", 0.0)
    driver.answers(ray(4, 1))
    with refuses(DeadlineError, "openrlhf", "actor", "edge-1 1 of 4 GPUs free", reason="ResourcesTaken"):
        driver.check(OPENRLHF, PPO)


def test_old_packages_of_the_drivers_interpreter_are_refused(driver: Driver) -> None:
    """Also where nothing is asked for; one that is not there is not old."""
    driver.answers(ray(4, 4, grpcio="1.60.0"))
    with refuses(ConfigError, "grpcio 1.60.0", "1.74", reason="PackageTooOld"):
        driver.check(OPENRLHF, "python3 launch.py")
    driver.check(VERL, MAIN + "2")


@pytest.mark.parametrize(
    ("answer", "words"),
    [("no json", "Expecting value"), ({"versions": {}, "nodes": None, "error": "no such method"}, "no such method")],
)
def test_without_an_answer_the_driver_is_started(driver: Driver, answer: Any, words: str) -> None:
    """A check that cannot be made does not stop a run; it says so."""
    driver.answers(answer)
    driver.check(VERL, MAIN + "9")
    assert len(driver.said) == 1
    assert words in driver.said[0]


def test_verls_cpus_are_a_warning(driver: Driver) -> None:
    """How many differs between its versions."""
    driver.answers(ray(4, 4, cpus=4))
    driver.check(VERL, MAIN + "2")
    assert len(driver.said) == 1
    assert "cloud 4 of 4 GPUs free, 4 of 4 CPUs" in driver.said[0]


def test_what_the_shell_hides_is_said(driver: Driver) -> None:
    """And Ray is not asked."""
    driver.check(VERL, MAIN + "$NNODES")
    driver.check(PLAIN, MAIN + "9")
    (said,) = driver.said
    assert said.endswith(": trainer.nnodes")
