"""How often something may happen, by the monotonic clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping

_SLACK = 1e-6  # of one passage: sums of floating-point numbers are not exact


class RateLimit:
    """Lets each key pass ``at_once`` times, and ``a_s`` times a second after that.

    A key costs one number: the time at which its whole allowance is there again (GCRA). Beyond ``most_keys`` the key
    that was asked about longest ago is forgotten.
    """

    def __init__(self, a_s: float, at_once: int, *, most_keys: int = 8192) -> None:
        self._each_s = 1 / a_s
        self._at_once = at_once
        self._most_keys = most_keys
        self._whole_at_s: OrderedDict[Hashable, float] = OrderedDict()  # the key asked about longest ago first

    def __len__(self) -> int:
        """How many keys are remembered."""
        return len(self._whole_at_s)

    def wait_s(self, key: Hashable, at_s: float) -> float:
        """Return how long ``key`` has to wait. Zero: it may pass now."""
        if key not in self._whole_at_s:
            return 0.0
        self._whole_at_s.move_to_end(key)
        left_s = self._whole_at_s[key] - at_s - (self._at_once - 1) * self._each_s
        return left_s if left_s > _SLACK * self._each_s else 0.0

    def take(self, key: Hashable, at_s: float) -> None:
        """Count one passage, also of a key that would have to wait."""
        self._whole_at_s[key] = max(self._whole_at_s.pop(key, at_s), at_s) + self._each_s
        if len(self._whole_at_s) > self._most_keys:
            self._whole_at_s.popitem(last=False)

    def passes(self, key: Hashable, at_s: float) -> bool:
        """Return whether ``key`` may pass now, and count it if so."""
        return exceeded({"": (self, key)}, at_s) is None


def exceeded(limits: Mapping[str, tuple[RateLimit, Hashable]], at_s: float) -> str | None:
    """Return the name of the first limit whose key has to wait. None: it may pass, and counts for all of them.

    What is dropped for one limit does not count for the others.
    """
    for name, (limit, key) in limits.items():
        if limit.wait_s(key, at_s):
            return name
    for limit, key in limits.values():
        limit.take(key, at_s)
    return None
