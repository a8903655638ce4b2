"""What only a real accelerator shows: sums by NCCL, one that two learners share, and the end of its memory."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_trainer_accelerators import RAY
from test_trainer_device import SEEN, SPACES, accelerator, fragment

from edgelink.training.trainer import learner_worker
from edgelink.training.trainer.failure import TrainerError
from edgelink.training.trainer.learner_worker import LearnerWorker
from edgelink.training.trainer.learning import group
from edgelink.training.trainer.learning.learner import Learner
from edgelink.training.trainer.learning.settings import Settings

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
    pytest.mark.timeout(300),
    pytest.mark.torch,
]

SECOND_LEARNER = """
import pickle, sys
from pathlib import Path
from edgelink.training.trainer.learning import group
from edgelink.training.trainer.learning.learner import Learner
boot_id, settings, spaces, rendezvous, updates = pickle.load(sys.stdin.buffer)
if boot_id:
    group._BOOT_ID = Path(boot_id)
learner = Learner(settings, spaces, 1, 2)
print(learner.join(rendezvous))
for iteration, fragments in updates:
    learner.update(iteration, *fragments)
learner.leave()
"""


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    import torch

    accelerator(torch)
    for name in ("RLINF_COMM_NET_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    return torch


class Pair:
    """Two learners in two processes, and beside them one that gets the experience of both."""

    def __init__(self, boot_id: Path | None, **environment: str) -> None:
        spaces, settings = SPACES["continuous"], Settings(3, 4, **{**SEEN, "minibatch": 1 << 20})
        self._alone = Learner(settings, spaces)
        self.first = Learner(settings, spaces, 0, 2)
        self._pieces = [fragment(spaces, self._alone.latest().weights, number, 8 * number) for number in (1, 2)]
        rendezvous = self.first.meet("127.0.0.1")
        self._second = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SECOND_LEARNER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        assert self._second.stdin is not None
        updates = [(1, self._pieces[1:]), (2, self._pieces[1:])]
        self._second.stdin.write(pickle.dumps((boot_id, replace(settings, seed=99), spaces, rendezvous, updates)))
        self._second.stdin.close()
        self.notice = self.first.join(rendezvous)

    def close(self) -> None:
        self._second.kill()
        self.first.leave()

    def learn_what_one_would(self) -> None:
        shared = [self.first.update(number, *self._pieces[:1]) for number in (1, 2)]
        assert self._second.stdout is not None
        assert self._second.stdout.read().decode().strip() == self.notice  # both say the same
        assert self._second.wait(120) == 0
        before = None
        for number, update in zip((1, 2), shared, strict=True):
            expected = self._alone.update(number, *self._pieces)
            assert update.samples == expected.samples
            for name, array in expected.weights.items():
                assert update.weights[name] == pytest.approx(array, abs=2e-4), name
            assert before is None or np.abs(update.weights["policy/head/weight"] - before).max() > 1e-3
            before = update.weights["policy/head/weight"]


@pytest.fixture
def apart(torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """With an accelerator each; where there is one only, on what both NCCL and the learners take for two machines."""
    if torch.cuda.device_count() > 1:
        pair = Pair(None, CUDA_VISIBLE_DEVICES="1")
    else:
        for name in ("first", "second"):
            (tmp_path / name).write_text(name)
        monkeypatch.setattr(group, "_BOOT_ID", tmp_path / "first")
        monkeypatch.setenv("NCCL_HOSTID", "first")
        pair = Pair(tmp_path / "second", NCCL_HOSTID="second")
    yield pair
    pair.close()


def test_learners_with_an_accelerator_each_sum_by_nccl(apart: Pair) -> None:
    """Together they learn what one would of everything, and nothing slows them down."""
    assert apart.notice == ""
    assert apart.first._group._by_nccl is not None  # type: ignore[attr-defined]
    apart.learn_what_one_would()


@pytest.fixture
def sharing() -> Iterator[Pair]:
    pair = Pair(None)
    yield pair
    pair.close()


def test_learners_that_share_an_accelerator_sum_by_gloo(sharing: Pair) -> None:
    """Which NCCL would refuse: they say so, and learn the same."""
    assert "by gloo" in sharing.notice
    assert "actor:0 and actor:1 share an accelerator" in sharing.notice
    sharing.learn_what_one_would()


def test_the_end_of_its_memory_is_told(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what needs less, and what torch had to say of it; with less to learn from, it goes on."""
    monkeypatch.setitem(sys.modules, "ray", RAY)
    monkeypatch.setattr(learner_worker, "check_modules", lambda *_: None)
    monkeypatch.setattr(learner_worker, "opened", lambda payload: payload)
    spaces = SPACES["pixels"]
    worker = LearnerWorker(Settings(3, 4, minibatch=64), spaces, 1 << 20, 1)
    weights = Learner(Settings(3, 4, device="cpu"), spaces).latest().weights
    worker.update(1, fragment(spaces, weights, 1))
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (8 << 20)) / whole)
    try:
        with pytest.raises(TrainerError, match="out of memory") as told:
            worker.update(2, fragment(spaces, weights, 2, steps=2048))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert "algorithm.minibatch" in told.value.hint
    worker.update(2, fragment(spaces, weights, 2))
