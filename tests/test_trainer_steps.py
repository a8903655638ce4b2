"""Steps of the optimiser that are recorded, as on an accelerator: here what is recorded is simply done again, in the
memory that it was recorded with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_trainer_device import SEEN, SPACES, fragment, same

from edgelink.training.trainer.learning import learner as of_learner
from edgelink.training.trainer.learning.learner import Learner
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.steps import RecordedSteps

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.timeout(240),
    pytest.mark.torch,
]


class Recorder:
    """``count``: of recordings; ``repeats``: how often one was done again."""

    def __init__(self) -> None:
        self.count = self.repeats = 0

    def __call__(self, act: Callable[[], None]) -> Callable[[], None]:
        self.count += 1

        def again() -> None:
            self.repeats += 1
            act()

        return again


def pair(monkeypatch: pytest.MonkeyPatch, kind: str, **settings: Any) -> tuple[Recorder, tuple[Learner, Learner]]:
    """Two learners of which the second one's steps are recorded."""
    recorder = Recorder()
    spaces, wanted = SPACES[kind], Settings(3, 8, device="cpu", **{**SEEN, **settings})
    plain = Learner(wanted, spaces)
    with monkeypatch.context() as patch:
        patch.setattr(of_learner, "Steps", lambda *parts: RecordedSteps(*parts, recorder))  # type: ignore[call-arg]
        return recorder, (plain, Learner(wanted, spaces))


@pytest.mark.parametrize("kind", SPACES)
def test_recorded_steps_learn_the_same(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """From minibatches of different sizes, with a learning rate that falls, and after a checkpoint was loaded."""
    settings = {"minibatch": 24, "normalise_observations": kind != "pixels", "target_kl": 0.0}
    recorder, (plain, recorded) = pair(monkeypatch, kind, **settings)
    for iteration, steps in enumerate((16, 16, 11, 16), 1):
        experience = fragment(SPACES[kind], plain.latest().weights, iteration, steps)
        same(recorded.update(iteration, experience), plain.update(iteration, experience))
        if iteration == 2:
            made, repeats = recorder.count, recorder.repeats
            recorded.load_state(recorded.state())
    # 64 samples are parts of 21 and 22, 44 two of 22; figures are of interest in the last pass alone; and Adam's part,
    # which is recorded anew after the checkpoint.
    assert made == 5
    assert recorder.count == 6
    assert repeats > 10
    assert recorder.repeats > repeats + 10


def test_recordings_of_sizes_long_gone_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where simulators come and go, no two updates may be alike."""
    _, (plain, recorded) = pair(monkeypatch, "discrete", minibatch=1 << 20, epochs=3)
    for iteration, steps in enumerate([*range(2, 22), 2], 1):
        experience = fragment(SPACES["discrete"], plain.latest().weights, iteration, steps)
        same(recorded.update(iteration, experience), plain.update(iteration, experience))
    assert len(recorded._steps._derivations) == 16  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_gradient_that_is_not_finite_changes_nothing(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    """Neither the networks nor what Adam remembers; the step after it is taken as if it had not been."""
    _, learners = pair(monkeypatch, "continuous")
    steps, flat = learners[is_recorded]._steps, learners[is_recorded]._networks.flat
    torch = learners[0]._torch
    rows = torch.from_numpy(np.random.default_rng(1).normal(size=(8, 10)).astype(np.float32))
    for _ in range(3):
        steps.take(rows, None, lambda _gradient: None, is_watched=False)
    before, remembered = flat.detach().clone(), steps.state()
    steps.take(rows * float("nan"), None, lambda _gradient: None, is_watched=False)
    assert torch.equal(flat, before)
    after = steps.state()
    assert {key: array.tolist() for key, array in after.items()} == {
        key: array.tolist() for key, array in remembered.items()
    }
    assert float(remembered["step"]) == 3
    steps.take(rows, None, lambda _gradient: None, is_watched=False)
    assert not torch.equal(flat, before)
    assert float(steps.state()["step"]) == 4


@pytest.mark.parametrize("is_recorded", [False, True])
def test_rate_and_share_count_from_the_next_step_on(monkeypatch: pytest.MonkeyPatch, is_recorded: bool) -> None:
    """Also of steps that are recorded long since: gradients are means, and at a rate of zero nothing moves."""
    _, learners = pair(monkeypatch, "discrete")
    steps, flat = learners[is_recorded]._steps, learners[is_recorded]._networks.flat
    torch = learners[0]._torch
    rows = torch.from_numpy(np.random.default_rng(1).random((8, 10)).astype(np.float32))
    gradients: list[Any] = []
    for rate, share in ((1e-3, 8.0), (1e-3, 8.0), (0.0, 8.0), (0.0, 2.0), (1e-3, 8.0)):
        steps.set_rate(rate)
        steps.set_share(share)
        before = flat.detach().clone()
        steps.take(rows, None, lambda gradient: gradients.append(gradient.clone()), is_watched=False)
        assert torch.equal(flat, before) is (rate == 0.0)
    assert float(gradients[2].abs().max()) > 0
    assert torch.allclose(gradients[3], 4 * gradients[2])
