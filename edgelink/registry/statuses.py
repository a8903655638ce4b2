"""What the nodes last said of themselves, as seen by one subscriber.

A status informs and never commands, so it is not signed: the broker lets each node write its own topic only. After
the broker itself was away, Last Wills may have been lost with it; so a node that stays silent for a while after a new
session began is forgotten instead of being shown as it was.
"""

from __future__ import annotations

from pydantic import ValidationError

from edgelink.registry.payloads import NodeStatus

SILENCE_S = 30.0  # a node's longest pause between two tries to come back, several times over


class StatusBoard:
    """The newest status of each node."""

    def __init__(self) -> None:
        self.statuses: dict[str, NodeStatus] = {}
        self._heard: set[str] = set()

    def begin_session(self) -> None:
        """A new session began: its retained messages say anew who is there."""
        self._heard.clear()

    def receive(self, node_id: str, payload: bytes) -> NodeStatus | None:
        """Take a message from ``node_id``'s topic, which says this; None when it is empty (the node was released),
        malformed or about another node."""
        if not payload:
            self.forget(node_id)
            return None
        try:
            status = NodeStatus.model_validate_json(payload)
        except ValidationError:
            return None
        if status.node_id != node_id:
            return None
        if not _is_anothers_end(status, self.statuses.get(node_id)):
            self.statuses[node_id] = status
            self._heard.add(node_id)
        return status

    def forget(self, node_id: str) -> None:
        self.statuses.pop(node_id, None)

    def forget_silent(self) -> bool:
        """Drop nodes not heard of in this session; True when there were any."""
        silent = self.statuses.keys() - self._heard
        for node_id in silent:
            del self.statuses[node_id]
        return bool(silent)


def _is_anothers_end(status: NodeStatus, known: NodeStatus | None) -> bool:
    """The end of another life of its daemon, or of a copy's, than the one that speaks."""
    if status.online or known is None or not known.online or None in (status.instance, known.instance):
        return False
    return status.instance != known.instance
