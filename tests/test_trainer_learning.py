"""The learning parts of the built-in trainer, without Ray."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from telling import Words

from edgelink.training.trainer import checkpoint
from edgelink.training.trainer.experience.balance import steps_per_worker
from edgelink.training.trainer.experience.environment import EVALUATION, SIMULATOR, TRAINING, EnvWorker
from edgelink.training.trainer.experience.fragment import Fragment
from edgelink.training.trainer.experience.simulator import Simulator, Task
from edgelink.training.trainer.experience.weights_codec import Patterns, decode, encode
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.learning.advantage import advantages
from edgelink.training.trainer.learning.evaluation import Estimate, estimate
from edgelink.training.trainer.learning.finite import NotFiniteError
from edgelink.training.trainer.learning.group import dealt
from edgelink.training.trainer.learning.learner import Learner
from edgelink.training.trainer.learning.objective import Objective
from edgelink.training.trainer.learning.policy import act, normalised, outputs
from edgelink.training.trainer.learning.settings import ROBOT_LOG_STD, Settings
from edgelink.training.trainer.learning.spaces import Spaces, spaces_of
from edgelink.training.trainer.learning.statistics import moments_of, normalisation
from edgelink.training.trainer.robot.interface import RobotSettings
from edgelink.training.trainer.seeds import derived

# torch says this on import where it was built against another numpy; it is not ours to mend.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.timeout(240),  # on a loaded machine torch alone takes half a minute to be there
    pytest.mark.torch,
]


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


LARGEST = float(np.finfo(np.float32).max)
SPACES = {
    "discrete": Spaces((4,), "float32", 2),
    "continuous": Spaces((3,), "float32", None, (-2.0, 0.0), (2.0, 1.0)),
    "odd limits": Spaces((3,), "float32", None, (1.0, -LARGEST, -2.0, 0.0), (1.0, LARGEST, 2.0, np.inf)),
    "small pixels": Spaces((8, 10, 2), "uint8", 3),
    "pixels": Spaces((36, 40, 1), "uint8", None, (-1.0,), (1.0,)),
}


def some_observations(spaces: Spaces, *count: int, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    if spaces.is_pixels:
        return generator.integers(0, 256, (*count, *spaces.observation_shape), dtype=np.uint8)
    return generator.normal(3.0, 2.0, (*count, *spaces.observation_shape)).astype(np.float32)


def learner_of(spaces: Spaces, **settings: Any) -> Any:
    return Learner(Settings(**{"seed": 3, "total_iterations": 10, **settings}), spaces)


@pytest.mark.parametrize("kind", SPACES)
def test_numpy_inference_agrees_with_torch(kind: str) -> None:
    """The edges act by exactly the policy that the learner learns, whatever is seen and done."""
    import torch

    spaces = SPACES[kind]
    learner = learner_of(spaces, normalise_observations=True)
    learner.update(1, bandit(spaces, learner.latest().weights, np.random.default_rng(0), 1, steps=4))
    weights = learner.latest().weights
    observations = some_observations(spaces, 5)

    actions, log_probs = act(spaces, weights, observations, np.random.default_rng(1))
    centre, reach = spaces.centre_and_reach()
    units = actions if spaces.is_discrete else (actions - centre) / reach
    with torch.no_grad():
        seen = observations if spaces.is_pixels else normalised(weights, observations)
        expected, _, log_std = learner._networks.forward(torch.from_numpy(seen))
        torch_log_probs, _ = learner._objective.log_probs(expected, log_std, torch.from_numpy(units))

    assert outputs(spaces, weights, observations) == pytest.approx(expected.numpy(), abs=1e-4)
    assert log_probs == pytest.approx(torch_log_probs.numpy(), abs=1e-4)


def test_sampling_follows_the_policy() -> None:
    """Frequencies match the probabilities, and the log probabilities belong to the actions."""
    weights = {
        "policy/head/weight": np.zeros((2, 4), np.float32),
        "policy/head/bias": np.log(np.asarray([1, 3], np.float32)),
    }
    nothing = np.zeros((4000, 4), np.float32)

    actions, log_probs = act(SPACES["discrete"], weights, nothing, np.random.default_rng(0))
    likeliest, _ = act(SPACES["discrete"], weights, nothing, np.random.default_rng(0), deterministic=True)

    assert actions.mean() == pytest.approx(0.75, abs=0.03)
    assert np.exp(log_probs[actions == 1]) == pytest.approx(0.75)
    assert likeliest.all()


def test_continuous_actions_are_drawn_around_the_mean_in_units_of_the_range() -> None:
    """What is drawn may be beyond the limits; the environment keeps to them."""
    spaces = SPACES["continuous"]
    weights = {
        "policy/head/weight": np.zeros((2, 3), np.float32),
        "policy/head/bias": np.asarray([0.5, 0.0], np.float32),
        "policy/log_std": np.log(np.asarray([0.5, 1.0], np.float32)),
    }

    actions, log_probs = act(spaces, weights, np.zeros((8000, 3), np.float32), np.random.default_rng(0))
    middle, _ = act(spaces, weights, np.zeros((1, 3), np.float32), np.random.default_rng(0), deterministic=True)

    assert middle.tolist() == [[1.0, 0.5]]
    assert actions.mean(axis=0) == pytest.approx([1.0, 0.5], abs=0.04)
    assert actions.std(axis=0) == pytest.approx([1.0, 0.5], rel=0.05)
    noise = (actions - [1.0, 0.5]) / [1.0, 0.5]
    assert log_probs == pytest.approx(-(0.5 * noise**2).sum(axis=1) - np.log(0.5) - np.log(2 * np.pi), abs=1e-4)
    assert (actions.max(axis=0) > spaces.action_high).all()


def test_limits_that_leave_one_action_or_are_none_give_numbers() -> None:
    """An action that cannot be chosen is drawn like others; the largest number of a type is no limit, as
    gymnasium's unbounded boxes have it: drawn as it is, and learned from."""
    spaces = SPACES["odd limits"]
    double = float(np.finfo(np.float64).max)
    assert spaces == Spaces((3,), "float32", None, (1.0, -double, -2.0, 0.0), (1.0, np.inf, 2.0, LARGEST))
    learner = learner_of(spaces, normalise_observations=True)
    weights = {**learner.latest().weights, "policy/head/weight": np.zeros((4, 64), np.float32)}
    observations = np.zeros((8000, 3), np.float32)
    with np.errstate(all="raise"):
        actions, log_probs = act(spaces, weights, observations, np.random.default_rng(0))
    assert np.isfinite(log_probs).all()
    assert actions.mean(axis=0) == pytest.approx([1.0, 0.0, 0.0, 0.0], abs=0.1)
    assert actions.std(axis=0) == pytest.approx([1.0, 1.0, 2.0, 1.0], rel=0.05)

    generator = np.random.default_rng(0)
    for iteration in (1, 2):
        update = learner.update(iteration, bandit(spaces, learner.latest().weights, generator, iteration))
        assert all(np.isfinite(array).all() for array in update.weights.values())
    assert update.importance == pytest.approx(1.0, abs=1e-3)
    assert Spaces.from_json(spaces.to_json()) == spaces


