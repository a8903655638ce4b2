"""Experience that is not made of finite numbers is refused before it gets into statistics and weights."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgelink.training.trainer.experience.fragment import Fragment
from edgelink.training.trainer.failure import TrainerError

_CHECKED = ("observations", "cut_observations", "last_observations", "rewards", "actions", "log_probs")


class NotFiniteError(TrainerError):
    """Somewhere there is a nan or an infinite number."""


def diverged(what: str) -> NotFiniteError:
    """The learning has, whatever came in: ``what`` are no numbers any more."""
    return NotFiniteError(
        what, "the training has diverged: lower algorithm.learning_rate, and go on from the last checkpoint by --resume"
    )


def check_finite(fragments: Iterable[Fragment]) -> None:
    """Raises NotFiniteError, which names the worker and what it sent."""
    for fragment in fragments:
        for name in _CHECKED:
            array = getattr(fragment, name)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise NotFiniteError(
                    f"fragment {fragment.ticket} of env:{fragment.rank} has {name} that are nan or infinite; "
                    "nothing was learned from it",
                    "mend the task or the robot's code, and go on from the last checkpoint by --resume",
                )
