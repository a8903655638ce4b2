"""The learning parts of the built-in trainer, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgelink.training.trainer import checkpoint
from edgelink.training.trainer.experience.balance import steps_per_worker
from edgelink.training.trainer.experience.fragment import Fragment
from edgelink.training.trainer.experience.simulator import Simulator
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.learning.advantage import advantages
from edgelink.training.trainer.learning.policy import logits, sample

# torch says this on import where it was built against another numpy; it is not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def column(*values: float) -> Any:
    return np.asarray(values, dtype=np.float32)[:, None]


def flags(*values: int) -> Any:
    return np.asarray(values, dtype=np.bool_)[:, None]


def test_advantage_of_one_episode_is_the_textbook_sum() -> None:
    """Discounted temporal-difference errors, weighted by the trace."""
    gains = advantages(
        column(1, 1), column(0.5, 0.25), column(0.25, 2), flags(0, 0), flags(0, 0), discount=0.5, trace=0.5
    )

    last = 1 + 0.5 * 2 - 0.25
    assert gains[:, 0] == pytest.approx([1 + 0.5 * 0.25 - 0.5 + 0.25 * last, last])


def test_nothing_follows_a_failure_and_nothing_leaks_over_an_end() -> None:
    """A terminated step ignores what comes next; a truncated one keeps its value but not later rewards."""
    failed = advantages(column(1, 9), column(0, 0), column(5, 5), flags(1, 0), flags(0, 0), discount=1, trace=1)
    cut = advantages(column(1, 9), column(0, 0), column(5, 5), flags(0, 0), flags(1, 0), discount=1, trace=1)

    assert failed[0, 0] == 1
    assert cut[0, 0] == 1 + 5


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["sim", "robot"], [192, 64]),
        (["robot", "sim"], [64, 192]),
        (["sim", "sim"], [64, 64]),
        (["robot", "robot"], [64, 64]),
        (["sim", "robot", "sim"], [96, 64, 96]),
        (["sim", "robot", "sim", "robot"], [64, 64, 64, 64]),
    ],
)
def test_every_worker_gives_its_share(kinds: list[str], expected: list[int]) -> None:
    """A simulator never drowns a robot: each worker gives a quarter, or its even share."""
    steps = steps_per_worker(kinds, [8] * len(kinds), 64)

    assert steps == expected
    assert min(steps) / sum(steps) >= min(0.25, 1 / len(kinds))


def test_numpy_inference_agrees_with_torch() -> None:
    """The edges act by exactly the policy that the learner learns."""
    import torch

    from edgelink.training.trainer.learning.learner import Learner, Settings

    learner = Learner(Settings(seed=3, total_iterations=1))
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)

    with torch.no_grad():
        expected = learner._policy(torch.from_numpy(observations)).numpy()

    assert logits(learner.latest().weights, observations) == pytest.approx(expected, abs=1e-5)


def test_sampling_follows_the_policy() -> None:
    """Frequencies match the probabilities, and the log probabilities belong to the actions."""
    weights = [np.zeros((2, 4), np.float32), np.log(np.asarray([1, 3], np.float32))]

    actions, log_probs = sample(weights, np.zeros((4000, 4), np.float32), np.random.default_rng(0))

    assert actions.mean() == pytest.approx(0.75, abs=0.03)
    assert np.exp(log_probs[actions == 1]) == pytest.approx(0.75)


def bandit(weights: Any, generator: np.random.Generator, ticket: int) -> Fragment:
    """A trivial task: action 1 pays, every step is an episode."""
    observations = generator.normal(size=(32, 8, 4)).astype(np.float32)
    drawn = [sample(weights, row, generator) for row in observations]
    actions = np.stack([actions for actions, _ in drawn])
    nothing = np.zeros((32, 8), dtype=np.bool_)
    return Fragment(
        rank=0,
        ticket=ticket,
        weights_version=ticket,
        observations=observations,
        actions=actions,
        log_probs=np.stack([log_probs for _, log_probs in drawn]),
        rewards=actions.astype(np.float32),
        terminated=~nothing,
        truncated=nothing,
        cut_observations=np.zeros((0, 4), dtype=np.float32),
        last_observations=observations[-1],
    )


def test_learning_improves_a_trivial_task_quickly() -> None:
    """Ten updates make a coin-tossing policy choose what pays."""
    from edgelink.training.trainer.learning.learner import Learner, Settings

    learner = Learner(Settings(seed=0, total_iterations=10))
    generator = np.random.default_rng(0)
    first = bandit(learner.latest().weights, generator, 0)
    for iteration in range(1, 11):
        learner.update(iteration, bandit(learner.latest().weights, generator, iteration))

    assert 0.4 < first.rewards.mean() < 0.6
    assert bandit(learner.latest().weights, generator, 11).rewards.mean() > 0.9


def test_a_repeated_update_is_not_learned_twice() -> None:
    """A call that Ray repeats after a blip changes nothing."""
    from edgelink.training.trainer.learning.learner import Learner, Settings

    learner = Learner(Settings(seed=0, total_iterations=10))
    fragment = bandit(learner.latest().weights, np.random.default_rng(0), 0)

    assert learner.update(1, fragment) is learner.update(1, fragment)


def test_a_checkpoint_brings_back_the_learner(tmp_path: Path) -> None:
    """Weights and optimiser: the next update is the same as without the interruption."""
    from edgelink.training.trainer.learning.learner import Learner, Settings

    settings = Settings(seed=0, total_iterations=4)
    original, resumed = Learner(settings), Learner(settings)
    fragment = bandit(original.latest().weights, np.random.default_rng(0), 0)
    original.update(1, fragment)
    about = checkpoint.About(iteration=1, seed=0, return_before=21.5)

    checkpoint.save(tmp_path, checkpoint.About(0, 0, 21.5), resumed.state())
    checkpoint.save(tmp_path, about, original.state())
    found, arrays = checkpoint.load_latest(tmp_path)
    resumed.load_state(arrays)
    original._generator = np.random.default_rng([0, 1])  # a resumed run draws its own minibatches

    assert found == about
    for expected, actual in zip(original.update(2, fragment).weights, resumed.update(2, fragment).weights, strict=True):
        assert actual == pytest.approx(expected)


def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    """A machine that died while it wrote costs one interval, not the run; with nothing readable it is an error."""
    with pytest.raises(TrainerError, match="no checkpoint in"):
        checkpoint.load_latest(tmp_path)
    for number, content in ((3, b"PK half a file"), (4, b"")):
        (tmp_path / f"checkpoint-{number:06d}.npz").write_bytes(content)
    with pytest.raises(TrainerError, match="no checkpoint that can be read"):
        checkpoint.load_latest(tmp_path)
    checkpoint.save(tmp_path, checkpoint.About(2, 0, 9.0), {"iteration": np.asarray(2)})
    skipped: list[str] = []
    found, _ = checkpoint.load_latest(tmp_path, on_skip=skipped.append)
    assert found.iteration == 2
    assert ["000004" in skipped[0], "000003" in skipped[1]] == [True, True]


def test_another_runs_checkpoints_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """The directory may hold those of yesterday's run, with higher numbers."""
    checkpoint.save(tmp_path, checkpoint.About(20, 0, 9.0, run="yesterday"), {})
    checkpoint.save(tmp_path, checkpoint.About(5, 0, 9.0, run="today"), {})
    assert checkpoint.load_latest(tmp_path, run="today")[0].iteration == 5
    assert checkpoint.load_latest(tmp_path)[0].iteration == 20
    with pytest.raises(TrainerError, match="no checkpoint in"):
        checkpoint.load_latest(tmp_path, run="tomorrow")


def test_the_simulator_starts_ended_episodes_anew_within_the_step() -> None:
    """Always pushing right fails soon: the failure is marked, and its last observation kept."""
    simulator = Simulator(3, seed=0)
    simulator.reset()
    steps = [simulator.step(np.ones(3, dtype=np.int64)) for _ in range(15)]
    simulator.close()

    step, which = next((step, int(np.argmax(step.terminated))) for step in steps if step.terminated.any())
    assert abs(step.final_observations[which, 2]) > 0.2
    assert abs(step.observations[which, 2]) < 0.06
    assert not step.truncated.any()


def test_a_simulator_is_seeded() -> None:
    """The same seed begins the same episodes, another one others."""
    first, again, other = (Simulator(2, seed) for seed in (1, 1, 2))

    assert (first.reset() == again.reset()).all()
    assert (first.reset() != other.reset()).any()
