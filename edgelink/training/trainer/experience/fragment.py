"""What a rollout worker sends to the learner: a stretch of experience from one worker's environments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]
    Observations = NDArray[Any]  # float32, or uint8 for pixels
    Actions = NDArray[Any]  # int64 for discrete ones, else float32
else:  # names only: some workers have no use for numpy's types at run time
    Floats = Ints = Bools = Observations = Actions = Any


@dataclass(frozen=True)
class Step:
    """What a vector of environments answers to a vector of actions.

    Where an episode ended, ``observations`` is already the first of the next one and ``final_observations`` holds the
    last of the old one. ``terminated``: the task failed. ``truncated``: cut off for another reason (time, safety
    stop), so that the future still has a value.
    """

    observations: Observations  # (environments, *shape)
    rewards: Floats
    terminated: Bools
    truncated: Bools
    final_observations: Observations


@dataclass(frozen=True)
class Fragment:
    """``steps`` × ``environments`` samples of the worker ``rank``, in the order they happened."""

    rank: int
    ticket: int  # the worker's count of fragments; a retried call gives the same one again
    weights_version: int
    observations: Observations  # (steps, environments, *shape)
    actions: Actions  # (steps, environments), or (steps, environments, dimensions) as drawn: before any limit
    log_probs: Floats  # of ``actions``, by the policy that drew them
    rewards: Floats
    terminated: Bools
    truncated: Bools
    cut_observations: Observations  # final observations of the truncated episodes, in row-major order of ``truncated``
    last_observations: Observations  # (environments, *shape), after the last step
    episode_returns: tuple[float, ...] = field(default=())  # of the episodes that ended here
    episode_lengths: tuple[int, ...] = field(default=())  # in steps, likewise

    @property
    def samples(self) -> int:
        return int(self.rewards.size)
