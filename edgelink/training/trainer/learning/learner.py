"""The learner: PPO in torch, corrected for experience of older policies. A Ray actor; a plain class in tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgelink.training.trainer.experience.fragment import Floats, Fragment
from edgelink.training.trainer.failure import USAGE, TrainerError
from edgelink.training.trainer.learning.batch import actions_of, gains_and_values, observations_of
from edgelink.training.trainer.learning.device import chosen, why_unused
from edgelink.training.trainer.learning.finite import check_finite, diverged
from edgelink.training.trainer.learning.group import Alone, Group, Meeting
from edgelink.training.trainer.learning.networks import VALUE, Networks
from edgelink.training.trainer.learning.objective import CLIPPED, KL, MAX_LOG, Objective
from edgelink.training.trainer.learning.policy import Weights, normalised
from edgelink.training.trainer.learning.settings import AUTO, CPU, CUDA, LINEAR, Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.learning.statistics import (
    Moments,
    discounted_sums,
    moments_of,
    normalisation,
    reward_scale,
)
from edgelink.training.trainer.learning.steps import RecordedSteps, Steps, recorder
from edgelink.training.trainer.whereabouts import Located

_LEAST_RATE = 0.1  # share of the learning rate that is left at the end of a linear schedule
_STOP_BEYOND = 1.5  # times target_kl
_ROUNDING = 1e-6  # share of the returns' size below which advantages are what float32 leaves of a difference
_SUMS = "sums/"  # in a checkpoint, with the pair's rank
_NO_PAIR = -1.0  # in a row that only makes one learner's as long as another's
_JUDGED_AT_ONCE = 4096  # observations that go through the networks together


@dataclass(frozen=True)
class Batch:
    """What one update learns from, on the learner's device; figures are over all learners."""

    images: Any  # (samples, height, width, channels); None where observations are numbers
    table: Any  # a row a sample: observation if numbers, action, and what Objective.loss takes apart
    samples: int
    importance: float
    truncated: float
    explained: float


@dataclass(frozen=True)
class Update:
    """The policy after one iteration and what the iteration was like."""

    version: int
    weights: Weights
    policy_loss: float = 0.0
    value_loss: float = 0.0
    entropy: float = 0.0
    kl: float = 0.0  # from the policy before the update to the one after, in nats
    clipped: float = 0.0  # share of samples whose probability moved as far as it may
    importance: float = 1.0  # mean weight of the samples: 1 where none is of an older policy
    truncated: float = 0.0  # share of samples whose weight was cut to the limit
    explained: float = 0.0  # share of the variance of returns that the values foretold
    learning_rate: float = 0.0
    samples: int = 0