def bandit(
    spaces: Spaces, weights: Any, generator: np.random.Generator, ticket: int, *, steps: int = 32, rank: int = 0
) -> Fragment:
    """A trivial task: the last action, or the upper end of each range, pays; every step is an episode."""
    observations = some_observations(spaces, steps, 8, seed=int(generator.integers(1 << 30)))
    drawn = [act(spaces, weights, row, generator) for row in observations]
    actions = np.stack([actions for actions, _ in drawn])
    if spaces.is_discrete:
        pay = actions == spaces.outputs - 1
    else:
        centre, reach = spaces.centre_and_reach()
        pay = (((actions - centre) / reach + 1) / 2).clip(0, 1).mean(-1)
    nothing = np.zeros((steps, 8), dtype=np.bool_)
    return Fragment(
        rank=rank,
        ticket=ticket,
        weights_version=ticket,
        observations=observations,
        actions=actions,
        log_probs=np.stack([log_probs for _, log_probs in drawn]),
        rewards=pay.astype(np.float32),
        terminated=~nothing,
        truncated=nothing,
        cut_observations=observations[0][:0],
        last_observations=observations[-1],
    )


@pytest.mark.parametrize(("kind", "rate"), [("discrete", 2.5e-3), ("continuous", 1e-2), ("small pixels", 2e-3)])
def test_learning_improves_a_trivial_task_quickly(kind: str, rate: float) -> None:
    """Ten updates make an undecided policy choose what pays."""
    spaces = SPACES[kind]
    learner = learner_of(spaces, learning_rate=rate, minibatch=128, entropy_bonus=0.0)
    generator = np.random.default_rng(0)
    first = bandit(spaces, learner.latest().weights, generator, 0)
    for iteration in range(1, 11):
        learner.update(iteration, bandit(spaces, learner.latest().weights, generator, iteration))
    last = bandit(spaces, learner.latest().weights, generator, 11)

    assert 0.2 < first.rewards.mean() < 0.6
    assert last.rewards.mean() > 0.85


def test_a_repeated_update_is_not_learned_twice() -> None:
    """A call that Ray repeats after a blip changes nothing."""
    learner = learner_of(SPACES["discrete"])
    fragment = bandit(SPACES["discrete"], learner.latest().weights, np.random.default_rng(0), 0)

    assert learner.update(1, fragment) is learner.update(1, fragment)


