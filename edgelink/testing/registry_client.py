"""A client of the registry for tests, with a board of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelink.clock import Clock
from edgelink.facts.facts import Facts
from edgelink.member.registry_client import RegistryClient
from edgelink.protocol.inbox import Inbox
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership
from edgelink.protocol.outgoing import Outbox
from edgelink.protocol.payloads import ClusterSpec, Directory, NodeStatus
from edgelink.testing.facts import GivenBoard, board_with

ADMITTED = Admission(may_start=True, is_accepted=True)


class LoneClient(RegistryClient):
    """The client of a node that is admitted; ``facts`` is what it has learned."""

    def __init__(
        self, membership: Membership, key: NodeKey, clock: Clock, *, board: GivenBoard | None = None, **more: Any
    ) -> None:
        self.board = board_with(membership=membership, admission=ADMITTED) if board is None else board
        self.outbox = Outbox()
        given: dict[str, Any] = {"store": self, "outbox": self.outbox, "reports": NoReports()}
        inboxes = {"easytier_deaths": Inbox(), "silences": Inbox()}
        super().__init__(self.board, key, clock, **{**given, **inboxes, **more})

    @property
    def facts(self) -> Facts:
        return self.board.facts

    @property
    def directory(self) -> Directory | None:
        """Who holds which lease."""
        return self.facts.directory

    @property
    def cluster_spec(self) -> ClusterSpec | None:
        """The head's newest word."""
        return self.facts.cluster_spec

    @property
    def statuses(self) -> Mapping[str, NodeStatus]:
        """The newest status of each node."""
        return self.facts.statuses.rows

    @property
    def ignored_messages(self) -> int:
        """How many were not believed."""
        return self.refusals.total

    def reload(self) -> None:
        """Nobody renews the membership beside the test."""


class NoReports:
    """Nobody makes or gathers reports."""

    def take_request(self, payload: bytes) -> None:
        """Make none."""

    def take_reply(self, node_id: str, payload: bytes) -> None:
        """Wait for none."""
