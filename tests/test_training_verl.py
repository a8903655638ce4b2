"""What a command of verl asks of Ray."""

from __future__ import annotations

import pytest

from edgelink.training.verl import asked

MAIN = "python3 -m verl.trainer.main_ppo"


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
    ],
)
def test_pools_are_what_the_overrides_say(command: str, expected: list[tuple[int, int]]) -> None:
    """As Hydra reads them; the trainer's own defaults where no other configuration is named."""
    assert sizes(command.split()) == expected


@pytest.mark.parametrize(
    ("command", "unclear"),
    [
        (f"{MAIN} trainer.nnodes=${{oc.env:NNODES}}", "trainer.nnodes"),
        (f"{MAIN} trainer.nnodes=1,2", "trainer.nnodes"),
        (f"{MAIN} --config-name=mine trainer.nnodes=2", "trainer.n_gpus_per_node"),
        ("python3 -m verl.experimental.fully_async_policy.main rollout.nnodes=1", "rollout.n_gpus_per_node"),
    ],
)
def test_what_is_not_written_as_a_number_is_said(command: str, unclear: str) -> None:
    """Guessing would refuse what works."""
    assert (asked(command.split()).demands, asked(command.split()).unclear) == ((), unclear)
