"""Where a rollout worker's new weights come in: a thread fetches and decodes them while another one acts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgelink.training.trainer.experience.pieces import Fetch, coming, joined
from edgelink.training.trainer.experience.weights_codec import (
    MOST_DIFFERENCES,
    Offer,
    Patterns,
    decode,
    way_to_newest,
)
from edgelink.training.trainer.learning.policy import Weights

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0  # until what could not be fetched is tried again
_TRIES = 3  # in a row, of a version of which there are some pieces already


@dataclass
class _Transfer:
    """One version on its way."""

    offer: Offer
    is_whole: bool
    offered_s: float
    pieces: dict[int, bytes] = field(default_factory=dict)  # that have come, by their place
    failures: int = 0  # since the last one came

    @property
    def is_enclosed(self) -> bool:
        return bool(self.offer.enclosed) and not self.is_whole

    @property
    def names(self) -> Sequence[Any]:
        """What its pieces are fetched by."""
        return () if self.is_enclosed else self.offer.whole if self.is_whole else self.offer.difference

    @property
    def content(self) -> bytes:
        return self.offer.enclosed if self.is_enclosed else joined(self.pieces)


class Inbox:
    """The newest weights at hand; ``fetch`` gets pieces by what an offer names them with."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._offers: dict[int, tuple[Offer, float]] = {}  # by version, with when it came
        self._transfer: _Transfer | None = None
        self._condition = threading.Condition()
        self._patterns: tuple[int, Patterns] | None = None
        self._policy: tuple[int, Weights] | None = None
        self._is_news = False
        self.fetched_bytes = 0
        self.fetch_s = 0.0  # from the offer of the weights that are in force until they were
        threading.Thread(target=self._run, name="weights", daemon=True).start()

    def offer(self, offer: Offer) -> None:
        """There is this version now; returns at once."""
        with self._condition:
            self._offers[offer.version] = offer, time.monotonic()
            for version in sorted(self._offers)[: -MOST_DIFFERENCES - 1]:
                del self._offers[version]
            self._is_news = True
            self._condition.notify_all()

    @property
    def policy(self) -> tuple[int, Weights] | None:
        """Version and weights to act by; None before the first have come."""
        return self._policy  # replaced as a whole, so reading takes no lock

    @property
    def newest_offered(self) -> int:
        """The learner's version, as far as is known here; its weights may still be on their way."""
        with self._condition:
            return max(self._offers, default=0)

    def wait_for(self, version: int | None, timeout_s: float | None = None) -> tuple[int, Weights]:
        """Return the newest weights, once they are at least of ``version`` (None: of any), or after ``timeout_s``.

        The first weights are waited for in any case.
        """

        def is_there() -> bool:
            return self._policy is not None and (version is None or self._policy[0] >= version)

        with self._condition:
            if timeout_s is not None:
                self._condition.wait_for(is_there, timeout_s)
                version = None
            self._condition.wait_for(is_there)
            assert self._policy is not None
            return self._policy

    def _run(self) -> None:
        pause_s: float | None = None  # after a failure; an offer ends it
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_news, pause_s)
                self._is_news = False
            try:
                while (transfer := self._under_way()) is not None:
                    self._take(transfer)
                pause_s = None
            except Exception as error:
                # After an outage, or because a learner is gone. Without them nobody acts: there may be no next offer.
                self._failed()
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s) if pause_s else _FIRST_PAUSE_S
                print(f"new weights could not be fetched, again in {pause_s:.0f} s: {error}", flush=True)

    def _under_way(self) -> _Transfer | None:
        """What is being fetched. It is finished before anything newer is begun: over a slow link, with a new version
        again and again, none would ever come whole otherwise."""
        if self._transfer is None:
            with self._condition:
                offers = dict(self._offers)
            have = self._patterns[0] if self._patterns else None
            for offer, is_whole in way_to_newest(have, [offer for offer, _ in offers.values()])[:1]:
                self._transfer = _Transfer(offer, is_whole, offers[offer.version][1])
        return self._transfer

    def _take(self, transfer: _Transfer) -> None:
        for piece in coming(transfer.names, transfer.pieces, self._fetch):
            transfer.failures = 0
            self.fetched_bytes += len(piece)
        self._transfer = None
        if transfer.is_enclosed:
            self.fetched_bytes += len(transfer.offer.enclosed)
        base = None if transfer.is_whole or self._patterns is None else self._patterns[1]
        patterns = decode(transfer.content, base)
        weights = patterns.weights()
        with self._condition:
            self._patterns = transfer.offer.version, patterns
            self._policy = transfer.offer.version, weights
            self.fetch_s = time.monotonic() - transfer.offered_s
            self._condition.notify_all()

    def _failed(self) -> None:
        """What has come is kept, and the rest asked for again, unless that has been of no use several times."""
        if (transfer := self._transfer) is not None:
            transfer.failures += 1
            if transfer.pieces and transfer.failures < _TRIES:
                return
        self._transfer = self._patterns = None  # what is missing may be a difference: the newest whole is tried then
