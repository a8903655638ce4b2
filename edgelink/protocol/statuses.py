"""What the nodes last said of themselves, as seen by one subscriber.

A status informs and never commands, so it is not signed: the broker lets each node write its own topic only. After
the broker itself was away, Last Wills may have been lost with it; so a node that stays silent for a while after a new
session began is forgotten instead of being shown as it was. A metered node is given longer: it notices by its next
keepalive only that its connection is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.protocol.payloads import NodeStatus
from edgelink.protocol.transport import KEEPALIVE_S, METERED_KEEPALIVE_S

SILENCE_S = 2.0 * KEEPALIVE_S  # a node's longest pause between two tries to come back, several times over
LEASED = "Leased"  # the condition of a node that tells of its lease
WAITS = "LeaseChangeWaits"  # its reason while something on it uses the one that it has
METERED_SILENCE_S = 3.0 * METERED_KEEPALIVE_S


def waiting_for_lease(statuses: Iterable[NodeStatus]) -> set[str]:
    """The nodes, by node id, that say that they go on with a lease that was changed; pure."""
    return {
        status.node_id
        for status in statuses
        if status.online and any((c.type, c.reason) == (LEASED, WAITS) for c in status.conditions)
    }


class StatusBoard:
    """The newest status of each node.

    ``online``, ``metered`` and ``waiting`` (for a lease) have the ids of the nodes that say so, ``lost`` the ids of
    those that the broker lost; the sets change only when a status says otherwise. ``stopped`` has those that said so in
    this session: between two of them a node can be back.
    """

    def __init__(self) -> None:
        self.statuses: dict[str, NodeStatus] = {}
        self.online: frozenset[str] = frozenset()
        self.metered: frozenset[str] = frozenset()
        self.waiting: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        self.stopped: frozenset[str] = frozenset()
        self._heard: set[str] = set()

    def begin_session(self) -> None:
        """A new session began: its retained messages say anew who is there."""
        self._heard.clear()
        self.stopped = frozenset()

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
        known = self.statuses.get(node_id)
        if not _is_anothers_end(status, known):
            if known is not None and not status.online:  # its last word is newer than its session's Last Will
                status = status.model_copy(update={"metered": known.metered})
            self.statuses[node_id] = status
            self._heard.add(node_id)
            self._note(node_id, status)
        return status

    def forget(self, node_id: str) -> None:
        self.statuses.pop(node_id, None)
        self._note(node_id, None)

    async def forget_silent(self, clock: Clock, on_change: Callable[[], None]) -> None:
        """Drop the nodes not heard of in this session, once they have had their time."""
        waited_s = 0.0
        for is_metered, patience_s in ((False, SILENCE_S), (True, METERED_SILENCE_S)):
            await clock.sleep(patience_s - waited_s)
            waited_s = patience_s
            silent = {
                node_id
                for node_id, status in self.statuses.items()
                if node_id not in self._heard and status.metered == is_metered and not status.is_stopped
            }
            for node_id in silent:
                self.forget(node_id)
            if silent:
                on_change()

    def _note(self, node_id: str, status: NodeStatus | None) -> None:
        says = {
            "online": status is not None and status.online,
            "lost": status is not None and not status.online and not status.is_stopped,
            "stopped": status is not None and status.is_stopped,
            "metered": status is not None and status.metered,
            "waiting": status is not None and bool(waiting_for_lease([status])),
        }
        for name, is_so in says.items():
            known: frozenset[str] = getattr(self, name)
            if (node_id in known) is not is_so:
                setattr(self, name, known ^ {node_id})


def _is_anothers_end(status: NodeStatus, known: NodeStatus | None) -> bool:
    """The end of another life of its daemon, or of a copy's, than the one that speaks."""
    if status.online or known is None or not known.online or None in (status.instance, known.instance):
        return False
    return status.instance != known.instance
