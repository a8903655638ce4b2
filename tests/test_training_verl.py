"""What a command of verl asks of Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgelink.training.command_words import command_words
from edgelink.training.verl import asked, with_cpus

MAIN = "python3 -m verl.trainer.main_ppo"
SCRIPT = """set -x
NNODES=2
python3 examples/data_preprocess/gsm8k.py --local_dir data
# python3 -m verl.trainer.main_ppo trainer.nnodes=9
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=gae trainer.n_gpus_per_node=4 \\
    'trainer.nnodes=2' "$@"
"""


def sizes(words: list[str]) -> list[tuple[int, int]]:
    return [(demand.groups, demand.devices) for demand in asked(words).demands]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (f"{MAIN} trainer.nnodes=2 trainer.n_gpus_per_node=4", [(2, 4)]),
        (f"{MAIN} +trainer.nnodes=2 ++trainer.n_gpus_per_node=4", [(2, 4)]),
        (f"{MAIN} trainer.nnodes=3", [(3, 8)]),
        (MAIN, [(1, 8)]),
        (f"{MAIN} trainer.nnodes=1 trainer.nnodes=2", [(2, 8)]),
        (f"{MAIN} --config-name=mine trainer.nnodes=2 trainer.n_gpus_per_node=2", [(2, 2)]),
        (f"{MAIN} --config-name mine", []),
        ("python train.py trainer.nnodes=2 trainer.n_gpus_per_node=2", [(2, 2)]),
        ("python train.py", []),
        (
            f"{MAIN} trainer.nnodes=2 reward.reward_model.enable_resource_pool=True "
            "reward.reward_model.nnodes=1 reward.reward_model.n_gpus_per_node=4",
            [(2, 8), (1, 4)],
        ),
        (f"{MAIN} trainer.nnodes=2 reward.reward_model.nnodes=1 reward.reward_model.n_gpus_per_node=4", [(2, 8)]),
        (f"{MAIN} distillation.enabled=True distillation.nnodes=1 distillation.n_gpus_per_node=4", [(1, 8), (1, 4)]),
        (f"{MAIN} distillation.nnodes=1 distillation.n_gpus_per_node=4", [(1, 8)]),
        (
            "python3 -m verl.experimental.one_step_off_policy.main_ppo trainer.nnodes=1 trainer.n_gpus_per_node=4 "
            "rollout.nnodes=2 rollout.n_gpus_per_node=4",
            [(1, 4), (2, 4)],
        ),
        (
            f"{MAIN} trainer.v1.trainer_mode=separate_async actor_rollout_ref.rollout.nnodes=1 "
            "actor_rollout_ref.rollout.n_gpus_per_node=4",
            [(1, 8), (1, 4)],
        ),
        (f"{MAIN} trainer.nnodes=2 trainer.n_gpus_per_node=2 $ARGS 2>&1 | tee $LOG", [(2, 2)]),
        (f"{MAIN} | tee $LOG", [(1, 8)]),
    ],
)
def test_pools_are_what_the_overrides_say(command: str, expected: list[tuple[int, int]]) -> None:
    """As Hydra reads them; the trainer's own defaults where no other configuration is named."""
    assert sizes(command.split()) == expected


@pytest.mark.parametrize(
    ("command", "unclear"),
    [
        (f"{MAIN} trainer.nnodes=$NNODES", ("trainer.nnodes",)),
        (f"{MAIN} trainer.nnodes=1,2", ("trainer.nnodes",)),
        (f"{MAIN} --config-name=mine trainer.nnodes=2", ("trainer.n_gpus_per_node",)),
        (f"{MAIN} ${{TRAINER[@]}}", ("trainer.nnodes", "trainer.n_gpus_per_node")),
        (f"{MAIN} trainer.nnodes=2 $ARGS", ("trainer.n_gpus_per_node",)),
        ("python3 -m verl.experimental.fully_async_policy.main $ARGS", ("trainer.nnodes", "trainer.n_gpus_per_node")),
    ],
)
def test_what_is_not_written_as_a_number_is_said(command: str, unclear: tuple[str, ...]) -> None:
    """Guessing would refuse what works."""
    assert (asked(command.split()).demands, asked(command.split()).unclear) == ((), unclear)


def test_the_last_word_of_a_script_is_that_of_its_caller(tmp_path: Path) -> None:
    """`"$@"` is what follows the script; what is commented out is not run, and a script that comes before is none."""
    (tmp_path / "run.sh").write_text(SCRIPT)
    for argv, expected in ((["bash", "run.sh"], [(2, 4)]), (["bash", "run.sh", "trainer.nnodes=3"], [(3, 4)])):
        assert sizes(command_words(argv, tmp_path, ("verl",))) == expected


def test_commands_of_a_shell_are_read(tmp_path: Path) -> None:
    """So is what `ray job submit` is given; a script that cannot be read asks for nothing that is known."""
    inner = f"cd /opt; ray job submit -- {MAIN} trainer.nnodes=2"
    assert sizes(command_words(["bash", "-lc", inner], tmp_path, ("verl",))) == [(2, 8)]
    assert sizes(command_words(["bash", "missing.sh", "trainer.nnodes=2"], tmp_path, ("verl",))) == []


def test_each_device_comes_with_cpus() -> None:
    """As verl's bundles do."""
    pool = asked(f"{MAIN} trainer.nnodes=2".split()).demands
    assert [(demand.groups, demand.devices, demand.cpus) for demand in with_cpus(pool)] == [(2, 8, 3.0)]
