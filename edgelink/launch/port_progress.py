"""Whether anything moves on the ports of an app; pure."""

from __future__ import annotations

from collections.abc import Mapping

from edgelink.launch.app_connections_asked import Ends


class PortProgress:
    """Watches one app's ports. Nothing is stuck that has not moved before, nor while a node does not answer."""

    def __init__(self, stuck_after_s: float) -> None:
        self._stuck_after_s = stuck_after_s
        self._seen: Mapping[Ends, int] = {}
        self._moved_s: float | None = None

    def is_stuck(self, seen: Mapping[Ends, int], now_s: float, *, all_answer: bool) -> bool:
        """Take one look, and return whether nothing has moved for too long."""
        has_moved = any(count > self._seen.get(ends, 0) for ends, count in seen.items())
        self._seen = seen
        if has_moved or (self._moved_s is not None and not all_answer):
            self._moved_s = now_s
        return self._moved_s is not None and now_s - self._moved_s >= self._stuck_after_s

    def forget(self) -> None:
        """The app, or who talks to it, was started anew."""
        self._seen, self._moved_s = {}, None
