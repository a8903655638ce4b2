"""Where a rollout worker's new weights come in: a thread fetches and decodes them while another one acts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from edgelink.training.trainer.experience.weights_codec import (
    MOST_DIFFERENCES,
    Offer,
    Patterns,
    decode,
    way_to_newest,
)
from edgelink.training.trainer.learning.policy import Weights

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0  # until what could not be fetched is tried again
_AT_ONCE = 4  # chunks on their way: enough to fill a long link, and few enough to lose in an outage


class Inbox:
    """The newest weights at hand; ``fetch`` gets several chunks by what an offer names them with, and may block."""

    def __init__(self, fetch: Callable[[Sequence[Any]], Sequence[bytes]]) -> None:
        self._fetch = fetch
        self._offers: dict[int, Offer] = {}
        self._condition = threading.Condition()
        self._patterns: tuple[int, Patterns] | None = None
        self._policy: tuple[int, Weights] | None = None
        self._is_news = False
        self.fetched_bytes = 0
        self.fetch_s = 0.0  # from the newest offer until its weights were in force
        self._offered_s = 0.0
        threading.Thread(target=self._run, name="weights", daemon=True).start()

    def offer(self, offer: Offer) -> None:
        """There is this version now; returns at once."""
        with self._condition:
            self._offers[offer.version] = offer
            for version in sorted(self._offers)[: -MOST_DIFFERENCES - 1]:
                del self._offers[version]
            self._offered_s = time.monotonic()
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

    def wait_for(self, version: int | None) -> tuple[int, Weights]:
        """The newest weights, once they are at least of ``version``; None: of any."""

        def is_there() -> bool:
            return self._policy is not None and (version is None or self._policy[0] >= version)

        with self._condition:
            self._condition.wait_for(is_there)
            assert self._policy is not None
            return self._policy

    def _run(self) -> None:
        pause_s: float | None = None  # after a failure; an offer ends it
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._is_news, pause_s)
                self._is_news = False
                offered_s = self._offered_s
                offers = list(self._offers.values())
            have = self._patterns[0] if self._patterns else None
            try:
                for offer, is_whole in way_to_newest(have, offers):
                    self._take(offer, is_whole)
                self.fetch_s = time.monotonic() - offered_s
                pause_s = None
            except Exception as error:
                # After an outage, or because a learner is gone. Without them nobody acts: there may be no next offer.
                self._patterns = None  # what is missing may be a difference: the whole is tried then
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s) if pause_s else _FIRST_PAUSE_S
                print(f"new weights could not be fetched, again in {pause_s:.0f} s: {error}", flush=True)

    def _take(self, offer: Offer, is_whole: bool) -> None:  # noqa: FBT001
        names = offer.whole if is_whole else offer.difference
        pieces: list[bytes] = [offer.enclosed] if offer.enclosed and not is_whole else []
        if pieces:
            names = ()
        for start in range(0, len(names), _AT_ONCE):
            pieces += self._fetch(names[start : start + _AT_ONCE])
        content = b"".join(pieces)
        base = None if is_whole or self._patterns is None else self._patterns[1]
        patterns = decode(content, base)
        weights = patterns.weights()
        with self._condition:
            self.fetched_bytes += len(content)
            self._patterns = offer.version, patterns
            self._policy = offer.version, weights
            self._condition.notify_all()
