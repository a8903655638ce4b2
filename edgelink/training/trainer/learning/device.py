"""What the learner computes on, and what is told where that is not what one would expect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.learning.settings import CPU, CUDA

KINDS = ("NV_GPU", "AMD_GPU")  # by RLinf's names: what torch calls cuda
_IS_FULL = re.compile(r"out of memory|CUBLAS_STATUS_ALLOC_FAILED")


def chosen(torch: Any, wanted: str) -> Any:
    """The device for ``algorithm.device``.

    Raises:
        TrainerError: it is to be an accelerator, and there is none.
    """
    is_there = wanted != CPU and torch.cuda.is_available()
    if wanted == CUDA and not is_there:
        raise TrainerError(
            f"algorithm.device is cuda, and {_none_of(torch)}",
            "place actor on an accelerator of NVIDIA or AMD, with a torch on that node that is built for it, or set "
            "algorithm.device=auto",
            exit_status=USAGE,
        )
    return torch.device(CUDA if is_there else CPU)


def why_unused(torch: Any, kind: str) -> str:
    """Why a learner is on its CPU although it is placed on an accelerator.

    Args:
        kind: of the accelerator.
    """
    why = _none_of(torch) if kind in KINDS else f"the trainer uses accelerators of NVIDIA and AMD, and this is {kind}"
    return f"it learns on its CPU: {why}"


def _none_of(torch: Any) -> str:
    built_for = (
        f"for CUDA {torch.version.cuda}"
        if torch.version.cuda
        else f"for ROCm {torch.version.hip}"
        if torch.version.hip
        else "for CPUs alone"
    )
    return f"its torch {torch.__version__}, built {built_for}, finds no accelerator"


@contextmanager
def lack_of_memory_told() -> Iterator[None]:
    """What torch says of an accelerator's memory goes on for lines, and knows nothing of our settings."""
    try:
        yield
    except RuntimeError as error:
        if not _IS_FULL.search(str(error)):
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise TrainerError(
            f"its accelerator has not enough memory: {first_line}",
            "see by `nvidia-smi` or `rocm-smi` there who else uses it; fewer simulators (env.per_worker) or a smaller "
            "algorithm.minibatch need less, several learners share it, and algorithm.device=cpu needs none",
        ) from error
