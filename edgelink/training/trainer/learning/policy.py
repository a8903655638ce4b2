"""Inference of the policy with numpy, for edges without torch, and the shape that learner and edges agree on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgelink.training.trainer.experience.fragment import Floats, Ints

FEATURES = 4  # cart position and speed, pole angle and speed
ACTIONS = 2  # push left, push right
HIDDEN = (64, 64)

Weights = Sequence[Floats]  # weight and bias of each layer, as torch lays them out: weight is (outputs, inputs)


def logits(weights: Weights, observations: Floats) -> Floats:
    """Unnormalised log probabilities of the actions, one row an observation."""
    hidden = observations
    for index in range(0, len(weights) - 2, 2):
        hidden = np.tanh(hidden @ weights[index].T + weights[index + 1])
    result: Floats = hidden @ weights[-2].T + weights[-1]
    return result


def sample(weights: Weights, observations: Floats, generator: np.random.Generator) -> tuple[Ints, Floats]:
    """Actions drawn from the policy, and the log probability of each."""
    scores = logits(weights, observations)
    scores = scores - scores.max(axis=1, keepdims=True)
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    # Gumbel trick: the largest of score + noise is a draw from the softmax.
    actions = np.argmax(log_probs + generator.gumbel(size=log_probs.shape), axis=1)
    return actions, log_probs[np.arange(len(actions)), actions].astype(np.float32)
