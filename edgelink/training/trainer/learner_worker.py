"""The learner as a Ray actor: opens fragments, learns, and offers the new weights to the edges."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edgelink.training.trainer.accelerators import Accelerators
from edgelink.training.trainer.crew_checks import brief
from edgelink.training.trainer.experience.parcel import Payload, opened
from edgelink.training.trainer.experience.pieces import brought, chunks, fetch_by
from edgelink.training.trainer.experience.weights_codec import Offer, Patterns, encode
from edgelink.training.trainer.learning.device import lack_of_memory_told
from edgelink.training.trainer.learning.learner import Learner, Update
from edgelink.training.trainer.learning.settings import Settings
from edgelink.training.trainer.learning.spaces import Spaces
from edgelink.training.trainer.needs import check_modules
from edgelink.training.trainer.whereabouts import Located, Whereabouts

_SMALL_BYTES = 64 * 1024  # below what Ray takes out of a call to fetch it by itself


@dataclass(frozen=True)
class Made:
    """What the driver is told of a new version."""

    version: int
    offer: Offer
    figures: Mapping[str, float] = field(default_factory=dict)  # losses and the like
    enclosed: bytes = b""  # the difference, where it is small enough to go along with the offer
    float32_bytes: int = 0  # of the weights, as other trainers send them to each process


class LearnerWorker(Located):
    """``update`` may be retried: a repeated iteration is not learned twice."""

    def __init__(
        self,
        settings: Settings,
        spaces: Spaces,
        chunk_bytes: int,
        rank: int = 0,
        world: int = 1,
        accelerators: Accelerators | None = None,
    ) -> None:
        import ray

        self._put, self._get, self._fetch = ray.put, ray.get, fetch_by(ray)
        self._ray_error: type[Exception] = ray.exceptions.RayError
        self._chunk_bytes = chunk_bytes
        self._rank = rank
        self._arguments = settings, spaces, rank, world
        self._accelerators = accelerators or Accelerators()
        self._environment = dict(os.environ)  # the node's, as nobody else is in this process
        self._opened: Learner | None = None
        self._patterns: tuple[int, Patterns] | None = None
        self._made: Made | None = None

    @property
    def _learner(self) -> Learner:
        if self._opened is None:
            os.environ.update(self._accelerators.variables(self._environment))  # before torch is there to look
            check_modules("torch", "zstandard")
            with lack_of_memory_told():
                self._opened = Learner(*self._arguments)
        return self._opened

    def whereabouts(self) -> Whereabouts:
        """As first question to a worker, also the moment at which its learner is made.

        Not in the constructor: what goes wrong there reaches the driver as text only, without what to do.
        """
        learner, given = self._learner, self._accelerators
        return replace(super().whereabouts(), notice=learner.notice(given.kind) if given.indices else "")

    def meet(self, host: str) -> str:
        """Where several learners find each other: ``host``, this node's overlay address, and a port."""
        return self._learner.meet(host)

    def join(self, rendezvous: str) -> str:
        """Become one of several learners; returns when all have. What slows them down, for people."""
        return self._learner.join(rendezvous)

    def latest(self) -> Made:
        """The newest version, as a whole."""
        return self._offered(self._learner.latest())

    def hold(self, boxed: Sequence[Any]) -> tuple[str, Payload | None]:
        """Bring a fragment from where it was made to this node, where nothing that happens there can touch it; if it is
        a large one, piece by piece.

        Args:
            boxed: its reference, within a sequence: as an argument of its own, Ray would let later calls wait for it.

        Returns:
            Why it cannot be had (empty: it can), and the fragment.
        """
        try:
            return "", brought(self._get(boxed[0]), self._fetch)
        except self._ray_error as error:
            return brief(error), None

    def update(self, iteration: int, *payloads: Payload) -> Made | None:
        """Learn from ``payloads``; iterations count from 1. Of several learners only the first offers weights."""
        with lack_of_memory_told():
            update = self._learner.update(iteration, *(opened(payload) for payload in payloads))
        return self._offered(update) if self._rank == 0 else None

    def state(self) -> dict[str, Any]:
        """Everything needed to go on, as arrays."""
        return self._learner.state()

    def load_state(self, arrays: Mapping[str, Any]) -> Made | None:
        """Go on from what ``state`` gave."""
        self._patterns = None
        update = self._learner.load_state(arrays)
        return self._offered(update) if self._rank == 0 else None

    def begin_with(self, arrays: Mapping[str, Any]) -> Made | None:
        """Begin with the networks and the normalisation of what ``state`` gave."""
        self._made = self._patterns = None
        update = self._learner.begin_with(arrays)
        return self._offered(update) if self._rank == 0 else None

    def _offered(self, update: Update) -> Made:
        """Ray keeps the pieces as long as anybody has the offer, and each node fetches each piece once."""
        if self._made is not None and self._made.version == update.version:
            return self._made
        patterns, before = Patterns.of(update.weights), self._patterns
        whole = encode(patterns)
        difference = b"" if before is None else encode(patterns, before[1])
        offer = Offer(
            update.version,
            self._pieces(whole),
            None if before is None else before[0],
            self._pieces(difference) if difference else (),
            len(whole),
            len(difference),
        )
        self._patterns = update.version, patterns
        figures = {
            item.name: float(getattr(update, item.name))
            for item in fields(update)
            if item.name not in ("version", "weights")
        }
        float32_bytes = sum(4 * array.size for array in update.weights.values())
        enclosed = difference if len(difference) <= _SMALL_BYTES else b""
        self._made = Made(update.version, offer, figures, enclosed, float32_bytes)
        return self._made

    def _pieces(self, content: bytes) -> tuple[Any, ...]:
        return tuple(self._put(piece) for piece in chunks(content, self._chunk_bytes))
