"""Messages that a part takes when it gets to it."""

from __future__ import annotations

from collections import deque

from edgelink.reconcile import Wakeup


class Inbox:
    """The newest messages that nodes have sent on their own topics: node id and payload, not verified.

    ``wakeup`` is set by each message. The oldest go where more than ``most`` wait.
    """

    def __init__(self, most: int = 100) -> None:
        self.wakeup = Wakeup()
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=most)

    def put(self, node_id: str, payload: bytes) -> None:
        self._waiting.append((node_id, payload))
        self.wakeup.set()

    def take_all(self) -> list[tuple[str, bytes]]:
        taken = list(self._waiting)
        self._waiting.clear()
        return taken
