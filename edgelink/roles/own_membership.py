"""The membership of a daemon's own node: what the daemon runs with, and what its next start will find on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgelink.config import Paths
from edgelink.files import Files
from edgelink.registry.membership import Membership, update_membership


@dataclass(frozen=True)
class OwnMembership:
    """For those parts of a daemon that change it.

    ``present``: what the daemon runs with; None before it is a member. ``use``: has the daemon run with another one.
    """

    present: Callable[[], Membership | None]
    use: Callable[[Membership], None]
    paths: Paths
    files: Files

    def on_disk(self) -> Membership | None:
        """Others write it, too: `edgelink join`, and the other parts of the daemon."""
        return Membership.load(self.paths)

    def record(self, change: Callable[[Membership], Membership]) -> Membership | None:
        """Change what is on disk; it is not in use by that.

        Raises as :func:`edgelink.registry.membership.update_membership`.
        """
        return update_membership(self.paths, change, self.files.require)
