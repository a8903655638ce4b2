"""Hyperparameters of the learning: what each means, between which limits it may be, and what it is by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edgelink.training.trainer.learning.spaces import CONTINUOUS, DISCRETE, PIXELS, Spaces
from edgelink.training.trainer.setting import open_fields, setting, values

CONSTANT, LINEAR = "constant", "linear"
ROBOT_LOG_STD = -2.0  # at first, where a robot acts by it: 0.14 of half the range, and no action at a limit
AUTO, CPU, CUDA = "auto", "cpu", "cuda"

# What suits a kind of task where the user says nothing. Discrete ones were found on CartPole for few, small updates;
# the others are those of Schulman et al. (2017) and of the reference implementations.
BY_KIND: Mapping[str, Mapping[str, Any]] = {
    DISCRETE: {
        "learning_rate": 2.5e-3,
        "discount": 0.98,
        "trace": 0.9,
        "epochs": 8,
        "minibatch": 256,
        "entropy_bonus": 0.003,
        "normalise_observations": False,
        "normalise_rewards": False,
    },
    CONTINUOUS: {
        "learning_rate": 3e-4,
        "discount": 0.99,
        "trace": 0.95,
        "epochs": 10,
        "minibatch": 64,
        "entropy_bonus": 0.0,
        "normalise_observations": True,
        "normalise_rewards": True,
    },
    PIXELS: {
        "learning_rate": 2.5e-4,
        "discount": 0.99,
        "trace": 0.95,
        "epochs": 4,
        "minibatch": 256,
        "entropy_bonus": 0.01,
        "normalise_observations": False,
        "normalise_rewards": False,
    },
}


def _by_kind(meaning: str, **bounds: Any) -> Any:
    """One whose default depends on the task: None until :meth:`Settings.completed`."""
    return setting(None, f"{meaning}; default by the kind of task", **bounds)


@dataclass(frozen=True)
class Settings:
    """Of one learner. ``seed``, ``total_iterations`` and ``patience_s`` are the run's, the rest the user's.

    Raises:
        ValueError: values of the wrong type or outside their bounds, all of them, by name.
    """

    seed: int
    total_iterations: int  # a linear learning rate falls to a tenth over these
    learning_rate: float = _by_kind("step size of Adam", above=0, at_most=1)
    schedule: str = setting(
        LINEAR,
        "linear: the learning rate falls to a tenth over the run; constant: it stays",
        choices=(LINEAR, CONSTANT),
    )
    discount: float = _by_kind("gamma, what a reward is worth one step later", above=0, at_most=1)
    trace: float = _by_kind("lambda of GAE, how far real rewards are trusted over the estimate", at_least=0, at_most=1)
    clip: float = setting(0.2, "how far one update may move a probability, as a share of it", above=0, at_most=1)
    value_clip: float = setting(0.0, "how far one update may move a value estimate; 0: as far as it likes", at_least=0)
    importance_limit: float = setting(
        2.0, "the most that a sample of an older policy may weigh when it is corrected for its age", at_least=1
    )
    epochs: int = _by_kind("passes over the samples of one update", at_least=1, at_most=1000)
    minibatch: int = _by_kind("samples of one step of Adam, over all learners", at_least=1)
    target_kl: float = setting(
        0.0, "nats; no further pass once the policy has moved 1.5 times as far; 0: off", at_least=0
    )
    entropy_bonus: float = _by_kind("weight of the policy's entropy in the loss", at_least=0, at_most=10)
    least_log_std: float = setting(
        -4.0,
        "how narrow a continuous policy may become: the logarithm of its deviation, in halves of the action's range; "
        "of a narrower one, experience that is some versions old says nothing",
        at_least=-20,
        at_most=0,
    )
    initial_log_std: float | None = setting(
        None,
        "how narrow a continuous policy is at first, likewise; default: -2 where a robot takes part, whose limits it "
        "would be at all the time, else 0",
        at_least=-20,
        at_most=0,
    )
    value_cost: float = setting(0.5, "weight of the value's error in the loss", above=0, at_most=100)
    max_gradient: float = setting(0.5, "norm to which a gradient is cut", above=0)
    normalise_observations: bool = _by_kind("shift and scale observations to mean 0 and deviation 1, as seen so far")
    normalise_rewards: bool = _by_kind("scale rewards by the deviation of their discounted sums, as seen so far")
    hidden: tuple[int, ...] = setting((64, 64), "widths of the layers, where observations are numbers", at_least=1)
    threads: int = setting(1, "threads of the learner's torch on a CPU", at_least=1, at_most=1024)
    device: str = setting(
        AUTO, "auto: an accelerator of NVIDIA or AMD where the learner has one", choices=(AUTO, CPU, CUDA)
    )
    patience_s: float = 0.0  # of the run, for outages: several learners wait for each other as long, or half an hour

    def __post_init__(self) -> None:
        problems: list[str] = []
        given = {name: value for name in open_fields(Settings) if (value := getattr(self, name)) is not None}
        for name, value in values(Settings, given, "algorithm", problems).items():
            object.__setattr__(self, name, value)  # 1e-3 may have come as a text
        if problems:
            raise ValueError("\n".join(problems))

    def rounds(self, steps: float) -> int:
        """Minibatches of one epoch over so many env steps, all learners together."""
        return max(1, round(steps / self.minibatch))

    def completed(self, spaces: Spaces) -> Settings:
        """With a value for everything, by the kind of the task where none was given."""
        defaults = {**BY_KIND[spaces.kind], "initial_log_std": 0.0}
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        return replace(self, **missing)