class Learner(Located):
    """Holds the networks and the optimiser. ``update`` may be retried: a repeated iteration is not learned twice.

    Of several learners each gets a share of the fragments; together they make the very update that one would make of
    all. The first one calls ``meet``, then all call ``join``; every update needs all of them.

    Args:
        rank: among the ``world`` learners.
    """

    def __init__(self, settings: Settings, spaces: Spaces, rank: int = 0, world: int = 1) -> None:
        import torch

        torch.set_num_threads(settings.threads)  # the nets are tiny: more threads only fight over the cores
        self._torch = torch
        self._spaces = spaces
        self._settings = settings = settings.completed(spaces)
        self._device = chosen(torch, settings.device)
        log_std = max(settings.initial_log_std or 0.0, settings.least_log_std)
        self._networks = Networks(torch, spaces, tuple(settings.hidden), settings.seed, self._device, log_std)
        self._rank, self._world = rank, world
        self._generator = np.random.default_rng([settings.seed, rank])
        self._seen = Moments(spaces.features) if settings.normalise_observations and not spaces.is_pixels else None
        self._rewards = Moments(1) if settings.normalise_rewards else None
        self._sums: dict[int, Any] = {}  # of past rewards, where the last fragment of each pair ended
        self._objective = Objective(torch, spaces, settings)
        parts = torch, self._networks, self._objective, settings
        self._steps = RecordedSteps(*parts, recorder(torch)) if self._device.type == CUDA else Steps(*parts)
        self._group: Alone = Alone()
        self._meeting: Meeting | None = None
        self._iteration = 0
        self._latest = Update(0, self._weights())

    def meet(self, host: str) -> str:
        """Where the learners find each other: ``host``, this node's overlay address, and a port."""
        if self._meeting is None:
            self._meeting = Meeting(host, self._world, self._settings.patience_s)
        return self._meeting.rendezvous

    def join(self, rendezvous: str) -> str:
        """Become one of the group; returns when all have. What slows the group down, for people."""
        if self._group.world != self._world:
            place = self._rank, self._world, rendezvous, self._device, self._meeting
            self._group = Group(self._torch, *place, self._settings.patience_s)
        return self._group.notice

    def leave(self) -> None:
        """Let go of the group; for processes that go on without it."""
        self._group.close()
        self._group = Alone()

    def notice(self, kind: str) -> str:
        """What people should know of how it learns, being placed on an accelerator of this ``kind``."""
        is_unexpected = self._settings.device == AUTO and self._device.type == CPU
        return why_unused(self._torch, kind) if is_unexpected else ""

    def latest(self) -> Update:
        return self._latest

    def update(self, iteration: int, *fragments: Fragment) -> Update:
        """Learn from ``fragments``; iterations count from 1.

        Raises:
            NotFiniteError: one of them has numbers that are nan or infinite, or so have the networks after it.
        """
        if iteration == self._iteration:
            return self._latest
        if self._group.world != self._world:
            raise RuntimeError(f"this is one of {self._world} learners and has not joined the others")
        check_finite(fragments)
        # Other hardware, or another torch, begins with other networks and rounds otherwise: none drifts away.
        self._group.follow_first(self._networks.flat.detach())
        self._observe(fragments)
        batch = self._prepare(fragments)
        progress = min(1.0, (iteration - 1) / max(1, self._settings.total_iterations))
        fall = (1.0 - _LEAST_RATE) * progress if self._settings.schedule == LINEAR else 0.0
        rate = self._settings.learning_rate * (1.0 - fall)
        self._steps.set_rate(rate)
        losses = self._improve(batch)
        if not bool(self._networks.flat.isfinite().all()):  # before anybody acts by it
            raise diverged(f"the networks of iteration {iteration} are nan or infinite")
        self._iteration = iteration
        self._latest = Update(
            iteration,
            self._weights(),
            policy_loss=losses[0],
            value_loss=losses[1],
            entropy=losses[2],
            kl=losses[KL],
            clipped=losses[CLIPPED],
            importance=batch.importance,
            truncated=batch.truncated,
            explained=batch.explained,
            learning_rate=rate,
            samples=batch.samples,
        )
        return self._latest

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, as arrays."""
        arrays: dict[str, Any] = {
            "iteration": np.asarray(self._iteration),
            "spaces": np.asarray(self._spaces.to_json()),
            "random": np.asarray(json.dumps(self._generator.bit_generator.state)),
        }
        arrays |= {f"net/{name}": array for name, array in self._networks.arrays().items()}
        arrays |= {f"optimiser/{key}": array for key, array in self._steps.state().items()}
        for name, moments in (("observations", self._seen), ("rewards", self._rewards)):
            if moments is not None:
                arrays[f"normalisation/{name}"] = moments.row()
        return arrays | {f"{_SUMS}{rank}": sums for rank, sums in self._sums.items()}

    def load_state(self, arrays: Mapping[str, Any]) -> Update:
        """Go on from what ``state`` gave.

        Raises:
            TrainerError: it is of another task, of other networks, or of what is normalised otherwise.
        """
        self._take_networks(arrays)
        remembered = {
            key.removeprefix("optimiser/"): np.array(array)
            for key, array in arrays.items()
            if key.startswith("optimiser/")
        }
        self._steps.load_state(remembered)
        sums = {key: array for key, array in arrays.items() if key.startswith(_SUMS)}
        self._sums = {int(key.removeprefix(_SUMS)): np.array(array) for key, array in sums.items()}
        self._iteration = int(arrays["iteration"])
        if self._rank == 0:
            self._generator.bit_generator.state = json.loads(str(arrays["random"]))
        else:  # written by the first: the others draw anew
            self._generator = np.random.default_rng([self._settings.seed, self._rank, self._iteration])
        self._latest = Update(self._iteration, self._weights())
        return self._latest

    def begin_with(self, arrays: Mapping[str, Any]) -> Update:
        """Begin a training of its own with the networks and the normalisation of what ``state`` gave.

        Raises:
            TrainerError: as ``load_state``.
        """
        self._take_networks(arrays)
        self._latest = Update(0, self._weights())
        return self._latest

    def _take_networks(self, arrays: Mapping[str, Any]) -> None:
        moments = {"observations": self._seen, "rewards": self._rewards}
        _check_fits(arrays, self._spaces, self._networks)
        _check_normalisation(arrays, moments)
        self._networks.load({name: arrays[f"net/{name}"] for name in self._networks.shapes})
        self._networks.keep_wide(self._settings.least_log_std)
        for name, found in moments.items():
            if found is not None:
                found.load(arrays[f"normalisation/{name}"])

    def _observe(self, fragments: Sequence[Fragment]) -> None:
        """What is new about means and deviations, before it is learned from."""
        if self._seen is not None:
            count = sum(fragment.samples for fragment in fragments)
            self._merge(self._seen, observations_of(self._spaces, fragments)[:count])
        if self._rewards is not None:
            sums = [self._sums_of(fragment) for fragment in fragments]
            self._merge(self._rewards, np.concatenate([np.zeros(0), *sums])[:, None])
            self._share_sums([fragment.rank for fragment in fragments])

    def _sums_of(self, fragment: Fragment) -> Any:
        """Return the discounted sums at its steps, which go on from the fragment of the same pair before."""
        width = fragment.rewards.shape[1]
        before = self._sums.get(fragment.rank, np.zeros(0))
        ended = fragment.terminated | fragment.truncated
        sums, self._sums[fragment.rank] = discounted_sums(
            fragment.rewards, ended, self._settings.discount, before if len(before) == width else np.zeros(width)
        )
        return sums

    def _share_sums(self, ranks: Sequence[int]) -> None:
        """Tell the other learners where these pairs are: the next fragment of each may be dealt to another one."""
        if self._group.world == 1:
            return
        rows = [np.full((len(self._sums[rank]), 2), rank, np.float64) for rank in ranks]
        for row, rank in zip(rows, ranks, strict=True):
            row[:, 1] = self._sums[rank]
        own = np.concatenate([np.zeros((0, 2)), *rows])
        most = max(int(count[0]) for count in self._group.gather(np.asarray([len(own)])))
        padded = np.concatenate([own, np.full((most - len(own), 2), _NO_PAIR)])
        for found in self._group.gather(padded):
            for rank in np.unique(found[found[:, 0] != _NO_PAIR, 0]):
                self._sums[int(rank)] = found[found[:, 0] == rank, 1]

    def _merge(self, moments: Moments, rows: Any) -> Moments:
        for row in self._group.gather(moments_of(rows).row()):
            moments.merge_row(row)
        return moments

    def _prepare(self, fragments: Sequence[Fragment]) -> Batch:
        torch, settings, spaces = self._torch, self._settings, self._spaces
        samples = sum(fragment.samples for fragment in fragments)
        rows = observations_of(spaces, fragments)
        seen = rows if spaces.is_pixels else normalised(self._normalisation(), rows)
        observations = torch.from_numpy(np.ascontiguousarray(seen)).to(self._device)
        actions = torch.from_numpy(actions_of(spaces, fragments)).to(self._device)
        with torch.no_grad():
            judged = [self._networks.forward(part)[:2] for part in observations.split(_JUDGED_AT_ONCE)]
            scores, all_values = (torch.cat(parts) for parts in zip(*judged, strict=True))
            proximal, _ = self._objective.log_probs(scores[:samples], self._networks.log_std(), actions)
        gains, values = gains_and_values(
            fragments,
            all_values.cpu().numpy(),
            reward_scale=1.0 if self._rewards is None else reward_scale(self._rewards),
            discount=settings.discount,
            trace=settings.trace,
        )
        behaviour = np.concatenate([np.zeros(0), *(fragment.log_probs.reshape(-1) for fragment in fragments)])
        weights = np.exp(np.clip(proximal.cpu().numpy() - behaviour, -MAX_LOG, MAX_LOG))
        returns = gains + values
        is_cut = weights > settings.importance_limit
        known = self._merge(Moments(4), np.stack([gains, returns, weights, is_cut], axis=1))
        gain_deviation, return_deviation = (float(value) for value in known.deviation[:2])
        # Relative ones: rewards may be of any size.
        least = _ROUNDING * float(np.hypot(known.mean[1], return_deviation))
        numbers = np.stack(
            [
                np.minimum(weights, settings.importance_limit),
                (gains - known.mean[0]) / (max(gain_deviation, least) or 1.0),
                returns,
                values,
            ],
            axis=1,
        )
        columns = [(actions[:, None] if spaces.is_discrete else actions).float(), proximal[:, None]]
        columns.append(torch.from_numpy(numbers.astype(np.float32)).to(self._device))
        return Batch(
            observations[:samples] if spaces.is_pixels else None,
            torch.cat(columns if spaces.is_pixels else [observations[:samples], *columns], dim=1),
            samples=int(known.count),
            importance=float(known.mean[2]),
            truncated=float(known.mean[3]),
            explained=1.0 - (gain_deviation / return_deviation) ** 2 if return_deviation > least else 0.0,
        )

    def _improve(self, batch: Batch) -> list[float]:
        """Mean policy loss, value loss and entropy over the last pass, and how far the policy has moved."""
        torch, settings, steps = self._torch, self._settings, self._steps
        rounds = settings.rounds(batch.samples)  # as many with every learner
        steps.set_share(batch.samples / rounds)
        for epoch in range(settings.epochs):
            is_watched = settings.target_kl > 0 or epoch == settings.epochs - 1
            steps.figures.zero_()
            order = torch.from_numpy(self._generator.permutation(len(batch.table))).to(self._device)
            table = batch.table[order]
            orders = order.tensor_split(rounds)
            for part, indices in zip(table.tensor_split(rounds), orders, strict=True):
                images = None if batch.images is None else batch.images[indices]
                steps.take(part, images, self._group.add_up, is_watched=is_watched)
            if is_watched:
                self._group.add_up(steps.figures)
            if settings.target_kl > 0 and float(steps.figures[KL]) / batch.samples > _STOP_BEYOND * settings.target_kl:
                break
        return [value / batch.samples for value in steps.figures.tolist()]

    def _normalisation(self) -> dict[str, Floats]:
        return {} if self._seen is None else normalisation(self._seen)

    def _weights(self) -> dict[str, Floats]:
        """What the edges need; the first learner tells it for all."""
        if self._rank:
            return {}
        arrays = {name: array for name, array in self._networks.arrays().items() if not name.startswith(VALUE)}
        return arrays | self._normalisation()


def _check_fits(arrays: Mapping[str, Any], spaces: Spaces, networks: Networks) -> None:
    """Is the checkpoint of this task and of these networks?"""
    if "spaces" not in arrays:
        raise TrainerError(
            "the checkpoint is of an older version of the trainer", "begin anew, without --resume or --policy"
        )
    found = Spaces.from_json(str(arrays["spaces"]))
    if found != spaces:
        raise TrainerError(
            f"the checkpoint is of another task: {found}; this one has {spaces}",
            "name the task it was made with, or begin anew without --resume or --policy",
            exit_status=USAGE,
        )
    for name, shape in networks.shapes.items():
        there = arrays.get(f"net/{name}")
        if there is None or there.shape != shape:
            what = "none" if there is None else " x ".join(map(str, there.shape))
            raise TrainerError(
                f"the checkpoint is of other networks: {name} is {what} there, {' x '.join(map(str, shape))} here",
                "set algorithm.hidden as it was, or begin anew without --resume or --policy",
                exit_status=USAGE,
            )


def _check_normalisation(arrays: Mapping[str, Any], moments: Mapping[str, Moments | None]) -> None:
    """Networks that have learned from normalised numbers are of no use without, and the other way round."""
    for name, here in moments.items():
        is_there = f"normalisation/{name}" in arrays
        if is_there != (here is not None):
            raise TrainerError(
                f"the checkpoint is of {name} {'with' if is_there else 'without'} normalisation, and "
                f"algorithm.normalise_{name} is {str(not is_there).lower()}",
                f"set algorithm.normalise_{name}={str(is_there).lower()} as it was, or begin anew without --resume",
                exit_status=USAGE,
            )
