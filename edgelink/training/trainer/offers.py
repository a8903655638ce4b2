"""New weights, told to each worker as they are made, and not piled up towards one that does not answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from edgelink.training.trainer.experience.weights_codec import MOST_DIFFERENCES, Offer
from edgelink.training.trainer.slots import Slot

_KEPT = MOST_DIFFERENCES + 1  # a chain of differences to the newest


class Caller(Protocol):
    """What is needed of the crew."""

    def call(self, slot: Slot, method: str, *arguments: Any) -> Any: ...
    def forget(self, answer: Any) -> None: ...


@dataclass(frozen=True)
class Told:
    """One version on its way to one worker: made and answered by the driver's clock, noted by the worker's own."""

    made_s: float
    noted_s: float
    answered_s: float
    enclosed_bytes: int  # of weights that came with it


@dataclass
class _Way:
    """To one worker."""

    slot: Slot
    # By answers that have not come: when the version was made, and how much of it went along.
    under_way: dict[Any, tuple[float, int]] = field(default_factory=dict)
    kept: deque[tuple[Offer, float]] = field(default_factory=lambda: deque(maxlen=_KEPT))  # the newest, for later


class Offers:
    """An offer holds its pieces in Ray's memory until it is answered: of a node that is out of reach, a few are."""

    def __init__(self, crew: Caller, max_policy_lag: int, clock: Callable[[], float]) -> None:
        """So many and one more are under way at once: with one at a time, a link longer than an update would break each
        chain of differences; and by whom more are left unanswered, nothing comes that is young enough."""
        self._crew = crew
        self._clock = clock
        self._at_once = max_policy_lag + 1
        self._ways: dict[int, _Way] = {}  # by pair

    @property
    def answers(self) -> dict[Any, int]:
        """What is waited for, and of which pair."""
        return {answer: pair for pair, way in self._ways.items() for answer in way.under_way}

    def tell(self, pair: int, slot: Slot, offer: Offer) -> None:
        """Now, or when one before has been answered; what was left over by then is told no more.

        Raises:
            WorkerLostError: there is no such worker at present.
        """
        way = self._ways.setdefault(pair, _Way(slot))
        way.kept.append((offer, self._clock()))
        self._go_on(way)

    def answered(self, pair: int, answer: Any, noted_s: float) -> Told:
        """The worker has taken note, at this moment of its own clock. Raises WorkerLostError likewise."""
        way = self._ways[pair]
        made_s, enclosed_bytes = way.under_way.pop(answer)
        told = Told(made_s, noted_s, self._clock(), enclosed_bytes)
        self._go_on(way)
        return told

    def unanswered_s(self, pair: int) -> float:
        """How long the oldest offer that is under way to the worker has been waited for. 0: none is under way."""
        way = self._ways.get(pair)
        began = [made_s for made_s, _ in way.under_way.values()] if way is not None else []
        return self._clock() - min(began) if began else 0.0

    def lost(self, pair: int) -> None:
        """The worker is gone."""
        if (way := self._ways.pop(pair, None)) is not None:
            for answer in way.under_way:
                self._crew.forget(answer)

    def _go_on(self, way: _Way) -> None:
        while way.kept and len(way.under_way) < self._at_once:
            offer, made_s = way.kept.popleft()
            way.under_way[self._crew.call(way.slot, "offer_weights", offer)] = made_s, len(offer.enclosed)
