"""The built-in trainer's learning against a reference PPO (Stable-Baselines3), without a network: return and pace.

`EDGELINK_LEARNING_SEEDS=5` for more than three. No root is needed, and no lab.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest
from figures import Figure, Figures
from learning_side import LEARNED, PACED

sys.path.insert(0, str(Path(__file__).parent.parent))
from framework_python import FrameworkPython

pytestmark = pytest.mark.timeout(7200)

HERE = Path(__file__).parent
SEEDS = range(int(os.environ.get("EDGELINK_LEARNING_SEEDS", "3")))
MARGIN = 0.05
ROUNDS = 3


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sides' interpreter: that of the tests, and what the reference needs besides."""
    made = FrameworkPython(tmp_path_factory.mktemp("reference") / "venv")
    made.install(HERE / "reference.lock")
    return made.python


def side(python: Path, name: str, task: str, seed: int, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [python, HERE / "learning_side.py", name, task, str(seed)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(HERE.parent.parent), "OMP_NUM_THREADS": "1", **environment},
    )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.parametrize("task", LEARNED)
def test_as_much_is_learned_from_the_same_number_of_steps(python: Path, task: str, figures: Figures) -> None:
    """The mean return over the seeds is at least the reference's, less 5 %."""
    sides = ("edgelink", "reference")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # as many at once as there are cores: no pace is measured here
        running = [[pool.submit(side, python, name, task, seed) for seed in SEEDS] for name in sides]
    ours, theirs = ([one.result()["return"] for one in column] for column in running)
    figures.add(Figure(f"return of {task} after {LEARNED[task].steps}", "", ours, theirs, bar="mean >= theirs - 5 %"))
    assert mean(ours) >= mean(theirs) - MARGIN * abs(mean(theirs))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("task", PACED)
def test_the_loop_and_its_updates_are_as_fast(python: Path, task: str, device: str, figures: Figures) -> None:
    """Same task, same samples, passes and minibatches, one thread or one accelerator: as many samples a second."""
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} finds no accelerator in this machine")
    rounds = [
        [side(python, name, task, seed, PACE="1", DEVICE=device) for name in ("edgelink", "reference")]
        for seed in range(ROUNDS)
    ]
    for key, what in (("samples_per_s", "whole loop"), ("update_samples_per_s", "updates alone")):
        ours, theirs = ([one[key] for one in column] for column in zip(*rounds, strict=True))
        figures.add(Figure(f"{task} on {device}, {what}", "samples/s", ours, theirs, bar=">= theirs"))
        assert median(ours) >= median(theirs)
