"""The only one that changes the membership of a daemon's own node, on disk and on the board."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from edgelink.config import Paths
from edgelink.facts.board import Board, Fact
from edgelink.files import Files
from edgelink.protocol.membership import Membership, update_membership

MEMBERSHIP: Final[Fact[Membership | None]] = Fact("membership")

Change = Callable[[Membership], Membership]


class MembershipStore:
    """Others write the file as well: `edgelink join` beside a daemon, and a relay and a head that share a machine."""

    def __init__(self, board: Board[Any], paths: Paths, files: Files) -> None:
        self._board = board
        self._paths = paths
        self._files = files
        self._commit = board.claim_durable(MEMBERSHIP, "membership store", self._save)

    def change(self, change: Change) -> Membership | None:
        """Change what is on disk, and show it. Return what is there then; None before the node is a member.

        Raises:
            NotRecordedError: no room on the disk; nothing has changed.
            RegistryError: the file is damaged. UntrustedError: somebody altered its lease.
        """
        return self._commit(change)

    def reload(self) -> Membership | None:
        """Show what is on disk. Raises RegistryError or UntrustedError as :meth:`change` does."""
        return self._commit(None)

    def _save(self, change: Change | None) -> Membership | None:
        found = (
            Membership.load(self._paths)
            if change is None
            else update_membership(self._paths, change, self._files.require)
        )
        known: Membership | None = self._board.facts.membership
        is_ours = found is not None and (known is None or _is_same_node(found, known))
        return found if is_ours else known  # a file that is gone, or another node's, is for the daemon's next start


def _is_same_node(one: Membership, other: Membership) -> bool:
    return (one.network_id, one.lease.node_id) == (other.network_id, other.lease.node_id)
