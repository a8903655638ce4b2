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
# Of a node's new password at the broker, in :mod:`edgelink.member.renewal` and :mod:`edgelink.relay.renewals`.
RENEWAL_POINTS = (
    "renew.begun",  # it is on the node's disk
    "renew.written",  # in a transaction of the registry that is not committed
    "renew.committed",  # the broker still has the former one
    "renew.finished",  # the node has forgotten the former one
)
# Of a change of the network's secret, in :mod:`edgelink.relay.rotations`.
ROTATION_POINTS = (
    "revoke.released",  # the node holds nothing any more, in a transaction that is not committed
    "revoke.recorded",  # so is that it was revoked
    "rotate.begun",
    "rotate.hastened",  # no robot holds it up any more
    "rotate.commit",
    "rotate.seen",  # a node says that it uses the new secret
)


def _go_on(_point: str) -> None:
    """What happens in a daemon."""


on_reached: Callable[[str], None] = _go_on  # replaced by tests, in their own process


def reached(point: str) -> None:
    """Say that one of these points was reached."""
    on_reached(point)
