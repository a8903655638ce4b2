"""The learner on a device that is not the CPU: a pretended one, where mixing what is on it with what is not fails, and
this machine's accelerator where it has one."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_trainer_learning import SECOND_LEARNER

from edgelink.training.trainer.experience.fragment import Fragment
from edgelink.training.trainer.learning import learner as of_learner
from edgelink.training.trainer.learning.learner import Learner, Update
from edgelink.training.trainer.learning.policy import act
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.timeout(240),  # on a loaded machine torch alone takes half a minute to be there
    pytest.mark.torch,
]

SPACES = {
    "discrete": Spaces((4,), "float32", 2),
    "continuous": Spaces((3,), "float32", None, (-2.0, 0.0), (2.0, 10.0)),
    "pixels": Spaces((24, 24, 3), "uint8", 3),
}
SEEN = {"minibatch": 64, "normalise_observations": True, "normalise_rewards": True, "target_kl": 0.5}


@pytest.fixture(params=["pretended", "real"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import torch
    from pretended_accelerator import DEVICE, pretended
    from torch.optim import optimizer

    if request.param == "real":
        found = accelerator(torch)
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # which convolutions are rounded to otherwise
        yield found
        return

    monkeypatch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", DEVICE.type])
    with pretended() as device:
        monkeypatch.setattr(
            of_learner, "chosen", lambda torch, wanted: torch.device(wanted) if wanted == "cpu" else device
        )
        yield device


def accelerator(torch: Any) -> Any:
    """This machine's; without one the test is skipped."""
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no accelerator in this machine")
    return torch.device("cuda")


def fragment(spaces: Spaces, weights: Any, iteration: int, steps: int = 16) -> Fragment:
    """Some experience of four environments that end now and then."""
    generator = np.random.default_rng(iteration)
    shape = (steps + 1, 4, *spaces.observation_shape)
    rows = generator.normal(size=shape) if not spaces.is_pixels else generator.integers(0, 256, shape)
    observations = rows.astype(spaces.observation_dtype)
    drawn = [act(spaces, weights, row, generator) for row in observations[:-1]]
    is_over = generator.random((steps, 4)) < 0.1
    truncated = ~is_over & (generator.random((steps, 4)) < 0.1)
    return Fragment(
        rank=0,
        ticket=iteration,
        weights_version=iteration,
        observations=observations[:-1],
        actions=np.stack([actions for actions, _ in drawn]),
        log_probs=np.stack([log_probs for _, log_probs in drawn]),
        rewards=generator.normal(size=(steps, 4)).astype(np.float32),
        terminated=is_over,
        truncated=truncated,
        cut_observations=observations[1:][truncated],
        last_observations=observations[-1],
    )


def same(one: Update, other: Update) -> None:
    assert one.samples == other.samples
    assert one.kl == pytest.approx(other.kl, abs=1e-5)
    assert one.value_loss == pytest.approx(other.value_loss, rel=1e-4)
    assert one.weights.keys() == other.weights.keys()
    for name, array in one.weights.items():
        assert type(array) is np.ndarray
        assert array == pytest.approx(other.weights[name], abs=1e-5), name


@pytest.mark.parametrize("kind", SPACES)
def test_it_learns_the_same(device: Any, kind: str) -> None:
    """Whatever it needs is brought there, and what others need is brought back."""
    spaces = SPACES[kind]
    settings = {**SEEN, "normalise_observations": kind != "pixels"}
    here, there = (Learner(Settings(3, 4, device=name, **settings), spaces) for name in ("cpu", "auto"))
    assert there._networks.flat.device.type == device.type != here._networks.flat.device.type
    before = here.latest().weights["policy/head/weight"]
    for iteration in (1, 2):
        experience = fragment(spaces, here.latest().weights, iteration)
        same(there.update(iteration, experience), here.update(iteration, experience))
    assert np.abs(here.latest().weights["policy/head/weight"] - before).max() > 1e-3


@pytest.mark.parametrize(("written_on", "read_on"), [("auto", "cpu"), ("cpu", "auto")])
def test_a_checkpoint_goes_from_one_device_to_the_other(device: Any, written_on: str, read_on: str) -> None:
    """With what Adam remembers: the next update is the one that would have been."""
    spaces = SPACES["continuous"]
    writer, reader = (Learner(Settings(3, 4, device=name, **SEEN), spaces) for name in (written_on, read_on))
    writer.update(1, fragment(spaces, writer.latest().weights, 1))
    state = writer.state()
    assert all(type(array) is np.ndarray for array in state.values())
    reader.load_state(state)
    experience = fragment(spaces, writer.latest().weights, 2)
    same(reader.update(2, experience), writer.update(2, experience))


def test_sums_by_gloo_go_over_the_cpu(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One on a device, one on a CPU: together they learn what one would of everything."""
    for name in ("RLINF_COMM_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    spaces = SPACES["continuous"]
    whole = {**SEEN, "minibatch": 1 << 20}
    alone = Learner(Settings(3, 4, device="cpu", **whole), spaces)
    first = Learner(Settings(3, 4, **whole), spaces, 0, 2)
    untrained = alone.latest().weights
    pieces = [replace(fragment(spaces, untrained, pair, 8 * pair), rank=pair) for pair in (1, 2)]
    rendezvous = first.meet("127.0.0.1")
    second = subprocess.Popen([sys.executable, "-W", "ignore", "-c", SECOND_LEARNER], stdin=subprocess.PIPE)
    try:
        assert second.stdin is not None
        other = Settings(99, 4, device="cpu", **whole)
        second.stdin.write(pickle.dumps((other, spaces, rendezvous, [(1, pieces[1:]), (2, pieces[1:])])))
        second.stdin.close()
        first.join(rendezvous)
        shared = [first.update(number, *pieces[:1]) for number in (1, 2)]
        assert second.wait(120) == 0
    finally:
        second.kill()
        first.leave()
    for number, update in zip((1, 2), shared, strict=True):
        expected = alone.update(number, *pieces)
        assert update.samples == expected.samples
        for name, array in expected.weights.items():
            assert update.weights[name] == pytest.approx(array, abs=2e-4), name
