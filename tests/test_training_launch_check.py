"""verl's and OpenRLHF's wishes against what Ray has free; the interpreter that asks Ray is played."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from telling import refuses

from edgelink.errors import ConfigError, DeadlineError
from edgelink.training import launch_check
from edgelink.training.framework import OPENRLHF, PLAIN, VERL, Framework
from edgelink.training.launch_check import check_launch, check_started
from edgelink.training.resources import NodeResources

MAIN = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=4 trainer.nnodes="
PPO = "python3 -m openrlhf.cli.train_ppo_ray --init_kl_coef 0 --advantage_estimator rloo --remote_rm_url x "


def ray(cloud: float, edge: float) -> list[NodeResources]:
    """Four GPUs a node, of which so many are free."""
    return [
        NodeResources(name, {"GPU": 4.0, "CPU": 64.0}, {"GPU": free, "CPU": 64.0})
        for name, free in (("cloud", cloud), ("edge-1", edge))
    ]


class Driver:
    """Ray gives one answer after the other, the last one for ever; ``python`` is the driver's interpreter."""

    def __init__(self, directory: Path) -> None:
        self.python = directory / "python3"
        self.said: list[str] = []
        self.answers: list[list[NodeResources]] = []
        self.asked = 0
        self.has(ray="2.60.0", grpcio="1.80.0")

    def has(self, **versions: str) -> None:
        """Packages of the driver's interpreter, which prints something of its own as well."""
        answer = json.dumps({name: {"version": version, "at": ""} for name, version in versions.items()})
        self.python.write_text(f"#!/bin/sh\necho what a .pth file prints\necho '{answer}'\n")
        self.python.chmod(0o755)

    def nodes(self) -> list[NodeResources]:
        self.asked += 1
        if not self.answers:
            raise LookupError("no such method")
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def check(self, framework: Framework, command: str, *, compares: bool = True) -> None:
        environment = {"RAY_ADDRESS": "10.10.0.2:6379", "PATH": "/usr/bin:/bin"}
        words, program = command.split(), str(self.python)
        check_launch(framework, words, program, environment, self.nodes, self.said.append, compares=compares)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_what_fits_is_started_without_a_word(driver: Driver) -> None:
    """Of both frameworks."""
    driver.answers = [ray(4, 4)]
    driver.check(VERL, MAIN + "2")
    driver.check(OPENRLHF, PPO + "--actor.num_nodes 2 --actor.num_gpus_per_node 4")
    assert driver.said == []


def test_more_than_there_is_is_refused_by_name(driver: Driver) -> None:
    """At once: it does not get better by waiting."""
    driver.answers = [ray(4, 4)]
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
    driver.answers = [ray(4, 4)]
    driver.check(VERL, MAIN + "3", compares=False)
    driver.check(OPENRLHF, contradiction, compares=False)
    assert driver.said == []
    driver.has(ray="2.60.0", grpcio="1.60.0")
    with refuses(ConfigError, reason="PackageTooOld"):
        driver.check(OPENRLHF, contradiction, compares=False)


def test_what_a_former_driver_still_holds_is_waited_for(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers are ended some seconds after it."""
    monkeypatch.setattr(launch_check, "_LOOK_S", 0.0)
    driver.answers = [ray(0, 4), ray(2, 4), ray(4, 4)]
    driver.check(VERL, MAIN + "2")
    assert driver.asked == 3
    assert len(driver.said) == 1, "the wait is told once"
    assert "cloud 0 of 4 GPUs free" in driver.said[0]


def test_what_others_hold_is_another_error(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trying again may help: exit status 75."""
    monkeypatch.setattr(launch_check, "_FREED_S", 0.0)
    driver.answers = [ray(4, 1)]
    with refuses(DeadlineError, "openrlhf", "actor", "edge-1 1 of 4 GPUs free", reason="ResourcesTaken"):
        driver.check(OPENRLHF, PPO)


def test_old_packages_of_the_drivers_interpreter_are_refused(driver: Driver) -> None:
    """Also where nothing is asked for; one that is not there is not old."""
    driver.has(ray="2.60.0", grpcio="1.60.0")
    driver.answers = [ray(4, 4)]
    with refuses(ConfigError, "grpcio 1.60.0", "1.74", reason="PackageTooOld"):
        driver.check(OPENRLHF, "python3 launch.py")
    driver.check(VERL, MAIN + "2")


def test_without_an_answer_the_driver_is_started(driver: Driver) -> None:
    """A check that cannot be made does not stop a run; it says so."""
    driver.check(VERL, MAIN + "9")
    (said,) = driver.said
    assert "no such method" in said


@pytest.mark.parametrize(("is_reported", "words"), [(True, "its program starts"), (False, "not compared")])
def test_what_the_shell_decides_is_said(driver: Driver, is_reported: bool, words: str) -> None:
    """Ray is not asked; the program reports its words once it starts, where it can."""
    for argv in (["bash", "-c", MAIN + "$NNODES"], ["sh", "-ec", "exit"]):
        check_launch(
            VERL,
            argv,
            argv[0],
            {"RAY_ADDRESS": "10.10.0.2:6379"},
            driver.nodes,
            driver.said.append,
            is_reported=is_reported,
        )
    assert all(words in said for said in driver.said)
    assert len(driver.said) == 2
    driver.check(PLAIN, MAIN + "9")
    assert driver.asked == 0


def started(driver: Driver, package: str, command: str) -> None:
    environment = {"RAY_ADDRESS": "10.10.0.2:6379"}
    python = str(driver.python)
    check_started(package, command.split(), python, environment, driver.nodes, driver.said.append, compared=())


@pytest.mark.parametrize("program", [MAIN + "3", PPO + "--actor.num_nodes 9"])
def test_a_submitted_job_is_judged_by_its_words(driver: Driver, program: str) -> None:
    """`ray job submit` imports no framework; what it submits does, where nobody of ours hears it."""
    driver.answers = [ray(4, 4)]
    with refuses(ConfigError, reason="ResourcesMissing"):
        started(driver, "ray", f"ray job submit --address http://127.0.0.1:8265 -- {program}")
    started(driver, "ray", "ray status")
    assert driver.said == []


@pytest.mark.parametrize("module", ["verl.trainer.sft_trainer", "verl.model_merger"])
def test_a_program_without_ray_asks_for_nothing(driver: Driver, module: str) -> None:
    """It has the names of the trainer's settings, too."""
    driver.answers = [ray(4, 4)]
    started(driver, "verl", f"python3 -m {module} trainer.nnodes=9 trainer.n_gpus_per_node=8")
    assert driver.asked == 0
