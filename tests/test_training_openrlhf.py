"""What a command of OpenRLHF asks of Ray."""

from __future__ import annotations

import pytest
from telling import refuses

from edgelink.errors import ConfigError
from edgelink.training.openrlhf import asked, too_old

PPO = "python3 -m openrlhf.cli.train_ppo_ray"
ACTOR = "--actor.num_nodes 2 --actor.num_gpus_per_node 4"
REF = "--ref.num_nodes 2 --ref.num_gpus_per_node 4"


def bundles(command: str) -> dict[str, int]:
    return {demand.what.partition(" (")[0]: demand.groups for demand in asked(command.split()).demands}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"actor": 8, "ref": 8, "critic": 8, "reward": 8}),
        (f"{ACTOR} {REF} --train.colocate_actor_ref", {"actor, ref": 8, "critic": 8, "reward": 8}),
        (
            "--critic_num_nodes=2 --reward.num_nodes=2 --train.colocate_critic_reward",
            {"critic, reward": 16, "actor": 8, "ref": 8},
        ),
        ("--colocate_all_models --colocate_critic_reward", {"actor, ref": 8, "critic, reward": 8}),
        ("--colocate_all_models --reward_num_gpus_per_node 2", {"actor, ref, critic, reward": 8}),
        ("--train.colocate_all --vllm.num_engines 4 --vllm.tensor_parallel_size 2", {"actor, ref, critic, reward": 8}),
        (
            "--train.colocate_all --train.async_enable --vllm.num_engines 4",
            {"actor, ref, critic, reward": 8, "vLLM": 4},
        ),
        (
            "--vllm_num_engines 2 --vllm_tensor_parallel_size 4 --colocate_actor_ref",
            {"actor, ref": 8, "critic": 8, "reward": 8, "vLLM": 8},
        ),
        ("--algo.kl.init_coef 0 --advantage_estimator rloo --remote_rm_url http://rm", {"actor": 8}),
        ("--init_kl_coef=0 --algo.advantage.estimator rloo --train.agent_func_path a.py", {"actor": 8}),
        ("--advantage_estimator rloo --colocate_critic_reward", {"actor": 8, "ref": 8, "reward": 8}),
    ],
)
def test_placement_groups_are_what_the_options_say(options: str, expected: dict[str, int]) -> None:
    """In the words of both ages of its command line; each bundle is one GPU and one CPU anywhere."""
    assert bundles(f"{PPO} {options}") == expected
    assert {(demand.devices, demand.cpus) for demand in asked(f"{PPO} {options}".split()).demands} == {(1, 1.0)}


@pytest.mark.parametrize("starter", ["ray job submit --address=http://127.0.0.1:8265 --", "uv run --", "env A=b"])
def test_what_starts_it_takes_no_option_away(starter: str) -> None:
    """Behind a lone `--`, argparse would read no option. OpenRLHF's guide has people submit jobs so."""
    options = f"{ACTOR} {REF} --train.colocate_all"
    for program in (PPO, "python3 train_ppo.py --policy openrlhf.mine"):
        assert bundles(f"{starter} {program} {options}") == bundles(f"{program} {options}") != {}


def test_of_other_programs_only_what_is_written_counts() -> None:
    """Their defaults are their own."""
    assert bundles("python launch.py") == {}
    assert bundles(f"python launch.py {ACTOR}") == {"actor": 8}
    assert bundles(f"python launch.py {ACTOR} {REF} --train.colocate_actor_ref") == {"actor, ref": 8}
    assert bundles("deepspeed --module openrlhf.cli.train_sft --x 1") == {}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("--colocate_all_models --vllm_num_engines 2 --vllm_tensor_parallel_size 2", ["engines", "is 4", "8 GPUs"]),
        (f"{ACTOR} --ref.num_nodes 3 --train.colocate_actor_ref", ["3 × 8", "ref", "2 × 4 GPUs of actor"]),
        (f"{ACTOR} --ref.num_nodes 1 --train.colocate_actor_ref", ["1 × 8", "ref", "2 × 4 GPUs of actor"]),
        ("--colocate_all_models --critic.num_nodes 2", ["2 × 8", "critic", "1 × 8 GPUs of actor"]),
    ],
)
def test_what_contradicts_itself_is_refused(options: str, named: list[str]) -> None:
    """OpenRLHF says so only once it has its placement group."""
    with refuses(ConfigError, *named, reason="BundlesDisagree"):
        asked(f"{PPO} {options}".split())


def test_what_is_no_number_is_said() -> None:
    """Nothing is guessed then."""
    found = asked(f"{PPO} --actor.num_nodes two".split())
    assert found.demands == ()
    assert "actor.num_nodes" in found.unclear


@pytest.mark.parametrize(
    ("versions", "named"),
    [
        ({"ray": "2.47.1", "grpcio": "1.80.0"}, ["ray 2.47.1", "2.48"]),
        ({"ray": "2.55.0", "grpcio": "1.71.2"}, ["grpcio 1.71.2", "1.74"]),
        ({"ray": "2.48.0", "grpcio": "1.74.0rc1"}, []),
        ({"ray": "3.0"}, []),
    ],
)
def test_versions_are_compared_as_numbers(versions: dict[str, str], named: list[str]) -> None:
    """1.9 is less than 1.74; what is not there is not old."""
    problem = too_old(versions)
    assert (problem is not None) == bool(named)
    assert all(part in str(problem) for part in named)
    assert too_old({"ray": "2.60.0", "grpcio": "1.9.0"}) is not None
