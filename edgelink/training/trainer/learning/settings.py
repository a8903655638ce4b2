"""Hyperparameters of the learning: what each means, between which limits it may be, and what it is by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.learning.spaces import CONTINUOUS, DISCRETE, PIXELS, Spaces

CONSTANT, LINEAR = "constant", "linear"
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


def _setting(default: Any, text: str, **limits: Any) -> Any:
    """One hyperparameter. ``limits``: ``above``, ``at_least``, ``at_most``, ``choices``, and ``unit``."""
    return field(default=default, metadata={"help": text, **limits})


def _by_kind(text: str, **limits: Any) -> Any:
    """One whose default depends on the task: None until :meth:`Settings.completed`."""
    return _setting(None, text, **limits)


@dataclass(frozen=True)
class Settings:
    """Of one learner. ``seed`` and ``total_iterations`` are the run's, the rest the user's.

    Raises:
        TrainerError: a value is of the wrong type or outside its limits.
    """

    seed: int
    total_iterations: int  # a linear learning rate falls to a tenth over these
    learning_rate: float = _by_kind("step size of Adam", above=0, at_most=1)
    schedule: str = _setting(
        LINEAR,
        "linear: the learning rate falls to a tenth over the run; constant: it stays",
        choices=(LINEAR, CONSTANT),
    )
    discount: float = _by_kind("gamma: what a reward is worth one step later", above=0, at_most=1)
    trace: float = _by_kind(
        "lambda of GAE: how far ahead real rewards are trusted over the estimate", at_least=0, at_most=1
    )
    clip: float = _setting(0.2, "how far an update may move a probability, as a share of it", above=0, at_most=1)
    value_clip: float = _setting(0.0, "how far an update may move a value estimate; 0: as far as it likes", at_least=0)
    importance_limit: float = _setting(
        2.0, "the most that a sample of an older policy may weigh, when it is corrected for its age", at_least=1
    )
    epochs: int = _by_kind("times that each sample is learned from", unit="passes", at_least=1, at_most=1000)
    minibatch: int = _by_kind("samples to one step of the optimiser, over all learners", unit="samples", at_least=1)
    target_kl: float = _setting(
        0.0, "no more epochs once the policy has moved 1.5 times as far; 0: no limit", at_least=0
    )
    entropy_bonus: float = _by_kind("reward for a policy that stays undecided", at_least=0, at_most=10)
    value_cost: float = _setting(0.5, "weight of the value's error against the policy's", above=0, at_most=100)
    max_gradient: float = _setting(0.5, "norm to which gradients are cut", above=0)
    normalise_observations: bool = _by_kind("shift and scale observations to mean 0 and deviation 1, as seen so far")
    normalise_rewards: bool = _by_kind("scale rewards by the deviation of their discounted sums, as seen so far")
    hidden: tuple[int, ...] = _setting((64, 64), "widths of the layers for observations that are numbers", at_least=1)
    threads: int = _setting(1, "of the learner's torch on a CPU", unit="threads", at_least=1, at_most=1024)
    device: str = _setting(AUTO, "auto: the accelerator where the learner has one", choices=(AUTO, CPU, CUDA))

    def __post_init__(self) -> None:
        for item in fields(self):
            if item.metadata:
                _check(item.name, getattr(self, item.name), str(item.type), item.metadata)

    def completed(self, spaces: Spaces) -> Settings:
        """With a value for everything, by the kind of the task where none was given."""
        missing = {name: value for name, value in BY_KIND[spaces.kind].items() if getattr(self, name) is None}
        return replace(self, **missing)


def _check(name: str, value: Any, kind: str, limits: Mapping[str, Any]) -> None:
    if value is None and any(name in defaults for defaults in BY_KIND.values()):
        return
    numbers = value if kind.startswith("tuple") and isinstance(value, tuple | list) else (value,)
    wanted = {"float": (int, float), "int": (int,), "bool": (bool,), "str": (str,)}.get(kind, (int,))
    for number in numbers:
        is_wrong_bool = isinstance(number, bool) and kind != "bool"
        if not isinstance(number, wanted) or is_wrong_bool or (isinstance(number, float) and not math.isfinite(number)):
            raise _refused(name, value, f"must be {_article(kind)}")
        if "above" in limits and not number > limits["above"]:
            raise _refused(name, value, f"must be more than {limits['above']}")
        if "at_least" in limits and number < limits["at_least"]:
            raise _refused(name, value, f"must be {limits['at_least']} or more")
        if "at_most" in limits and number > limits["at_most"]:
            raise _refused(name, value, f"must be {limits['at_most']} or less")
        if "choices" in limits and number not in limits["choices"]:
            raise _refused(name, value, f"must be one of {', '.join(limits['choices'])}")


def _article(kind: str) -> str:
    return {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "a word"}.get(
        kind, "a list of whole numbers"
    )


def _refused(name: str, value: Any, why: str) -> TrainerError:
    return TrainerError(f"algorithm.{name} is {value!r}: it {why}", "correct the value", exit_status=USAGE)
