"""The learner: PPO in torch, on one core. A Ray actor in the cloud; a plain class in tests."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Floats, Fragment
from edgelink.training.trainer.learning.advantage import advantages
from edgelink.training.trainer.learning.policy import ACTIONS, FEATURES, HIDDEN
from edgelink.training.trainer.whereabouts import Located


@dataclass(frozen=True)
class Settings:
    """Hyperparameters; found by trial on CartPole for few, small updates."""

    seed: int
    total_iterations: int  # the learning rate falls linearly to a tenth over these
    learning_rate: float = 2.5e-3
    discount: float = 0.98
    trace: float = 0.9
    clip: float = 0.2
    epochs: int = 8
    minibatch: int = 256
    entropy_bonus: float = 0.003
    value_cost: float = 0.5
    max_gradient: float = 0.5


@dataclass(frozen=True)
class Update:
    """The policy after one iteration and what the iteration was like."""

    version: int
    weights: tuple[Floats, ...]
    policy_loss: float
    value_loss: float
    entropy: float


class Learner(Located):
    """Holds the networks and the optimiser. ``update`` may be retried: a repeated iteration is not learned twice."""

    def __init__(self, settings: Settings) -> None:
        import torch

        torch.set_num_threads(1)  # the nets are tiny: more threads only fight over the cores
        torch.manual_seed(settings.seed)
        self._torch = torch
        self._settings = settings
        self._policy = _network(torch, ACTIONS, last_gain=0.01)  # nearly uniform at first
        self._value = _network(torch, 1, last_gain=1.0)
        parameters = [*self._policy.parameters(), *self._value.parameters()]
        self._optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate, eps=1e-5)
        self._generator = np.random.default_rng(settings.seed)
        self._iteration = 0
        self._latest = Update(0, self._weights(), 0.0, 0.0, 0.0)

    def latest(self) -> Update:
        return self._latest

    def update(self, iteration: int, *fragments: Fragment) -> Update:
        """Learn from ``fragments``; iterations count from 1."""
        if iteration == self._iteration:
            return self._latest
        prepared = [self._prepare(fragment) for fragment in fragments]
        columns = [np.concatenate(column) for column in zip(*prepared, strict=True)]
        progress = min(1.0, (iteration - 1) / max(1, self._settings.total_iterations))
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.learning_rate * (1.0 - 0.9 * progress)
        losses = self._improve(columns)
        self._iteration = iteration
        self._latest = Update(iteration, self._weights(), *losses)
        return self._latest

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, as arrays."""
        arrays: dict[str, Any] = {"iteration": np.asarray(self._iteration)}
        for name, net in (("policy", self._policy), ("value", self._value)):
            for key, tensor in net.state_dict().items():
                arrays[f"{name}/{key}"] = tensor.numpy().copy()
        for index, moments in self._optimiser.state_dict()["state"].items():
            for key, tensor in moments.items():
                arrays[f"optimiser/{index}/{key}"] = tensor.numpy().copy()
        return arrays

    def load_state(self, arrays: Mapping[str, Any]) -> Update:
        """Go on from what ``state`` gave."""
        torch = self._torch
        for name, net in (("policy", self._policy), ("value", self._value)):
            prefix = f"{name}/"
            found = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
            net.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in found.items()})
        moments: dict[int, dict[str, Any]] = {}
        for key, value in arrays.items():
            if key.startswith("optimiser/"):
                _, index, name = key.split("/")
                moments.setdefault(int(index), {})[name] = torch.from_numpy(np.array(value))
        groups = self._optimiser.state_dict()["param_groups"]
        self._optimiser.load_state_dict({"state": moments, "param_groups": groups})
        self._iteration = int(arrays["iteration"])
        self._generator = np.random.default_rng([self._settings.seed, self._iteration])
        self._latest = Update(self._iteration, self._weights(), 0.0, 0.0, 0.0)
        return self._latest

    def _prepare(self, fragment: Fragment) -> tuple[Any, ...]:
        """Flat observations, actions, log probabilities, advantages and returns of one fragment."""
        torch = self._torch
        steps, environments = fragment.rewards.shape
        following = np.concatenate([fragment.observations[1:], fragment.last_observations[None]]).copy()
        following[fragment.truncated] = fragment.cut_observations
        with torch.no_grad():
            both = torch.from_numpy(np.concatenate([fragment.observations, following]).astype(np.float32))
            values = self._value(both).squeeze(-1).numpy()
        gains = advantages(
            fragment.rewards,
            values[:steps],
            values[steps:],
            fragment.terminated,
            fragment.truncated,
            discount=self._settings.discount,
            trace=self._settings.trace,
        )
        count = steps * environments
        return (
            fragment.observations.reshape(count, FEATURES).astype(np.float32),
            fragment.actions.reshape(count).astype(np.int64),
            fragment.log_probs.reshape(count),
            gains.reshape(count),
            (gains + values[:steps]).reshape(count),
        )

    def _improve(self, columns: Sequence[Any]) -> tuple[float, float, float]:
        torch, settings = self._torch, self._settings
        tensors = [torch.from_numpy(np.ascontiguousarray(column)) for column in columns]
        count = len(columns[0])
        totals = np.zeros(3)
        rounds = 0
        parameters = [*self._policy.parameters(), *self._value.parameters()]
        for _ in range(settings.epochs):
            order = torch.from_numpy(self._generator.permutation(count))
            for start in range(0, count, settings.minibatch):
                loss, parts = self._loss(*(tensor[order[start : start + settings.minibatch]] for tensor in tensors))
                self._optimiser.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(parameters, settings.max_gradient)
                self._optimiser.step()
                totals += parts
                rounds += 1
        policy_loss, value_loss, entropy = (float(total / rounds) for total in totals)
        return policy_loss, value_loss, entropy

    def _loss(self, observations: Any, actions: Any, old_log_probs: Any, gains: Any, returns: Any) -> Any:
        torch, settings = self._torch, self._settings
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)
        all_log_probs = torch.log_softmax(self._policy(observations), dim=1)
        ratio = (all_log_probs.gather(1, actions[:, None]).squeeze(1) - old_log_probs).exp()
        clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
        policy_loss = -torch.min(ratio * gains, clipped * gains).mean()
        value_loss = (self._value(observations).squeeze(1) - returns).pow(2).mean()
        entropy = -(all_log_probs.exp() * all_log_probs).sum(dim=1).mean()
        loss = policy_loss + settings.value_cost * value_loss - settings.entropy_bonus * entropy
        return loss, np.array([policy_loss.item(), value_loss.item(), entropy.item()])

    def _weights(self) -> tuple[Floats, ...]:
        return tuple(parameter.detach().numpy().copy() for parameter in self._policy.parameters())


def _network(torch: Any, outputs: int, *, last_gain: float) -> Any:
    """A small multilayer perceptron with orthogonal initial weights."""
    layers: list[Any] = []
    sizes = (FEATURES, *HIDDEN)
    for inputs, width in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(inputs, width), torch.nn.Tanh()]
    layers.append(torch.nn.Linear(sizes[-1], outputs))
    for layer in layers[:-1:2]:
        torch.nn.init.orthogonal_(layer.weight, gain=2.0**0.5)
        torch.nn.init.zeros_(layer.bias)
    torch.nn.init.orthogonal_(layers[-1].weight, gain=last_gain)
    torch.nn.init.zeros_(layers[-1].bias)
    return torch.nn.Sequential(*layers)
