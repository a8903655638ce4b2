"""Inference of the policy with numpy, for edges without torch, and the networks that learner and edges agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from edgelink.training.trainer.experience.fragment import Actions, Floats, Ints, Observations
from edgelink.training.trainer.learning.spaces import Spaces

# By name: "policy/layer0/weight" and so on, as torch lays them out: (outputs, inputs[, height, width]). Those of the
# policy, of the features below it (pixels), "policy/log_std" (continuous), and the normalisation of observations.
Weights = Mapping[str, Floats]

MEAN, STD = "observation/mean", "observation/std"
LOG_STD = "policy/log_std"
CLIP_OBSERVATION = 10.0  # standard deviations
_LARGE_IMAGE = 36  # pixels; the least that the three layers of the larger network make something of
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Convolution(NamedTuple):
    channels: int
    kernel: int
    stride: int


def convolutions(spaces: Spaces) -> tuple[Convolution, ...]:
    """The layers that see the pixels: those of Mnih et al. (2015), or two small ones for small images."""
    if min(spaces.observation_shape[:2]) >= _LARGE_IMAGE:
        return Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)
    return Convolution(16, 3, 2), Convolution(32, 3, 2)


def outputs(spaces: Spaces, weights: Weights, observations: Observations) -> Floats:
    """Of the policy network: unnormalised log probabilities of the actions, or unit means of their dimensions."""
    hidden = _features(spaces, weights, observations) if spaces.is_pixels else normalised(weights, observations)
    index = 0
    while (weight := weights.get(f"policy/layer{index}/weight")) is not None:
        hidden = np.tanh(hidden @ weight.T + weights[f"policy/layer{index}/bias"])
        index += 1
    result: Floats = hidden @ weights["policy/head/weight"].T + weights["policy/head/bias"]
    return result


def act(
    spaces: Spaces,
    weights: Weights,
    observations: Observations,
    generator: np.random.Generator,
    *,
    deterministic: bool = False,
) -> tuple[Actions, Floats]:
    """An action for each observation, and the log probability of each.

    Continuous actions are not cut to the limits (the environment does that for itself): the probability is of what was
    drawn, and per unit of half the range between the limits.

    Args:
        deterministic: the likeliest action instead of one drawn.
    """
    found = outputs(spaces, weights, observations)
    if not spaces.is_discrete:
        return _act_in_box(spaces, weights[LOG_STD], found, generator, deterministic=deterministic)
    scores = found - found.max(axis=1, keepdims=True)
    log_probs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    # Gumbel trick: the largest of score + noise is a draw from the softmax.
    noise = 0.0 if deterministic else generator.gumbel(size=log_probs.shape)
    actions: Ints = np.argmax(log_probs + noise, axis=1)
    return actions, log_probs[np.arange(len(actions)), actions]


def normalised(weights: Weights, observations: Observations) -> Floats:
    """Numbers as the network wants them; as they are, where ``weights`` has no normalisation."""
    if MEAN not in weights:
        return observations.astype(np.float32, copy=False)
    result: Floats = np.clip((observations - weights[MEAN]) / weights[STD], -CLIP_OBSERVATION, CLIP_OBSERVATION)
    return result


def _act_in_box(
    spaces: Spaces, log_std: Floats, means: Floats, generator: np.random.Generator, *, deterministic: bool
) -> tuple[Floats, Floats]:
    noise: Floats = np.zeros_like(means) if deterministic else generator.standard_normal(means.shape, dtype=np.float32)
    log_probs: Floats = -(0.5 * noise * noise + log_std + np.float32(_HALF_LOG_TAU)).sum(axis=1)
    centre, reach = spaces.centre_and_reach()
    actions: Floats = (centre + reach * (means + np.exp(log_std) * noise)).astype(np.float32, copy=False)
    return actions, log_probs


def _features(spaces: Spaces, weights: Weights, images: Observations) -> Floats:
    """Convolutions as matrix products over unrolled windows; channels last throughout."""
    hidden: Observations = images
    scale = np.float32(1 / 255)
    for index, layer in enumerate(convolutions(spaces)):
        span = (layer.kernel, layer.kernel)
        windows = np.lib.stride_tricks.sliding_window_view(hidden, span, axis=(1, 2))[
            :, :: layer.stride, :: layer.stride
        ]
        count, height, width = windows.shape[:3]
        rows = windows.astype(np.float32, order="C").reshape(count * height * width, -1)
        kernel = weights[f"features/conv{index}/weight"].reshape(layer.channels, -1) * scale
        hidden = np.maximum(rows @ kernel.T + weights[f"features/conv{index}/bias"], 0)
        hidden = hidden.reshape(count, height, width, layer.channels)
        scale = np.float32(1)
    flat = hidden.reshape(len(images), -1)
    result: Floats = np.maximum(flat @ weights["features/flat/weight"].T + weights["features/flat/bias"], 0)
    return result
