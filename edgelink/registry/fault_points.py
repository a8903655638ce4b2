"""Names for the moments between which a change of the registry must never be half done; tests end the process there.

In a daemon :func:`reached` does nothing, and nothing outside of the process can change that.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS = (
    "enrol.verified",  # who asks is known, nothing is written
    "enrol.granted",  # all is written, in a transaction that is not committed
    "enrol.committed",
    "enrol.replied",
    "release.written",
    "release.committed",
    "change.written",
    "change.committed",
    "told.users",  # the broker's users are the store's again
    "told.documents",  # directory and leases are published
)


def _go_on(_point: str) -> None:
    """What happens in a daemon."""


on_reached: Callable[[str], None] = _go_on  # replaced by tests, in their own process


def reached(point: str) -> None:
    """Say that one of :data:`POINTS` was reached."""
    on_reached(point)