@pytest.mark.parametrize(("kind", "before"), [("discrete", 21.5), ("continuous", None)])
def test_a_checkpoint_brings_back_the_learner(tmp_path: Path, kind: str, before: float | None) -> None:
    """Weights, optimiser, normalisation, random numbers: the next update is the same as without the interruption.

    And what the untrained policy got, also where nobody could play it.
    """
    spaces = SPACES[kind]
    original, resumed = learner_of(spaces), learner_of(spaces, seed=4)
    fragment = bandit(spaces, original.latest().weights, np.random.default_rng(0), 0)
    original.update(1, fragment)
    about = checkpoint.About(iteration=1, seed=0, return_before=before)

    checkpoint.save(tmp_path, checkpoint.About(0, 0, 21.5), resumed.state())
    checkpoint.save(tmp_path, about, original.state())
    found, arrays = checkpoint.load_latest(tmp_path)
    resumed.load_state(arrays)

    assert found == about
    expected, actual = original.update(2, fragment).weights, resumed.update(2, fragment).weights
    assert {name: array.tolist() for name, array in actual.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


def test_an_untrained_policy_for_a_robot_keeps_away_from_its_limits() -> None:
    """One for simulators, which begins as wide as half the range, is beyond them with a third of its numbers."""
    beyond, spaces = {}, SPACES["continuous"]
    low, high = np.asarray(spaces.action_low), np.asarray(spaces.action_high)
    for log_std in (None, ROBOT_LOG_STD):
        policy = learner_of(spaces, initial_log_std=log_std).latest().weights
        drawn, _ = act(spaces, policy, some_observations(spaces, 5000), np.random.default_rng(0))
        beyond[log_std] = ((drawn <= low) | (drawn >= high)).mean()
    assert beyond[None] > 0.25
    assert beyond[ROBOT_LOG_STD] == 0.0
    wide = learner_of(spaces, initial_log_std=-6.0).latest().weights["policy/log_std"]
    assert wide.min() == -4.0, "no narrower than least_log_std"


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_a_training_may_begin_with_another_ones_policy(kind: str) -> None:
    """Its networks and what they know of observations; the count, the rate and the optimiser are the new training's."""
    spaces = SPACES[kind]
    generator = np.random.default_rng(0)
    taught, new = learner_of(spaces), learner_of(spaces, seed=4)
    for iteration in range(1, 4):
        taught.update(iteration, bandit(spaces, taught.latest().weights, generator, iteration))
    begun = new.begin_with(taught.state())
    assert begun.version == 0
    assert begun.weights.keys() == taught.latest().weights.keys()
    for name, array in taught.latest().weights.items():
        assert begun.weights[name] == pytest.approx(array), name
    assert new.update(1, bandit(spaces, begun.weights, generator, 1)).version == 1
    with pytest.raises(TrainerError, match="or --policy"):
        learner_of(SPACES["small pixels"]).begin_with(taught.state())


def far_out(spaces: Spaces, learner: Learner) -> Fragment:
    """Of a wide policy of some versions ago, for one that has become narrow."""
    networks = learner._networks
    networks.load({**networks.arrays(), "policy/log_std": np.full(spaces.outputs, -7.0, np.float32)})
    wide = {**learner.latest().weights, "policy/log_std": np.zeros(spaces.outputs, np.float32)}
    return bandit(spaces, wide, np.random.default_rng(0), 0)


def test_one_sample_far_out_spoils_no_weight() -> None:
    """Its probability ratio is infinite, and its gradient nan: each weight would be after it. And no policy becomes so
    narrow that older experience says nothing of it."""
    spaces = SPACES["continuous"]
    learner = learner_of(spaces)
    found = learner.update(1, far_out(spaces, learner))
    assert all(np.isfinite(array).all() for array in found.weights.values())
    assert np.isfinite([found.policy_loss, found.value_loss, found.kl]).all()
    assert found.weights["policy/log_std"].min() >= -4.0
    lower = learner_of(spaces, least_log_std=-6.0)
    narrow = lower.update(1, far_out(spaces, lower)).weights["policy/log_std"].min()
    assert -6.0 <= narrow < -5.0


def test_a_gradient_that_is_no_number_is_not_stepped_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adam would never forget it; the other steps of the update are made."""
    spaces, real, calls = SPACES["continuous"], Objective.loss, []

    def loss(self: Objective, *arguments: Any) -> Any:
        calls.append(1)
        return real(self, *arguments) * (np.nan if len(calls) == 2 else 1.0)

    learner = learner_of(spaces, minibatch=32)
    before = learner.latest().weights
    monkeypatch.setattr(Objective, "loss", loss)
    after = learner.update(1, bandit(spaces, before, np.random.default_rng(0), 0)).weights
    assert len(calls) > 2
    assert all(np.isfinite(array).all() for array in after.values())
    assert any((after[name] != before[name]).any() for name in before)


def test_networks_that_have_diverged_are_given_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each worker would be blamed for what it does by them, and lost."""
    spaces = SPACES["continuous"]
    learner = learner_of(spaces)
    fragment = bandit(spaces, learner.latest().weights, np.random.default_rng(0), 0)

    def diverge(self: Any, _batch: Any) -> list[float]:
        self._networks.flat.data.fill_(np.nan)
        return [np.nan] * 5

    monkeypatch.setattr(Learner, "_improve", diverge)
    with pytest.raises(NotFiniteError, match=r"iteration 1.* nan"):
        learner.update(1, fragment)
    assert learner.latest().version == 0


@pytest.mark.parametrize(
    ("spaces", "hidden", "message"),
    [
        (Spaces((4,), "float32", 3), (64, 64), r"another task: .* 4 float32, 2 actions; this one has .* 3 actions"),
        (SPACES["discrete"], (32,), r"other networks: policy/layer0/weight is 64 x 4 there, 32 x 4 here"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(spaces: Spaces, hidden: tuple[int, ...], message: str) -> None:
    """By name, with what differs."""
    arrays = learner_of(SPACES["discrete"]).state()
    with pytest.raises(TrainerError, match=message):
        learner_of(spaces, hidden=hidden).load_state(arrays)


@pytest.mark.parametrize("name", ["observations", "rewards"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_checkpoint_that_is_normalised_otherwise_is_refused(name: str, is_there: bool) -> None:
    """By the setting's name, with what it was; nothing of it is taken."""
    spaces, key = SPACES["discrete"], f"normalise_{name}"
    there, here = learner_of(spaces, **{key: is_there}), learner_of(spaces, seed=4, **{key: not is_there})
    before = here.latest().weights
    with pytest.raises(TrainerError, match=f"set algorithm.{key}={str(is_there).lower()} as it was"):
        here.load_state(there.state())
    assert all((here._weights()[key] == array).all() for key, array in before.items())


def test_normalisation_survives_the_way_to_the_edges() -> None:
    """A mean far from 0 with a small deviation is still removed by the weights as they are sent."""
    moments = moments_of(np.random.default_rng(0).normal(1000.0, 0.1, (5000, 1)).astype(np.float32))
    sent = decode(encode(Patterns.of(normalisation(moments)))).weights()

    assert normalised(sent, np.asarray([[1000.0]], np.float32)) == pytest.approx(0.0, abs=0.06)
    assert normalised(sent, np.asarray([[1000.2]], np.float32)) == pytest.approx(2.0, abs=0.1)


def valued(spaces: Spaces, size: float, **settings: Any) -> Any:
    """A learner whose values are ``size`` times those that networks begin with."""
    learner = learner_of(spaces, **settings)
    state = learner.state()
    learner.load_state({**state, "net/value/head/weight": state["net/value/head/weight"] * np.float32(size)})
    return learner


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
def test_how_large_rewards_are_changes_nothing_where_they_are_normalised(kind: str) -> None:
    """Ten thousand times smaller ones, by a power of two, so that not even the rounding differs: the same weights."""
    spaces, updated = SPACES[kind], []
    for size in (1.0, 2.0**-14):
        learner = learner_of(spaces, normalise_rewards=True)
        fragment = bandit(spaces, learner.latest().weights, np.random.default_rng(0), 1)
        updated.append(learner.update(1, replace(fragment, rewards=fragment.rewards * np.float32(size))))
    expected, actual = updated
    assert all((actual.weights[key] == array).all() for key, array in expected.weights.items())
    assert actual.explained == expected.explained


@pytest.mark.parametrize("steps", [64, 16, 4])
def test_how_long_fragments_are_does_not_change_the_scale_of_rewards(steps: int) -> None:
    """The link shortens those of a slow edge: what its rewards are worth stays the same. An end begins a sum anew."""
    spaces = SPACES["continuous"]
    series = bandit(spaces, learner_of(spaces).latest().weights, np.random.default_rng(0), 1, steps=512)
    ended = np.random.default_rng(1).random(series.rewards.shape) < 0.01
    scales = []
    for length in (512, steps):
        learner = learner_of(spaces, normalise_rewards=True, epochs=1, minibatch=1 << 20)
        for index in range(512 // length):
            part = slice(index * length, (index + 1) * length)
            columns = ("observations", "actions", "log_probs", "rewards", "truncated")
            cut = {name: getattr(series, name)[part] for name in columns}
            learner.update(index + 1, replace(series, terminated=ended[part], **cut))
        scales.append(learner.state()["normalisation/rewards"])
    assert scales[1] == pytest.approx(scales[0], rel=1e-9)


@pytest.mark.parametrize("size", [1.0, 2.0**-14, 2.0**-40])
def test_advantages_are_normalised_whatever_their_size(size: float) -> None:
    """To a deviation of 1; and values that foretell small returns count as such."""
    spaces = SPACES["discrete"]
    learner = valued(spaces, 0.0, normalise_rewards=False)
    fragment = bandit(spaces, learner.latest().weights, np.random.default_rng(0), 1)
    small = replace(fragment, rewards=fragment.rewards * np.float32(size))
    found = learner._prepare([small])
    gains = found.table[:, -3].numpy()
    assert (gains.mean(), gains.std()) == (pytest.approx(0.0, abs=1e-5), pytest.approx(1.0, rel=1e-4))
    assert found.explained == pytest.approx(0.0, abs=1e-6)

    learner = valued(spaces, size, normalise_rewards=False)
    values = learner._prepare([fragment]).table[:, -1].numpy()
    foretold = replace(fragment, rewards=values.reshape(fragment.rewards.shape))
    assert learner._prepare([foretold]).explained == pytest.approx(1.0)


@pytest.mark.parametrize("reward", [0.0, 1.0, -1e-4, 1e-30, 1e6])
@pytest.mark.parametrize("is_normalised", [True, False])
def test_rewards_that_never_change_teach_nothing(reward: float, is_normalised: bool) -> None:
    """What float32 makes of no difference is not taken for one; and all that comes of it are numbers."""
    spaces = SPACES["discrete"]
    learner = valued(spaces, 0.0, normalise_rewards=is_normalised)
    fragment = bandit(spaces, learner.latest().weights, np.random.default_rng(0), 1)
    constant = replace(fragment, rewards=np.full_like(fragment.rewards, reward))
    learner._observe([constant])
    found = learner._prepare([constant])
    assert found.explained == 0
    assert not found.table[:, -3].any()
    untrained = learner_of(spaces, normalise_rewards=is_normalised)  # whose values differ from each other
    for iteration in (1, 2):
        update = untrained.update(iteration, constant)
        assert np.isfinite([update.policy_loss, update.value_loss, update.kl, update.explained]).all()
        assert all(np.isfinite(array).all() for array in update.weights.values())


def test_moments_merge_to_those_of_everything() -> None:
    """However what was seen is dealt out."""
    rows = np.random.default_rng(0).normal([5, -1], [2, 0.5], (1000, 2))
    merged = moments_of(rows[:10])
    for part in (rows[10:700], rows[700:700], rows[700:]):
        merged.merge_row(moments_of(part).row())

    assert merged.mean == pytest.approx(rows.mean(axis=0))
    assert merged.deviation == pytest.approx(rows.std(axis=0), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0),
        ("learning_rate", True),
        ("discount", 1.5),
        ("discount", float("nan")),
        ("epochs", 2.5),
        ("importance_limit", 0.5),
        ("schedule", "cosine"),
        ("normalise_rewards", 1),
        ("hidden", (64, 0)),
    ],
)
def test_a_setting_outside_its_limits_is_refused_by_name(name: str, value: Any, words: Words) -> None:
    """Before anything runs."""
    with pytest.raises(ValueError, match=rf"algorithm\.{name}: ") as caught:
        Settings(0, 1, **{name: value})
    words(caught.value)


def test_settings_are_completed_by_the_kind_of_task() -> None:
    """What the user says stays, all else gets a value."""
    settings = Settings(0, 1, epochs=3)
    assert settings.completed(SPACES["discrete"]).discount == 0.98
    assert settings.completed(SPACES["continuous"]).normalise_observations is True
    assert {settings.completed(spaces).epochs for spaces in SPACES.values()} == {3}
    for spaces in SPACES.values():
        assert None not in vars(settings.completed(spaces)).values()


def test_a_checkpoint_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    """A machine that died while it wrote costs one interval, not the run; with nothing readable it is an error."""
    with pytest.raises(TrainerError, match="no checkpoint in"):
        checkpoint.load_latest(tmp_path)
    for number, content in ((3, b"PK half a file"), (4, b"")):
        (tmp_path / f"checkpoint-{number:06d}.npz").write_bytes(content)
    with pytest.raises(TrainerError, match=r"000004\.npz"):
        checkpoint.load_latest(tmp_path)
    checkpoint.save(tmp_path, checkpoint.About(2, 0, 9.0), {"iteration": np.asarray(2)})
    for number in (3, 4):  # were begun later
        os.utime(tmp_path / f"checkpoint-{number:06d}.npz", (time.time() + number,) * 2)
    skipped: list[str] = []
    found, _ = checkpoint.load_latest(tmp_path, on_skip=skipped.append)
    assert found.iteration == 2
    assert ["000004" in skipped[0], "000003" in skipped[1]] == [True, True]


@pytest.mark.parametrize("name", ["observations", "rewards", "last_observations"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_experience_that_is_not_finite_is_refused(name: str, value: float) -> None:
    """By the worker's name, and before statistics and weights have it: what comes next is learned as ever."""
    spaces = SPACES["continuous"]
    learner, spared = (learner_of(spaces, normalise_observations=True, normalise_rewards=True) for _ in range(2))
    fragment = bandit(spaces, learner.latest().weights, np.random.default_rng(0), 1, steps=4, rank=7)
    array = getattr(fragment, name).copy()
    array.flat[-1] = value
    with pytest.raises(TrainerError, match=f"env:7 .*{name}.* nan"):
        learner.update(1, fragment, replace(fragment, **{name: array}))

    expected, actual = (one.update(1, fragment).weights for one in (spared, learner))
    assert all((actual[key] == array).all() for key, array in expected.items())


def test_a_checkpoint_that_is_not_finite_is_neither_written_nor_taken(tmp_path: Path) -> None:
    """Nothing can go on from it."""
    sound, diverged = {"net/a": np.ones(2, np.float32)}, {"net/a": np.asarray([1, np.nan], np.float32)}
    checkpoint.save(tmp_path, checkpoint.About(1, 0, 9.0), sound)
    with pytest.raises(TrainerError, match=r"iteration 2 .*net/a .*nan"):
        checkpoint.save(tmp_path, checkpoint.About(2, 0, 9.0), diverged)
    path = checkpoint.save(tmp_path, checkpoint.About(2, 0, 9.0), sound)
    with np.load(path) as file:
        about = file["about"]
    np.savez(path, about=about, **diverged)
    skipped: list[str] = []
    assert checkpoint.load_latest(tmp_path, on_skip=skipped.append)[0].iteration == 1
    assert "net/a" in skipped[0]


def test_another_runs_checkpoints_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """The directory may hold those of yesterday's run, with higher numbers."""
    checkpoint.save(tmp_path, checkpoint.About(20, 0, 9.0, run="yesterday"), {})
    checkpoint.save(tmp_path, checkpoint.About(5, 0, 9.0, run="today"), {})
    assert checkpoint.load_latest(tmp_path, run="today")[0].iteration == 5
    assert checkpoint.load_latest(tmp_path)[0].iteration == 5  # was written last
    with pytest.raises(checkpoint.NoCheckpointError, match="no checkpoint in"):
        checkpoint.load_latest(tmp_path, run="tomorrow")


def test_a_clock_that_was_set_back_loses_no_iterations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one run the highest is the newest, whatever the time was; half of one that was killed goes with the next."""
    (tmp_path / ".checkpoint-000004-today.npz.new").write_bytes(b"half of one")
    (tmp_path / ".checkpoint-000004-another.npz.new").write_bytes(b"being written")
    for iteration, time_s in ((5, 1_000_000.0), (10, 996_400.0)):
        monkeypatch.setattr(checkpoint.time, "time", lambda time_s=time_s: time_s)
        checkpoint.save(tmp_path, checkpoint.About(iteration, 0, 9.0, run="today"), {})
    assert checkpoint.load_latest(tmp_path, run="today")[0].iteration == 10
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in names if name.startswith(".")] == [".checkpoint-000004-another.npz.new"]


def test_no_run_puts_its_checkpoints_over_those_of_another(tmp_path: Path) -> None:
    """Each has its own; only its own are thinned out, by number, which may outgrow the name's six digits."""
    checkpoint.save(tmp_path, checkpoint.About(999_999, 0, 9.0, run="yesterday"), {})
    for iteration in (999_998, 999_999, 1_000_000, 1_000_001):
        path = checkpoint.save(tmp_path, checkpoint.About(iteration, 0, 9.0, run="to/day"), {}, keep=2)
    assert path.parent == tmp_path
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"checkpoint-{end}.npz" for end in ("1000000-to_day", "1000001-to_day", "999999-yesterday")]
    assert checkpoint.load_latest(tmp_path, run="to/day")[0].iteration == 1_000_001
    assert checkpoint.load_latest(tmp_path, run="yesterday")[0].iteration == 999_999


def test_a_checkpoint_of_before_is_still_read(tmp_path: Path) -> None:
    """Without the run in its name, and without what was written down later."""
    about = {"iteration": 7, "seed": 0, "return_before": 9.0, "format": 1, "run": "today"}
    np.savez(tmp_path / "checkpoint-000007.npz", about=np.asarray(json.dumps(about)), a=np.ones(1))
    assert checkpoint.load_latest(tmp_path, run="today")[0] == checkpoint.About(7, 0, 9.0, run="today")
    checkpoint.save(tmp_path, checkpoint.About(8, 0, 9.0, run="today"), {}, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-000008-today.npz"]


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


def test_seeds_stay_small_and_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulators take 32 bits; no two environments play the same, nor those of a resumed part or a remade pair."""
    seeds: list[int] = []
    simulator = Simulator(3, 2**31 - 1)
    for environment in simulator._environments:
        monkeypatch.setattr(environment, "reset", lambda seed: (seeds.append(seed), (np.zeros(4, np.float32),))[1])
    simulator.reset()
    for run in (0, 2**40):
        for part in (0, 1, 100_000):
            for made in (0, 12):
                seeds += [derived(derived(derived(run, part), made), worker) for worker in range(3)]

    assert all(0 <= seed < 2**31 for seed in seeds)
    assert len(set(seeds)) == len(seeds) == 39
    assert derived(3, 1) == derived(3, 1)


def test_a_simulator_of_any_task() -> None:
    """By its registered name and options; continuous actions are cut to its limits, episodes end by time."""
    simulator = Simulator(2, 0, Task("Pendulum-v1", {"g": 0.0, "max_episode_steps": 3}))

    assert simulator.spaces == Spaces((3,), "float32", None, (-2.0,), (2.0,))
    begin = simulator.reset()
    steps = [simulator.step(np.asarray([[9.0], [-9.0]], np.float32)) for _ in range(3)]
    assert begin.shape == (2, 3)
    assert steps[0].observations[:, 2] - begin[:, 2] == pytest.approx([0.3, -0.3])  # a torque of 2, not of 9
    assert [step.truncated.tolist() for step in steps] == [[False] * 2, [False] * 2, [True] * 2]
    assert (steps[2].final_observations != steps[2].observations).any()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_a_simulator_gets_actions_that_its_space_contains(
    gymnasium: Any, monkeypatch: pytest.MonkeyPatch, kind: type
) -> None:
    """In the type of its limits, and within them to the last bit: 0.1 of 32 bits is more than 0.1 of 64."""
    space = gymnasium.spaces.Box(-0.1, np.asarray([[0.1], [np.inf]], kind), dtype=kind)
    taken: list[Any] = []

    class Taking(gymnasium.Env):  # type: ignore[misc,name-defined]
        observation_space = gymnasium.spaces.Box(0, 1, (1,))
        action_space = space

        def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            taken.append(action)
            return np.zeros(1, np.float32), 0.0, False, False, {}

    monkeypatch.setattr(gymnasium.envs.registration, "registry", {**gymnasium.envs.registration.registry})
    gymnasium.register("Taking-v0", entry_point=Taking)
    simulator = Simulator(2, 0, Task("Taking-v0"))
    simulator.reset()
    simulator.step(np.asarray([[5.0, 5.0], [-5.0, 0.5]], np.float32))
    assert all(action in space for action in taken)
    assert taken[0].tolist() == [[space.high[0, 0]], [5.0]]
    assert taken[1].tolist() == [[space.low[0, 0]], [0.5]]


@pytest.mark.parametrize("one", [float, np.float64, lambda value: np.asarray([value]), lambda value: [[value]]])
def test_a_step_takes_arrays_of_one_number_for_that_number(monkeypatch: pytest.MonkeyPatch, one: Any) -> None:
    """Tasks that are written in numpy often give them; the learner is to have one number of each environment."""
    simulator = Simulator(2, 0)
    simulator.reset()
    for number, environment in enumerate(simulator._environments):
        answer = np.zeros(4, np.float32), one(-0.5), one(number), one(0), {}
        monkeypatch.setattr(environment, "step", lambda _action, answer=answer: answer)

    step = simulator.step(np.zeros(2, np.int64))
    assert step.rewards.tolist() == [-0.5, -0.5]
    assert (step.terminated.tolist(), step.truncated.tolist()) == ([False, True], [False, False])


@pytest.mark.parametrize(("place", "name"), [(1, "reward"), (2, "terminated"), (3, "truncated")])
def test_a_step_that_gives_several_numbers_is_named(monkeypatch: pytest.MonkeyPatch, place: int, name: str) -> None:
    """Where it is made, with the task and their shape."""
    simulator = Simulator(1, 0)
    simulator.reset()
    answer: list[Any] = [np.zeros(4, np.float32), 1.0, False, False, {}]
    answer[place] = np.zeros((3, 1))
    monkeypatch.setattr(simulator._environments[0], "step", lambda _action: answer)
    with pytest.raises(ValueError, match=rf"CartPole-v1 .*{name} .*\(3, 1\)"):
        simulator.step(np.zeros(1, np.int64))


def test_a_simulator_shows_pixels_as_they_are(gymnasium: Any) -> None:
    """Images without a channel get one; nothing is scaled."""
    box, discrete = gymnasium.spaces.Box(0, 255, (9, 12), np.uint8), gymnasium.spaces.Discrete(3, start=5)
    environment = SimpleNamespace(observation_space=box, action_space=discrete)

    assert spaces_of(environment, "Screen-v0") == Spaces((9, 12, 1), "uint8", 3)


@pytest.fixture
def gymnasium() -> Any:
    return pytest.importorskip("gymnasium")


@pytest.mark.parametrize(
    ("seen", "done", "named"),
    [
        ("Dict(a=Box(0, 1))", "Discrete(2)", "Dict"),
        ("Box(0, 1)", "MultiBinary(3)", r"MultiBinary\(3\)"),
        ("Box(0, 1)", "MultiDiscrete([2, 2])", r"MultiDiscrete\(\[2 2\]\)"),
        ("Box(0, 255, (3, 64, 64), np.uint8)", "Discrete(2)", "3 x 64 x 64"),
        ("Box(0, 255, (12, 84, 84), np.uint8)", "Discrete(2)", "12 x 84 x 84"),
    ],
)
def test_spaces_that_are_not_supported_are_named(gymnasium: Any, seen: str, done: str, named: str) -> None:
    """With what is supported."""
    names = {**vars(gymnasium.spaces), "np": np}
    environment = SimpleNamespace(observation_space=eval(seen, names), action_space=eval(done, names))
    with pytest.raises(ValueError, match=f"T-v0.*{named}"):
        spaces_of(environment, "T-v0")


@pytest.mark.parametrize("name", ["NoSuchTask-v0", "no_such_module:Task-v0"])
def test_a_task_that_is_not_there_is_named(name: str) -> None:
    """With the reason."""
    with pytest.raises(ValueError, match=f"'{name}'.*: "):
        Simulator(1, 0, Task(name))


@pytest.mark.parametrize(
    ("samples", "world", "expected"),
    [
        ([512, 512, 512, 512], 2, [[0, 2], [1, 3]]),
        ([1536, 512, 1536, 512], 2, [[0, 1], [2, 3]]),
        ([64], 2, [[0], []]),
        ([5, 6], 1, [[0, 1]]),
        ([300, 100, 100, 100], 2, [[0], [1, 2, 3]]),
    ],
)
def test_fragments_are_dealt_out_evenly(samples: list[int], world: int, expected: list[list[int]]) -> None:
    """By samples, whole fragments; with fewer fragments than learners some get none."""
    assert dealt(samples, world) == expected


SECOND_LEARNER = """
import pickle, sys
from edgelink.training.trainer.learning.learner import Learner
settings, spaces, rendezvous, updates = pickle.load(sys.stdin.buffer)
learner = Learner(settings, spaces, 1, 2)
learner.join(rendezvous)
for iteration, fragments in updates:
    learner.update(iteration, *fragments)
learner.leave()  # torch ends a process that forgets to by SIGABRT, now and then
"""


def test_several_learners_learn_what_one_would(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two processes, with unequal shares and none at all: the same weights and figures as one with everything.

    The second one's networks are others to begin with, as on other hardware they may be.
    """
    for name in ("RLINF_COMM_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    spaces = SPACES["continuous"]
    settings = Settings(3, 10, minibatch=1 << 20, target_kl=0.05, normalise_observations=True, normalise_rewards=True)
    generator = np.random.default_rng(0)
    alone, first = Learner(settings, spaces), Learner(settings, spaces, 0, 2)
    untrained = alone.latest().weights
    made = [bandit(spaces, untrained, generator, 1, steps=steps, rank=steps) for steps in (30, 9, 20)]
    fragments = [replace(fragment, terminated=fragment.truncated) for fragment in made]  # episodes go on
    everything = [alone.update(1, *fragments), alone.update(2, *fragments[:1]), alone.update(3, *fragments[:2])]
    with pytest.raises(RuntimeError, match="has not joined"):
        first.update(1, *fragments)

    rendezvous = first.meet("127.0.0.1")
    second = subprocess.Popen([sys.executable, "-W", "ignore", "-c", SECOND_LEARNER], stdin=subprocess.PIPE)
    try:
        assert second.stdin is not None
        other = replace(settings, seed=99)
        second.stdin.write(pickle.dumps((other, spaces, rendezvous, [(1, fragments[1:]), (2, []), (3, fragments[:1])])))
        second.stdin.close()
        assert first.join(rendezvous) == ""
        shared = [first.update(index, *fragments[share : share + 1]) for index, share in ((1, 0), (2, 0), (3, 1))]
        assert second.wait(120) == 0
    finally:
        second.kill()
        first.leave()

    scales = [learner.state()["normalisation/rewards"] for learner in (alone, first)]
    assert scales[0] == pytest.approx(scales[1], rel=1e-9), "sums of rewards go on where the last fragment ended"
    for expected, actual in zip(everything, shared, strict=True):
        assert actual.samples == expected.samples
        assert actual.value_loss == pytest.approx(expected.value_loss, rel=1e-3)
        for name, array in expected.weights.items():
            assert actual.weights[name] == pytest.approx(array, abs=2e-4), name
    assert np.abs(shared[1].weights["policy/head/bias"]).min() > 1e-3  # it did move


def test_an_evaluation_is_on_simulators_of_its_own() -> None:
    """With seeds that training never has, the same ones each time; training's own go on as they were."""
    worker = EnvWorker(SIMULATOR, 2, RobotSettings(rank=0), "", seed=5)
    _, training = worker._handle("reset", TRAINING)
    _, first = worker._handle("reset", EVALUATION)
    while not (step := worker._handle("step", np.ones(2, dtype=np.int64))).terminated.any():
        pass
    _, again = worker._handle("reset", EVALUATION)
    _, later = worker._handle("reset", TRAINING)
    worker.close()

    assert (first == again).all()
    assert (first != training).any()
    assert (later != training).any()  # not the very same episodes anew
    assert step.observations.shape == (2, 4)


@pytest.mark.parametrize(
    ("returns", "mean", "margin"),
    [([1.0, 3.0], 2.0, 12.706), ([1.0] * 50, 1.0, 0.0), ([0.0, 1.0] * 61, 0.5, 0.09), ([4.0], 4.0, np.inf)],
)
def test_the_interval_of_a_mean_follows_students_t(returns: list[float], mean: float, margin: float) -> None:
    """Few episodes say little."""
    found = estimate(returns)

    assert (found.mean, found.episodes) == (mean, len(returns))
    assert found.margin == pytest.approx(margin, rel=0.02)


@pytest.mark.parametrize(
    ("mean", "margin", "text"),
    [(-1234.56, 78.94, "-1234.6 ± 78.9"), (0.625, 0.0512, "0.625 ± 0.0512"), (9.5, float("inf"), "9.5 ± inf")],
)
def test_an_estimate_is_told_with_digits_of_its_size(mean: float, margin: float, text: str) -> None:
    """A task that pays 1 at its end, or thousandths, is told apart as well."""
    assert str(Estimate(mean, margin, 16)) == text


def test_experience_of_an_older_policy_is_weighed_and_still_teaches() -> None:
    """Fresh samples weigh 1. Those of a policy that hardly ever chose what pays weigh more, up to the limit."""
    spaces = SPACES["discrete"]
    learner = learner_of(spaces, learning_rate=2.5e-3)
    generator = np.random.default_rng(0)
    old = {**learner.latest().weights, "policy/head/bias": np.asarray([1.5, -1.5], np.float32)}
    fresh = learner.update(1, bandit(spaces, learner.latest().weights, generator, 1))
    updates = [learner.update(iteration, bandit(spaces, old, generator, 0)) for iteration in range(2, 10)]

    assert (fresh.importance, fresh.truncated) == (pytest.approx(1.0, abs=1e-4), 0.0)
    assert updates[0].importance == pytest.approx(1.0, abs=0.35)  # its mean does not depend on the age
    assert 0 < updates[0].truncated < 0.2  # of the rare samples that would weigh ten times as much
    assert bandit(spaces, learner.latest().weights, generator, 11).rewards.mean() > 0.9


def test_a_policy_that_moved_far_enough_is_left_alone() -> None:
    """With target_kl the passes end early."""
    spaces = SPACES["discrete"]
    moved = {}
    for limit in (0.0, 0.003):
        learner = learner_of(spaces, learning_rate=1e-2, epochs=20, target_kl=limit)
        fragment = bandit(spaces, learner.latest().weights, np.random.default_rng(0), 1)
        moved[limit] = learner.update(1, fragment).kl

    assert moved[0.003] < moved[0.0] / 2
