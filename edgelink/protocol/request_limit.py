"""How many requests are looked at: of one node, to enrol under one token, and altogether.

Generous to a fleet that comes up at once, and a bound on what one stolen token can cost the relay. What exceeds it is
dropped; who means it asks again after two seconds.
"""

from __future__ import annotations

from edgelink.clock import Clock
from edgelink.rate import RateLimit, exceeded


class RequestLimit:
    """Of requests to enrol, or of those of nodes; by the monotonic clock."""

    PER_NODE = (1.0, 5)  # requests a second, and at once
    PER_TOKEN = (100.0, 256)
    ALL = (200.0, 512)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._all, self._nodes = RateLimit(*self.ALL), RateLimit(*self.PER_NODE)
        self._tokens = RateLimit(*self.PER_TOKEN)

    def exceeded(self, token_id: str | None, node_id: str) -> str | None:
        """Return the limit that this request exceeds: ``all``, ``node`` or ``token``. None: it counts and may pass.

        ``token_id`` is None for a request of a node.
        """
        limits = {"all": (self._all, "all"), "node": (self._nodes, node_id)}
        if token_id is not None:
            limits["token"] = (self._tokens, token_id)
        return exceeded(limits, self._clock.monotonic_s())
