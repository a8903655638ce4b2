"""What PPO minimises, in torch: the clipped objective with the proximal policy apart from the one that acted.

The decoupled objective of Hilton et al. (2022): clipping keeps an update near the learner's own policy at its start
(the proximal one), and each sample weighs by how much likelier that one would have acted so than the policy that did.
"""

from __future__ import annotations

import math
from typing import Any

from edgelink.training.trainer.learning.networks import Networks
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces

FIGURES = 5  # policy loss, value loss, entropy, and these
KL, CLIPPED = 3, 4
MAX_LOG = 20.0  # of a probability ratio: beyond it, its exponential is as good as infinite
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


class Objective:
    """The loss of one minibatch."""

    def __init__(self, torch: Any, spaces: Spaces, settings: Settings) -> None:
        self._torch = torch
        self._settings = settings
        self._is_discrete = spaces.is_discrete
        inputs = [] if spaces.is_pixels else [spaces.features]
        self._widths = [*inputs, 1 if spaces.is_discrete else spaces.outputs, 1, 1, 1, 1, 1]

    def log_probs(self, scores: Any, log_std: Any, actions: Any) -> tuple[Any, Any]:
        """Of each action, and the entropy of each choice.

        Args:
            scores: outputs of the policy network.
            actions: numbers of discrete actions, or units of continuous ones.
        """
        if self._is_discrete:
            every = self._torch.log_softmax(scores, dim=1)
            found = every.gather(1, actions.reshape(-1, 1)).squeeze(1)
            return found, -(every.exp() * every).sum(dim=1)
        noise = (actions - scores) * (-log_std).exp()
        found = noise.square().sum(dim=1).mul(-0.5) - (log_std.sum() + _HALF_LOG_TAU * len(log_std))
        entropy = log_std.sum() + (_HALF_LOG_TAU + 0.5) * len(log_std)
        return found, entropy.expand(len(found))

    def loss(self, networks: Networks, part: Any, images: Any, figures: Any) -> Any:
        """Sum over the samples of ``part``.

        Args:
            images: the observations, where they are not in ``part``.
            figures: what the samples' figures are added to; None: they are of no interest.
        """
        torch, settings = self._torch, self._settings
        columns = part.split(self._widths, dim=1)
        observations = columns[0] if images is None else images
        actions, *numbers = columns[-6:]
        proximal, importance, gains, returns, old_values = (column.squeeze(1) for column in numbers)
        scores, values, log_std = networks.forward(observations)
        log_probs, entropy = self.log_probs(scores, log_std, actions.long() if self._is_discrete else actions)
        # A sample of an older policy may lie far out where the policy has become narrow; an infinite ratio would be nan
        # in the gradient, and from there in every weight.
        log_ratio = (log_probs - proximal).clamp(-MAX_LOG, MAX_LOG)
        ratio = log_ratio.exp()
        clipped = ratio.clamp(1.0 - settings.clip, 1.0 + settings.clip)
        policy_loss = -(importance * torch.minimum(ratio * gains, clipped * gains)).sum()
        errors = (values - returns).square()
        if settings.value_clip:
            near = old_values + (values - old_values).clamp(-settings.value_clip, settings.value_clip)
            errors = torch.maximum(errors, (near - returns).square())
        value_loss = errors.sum()
        loss = policy_loss + settings.value_cost * value_loss
        total_entropy = entropy.sum()
        if settings.entropy_bonus:
            loss = loss - settings.entropy_bonus * total_entropy
        if figures is not None:
            with torch.no_grad():
                moved = (ratio - 1 - log_ratio).sum()  # an estimate of the KL divergence that is never negative
                at_limit = ((ratio - 1).abs() > settings.clip).sum()
                figures += torch.stack([policy_loss, value_loss, total_entropy, moved, at_limit])
        return loss
