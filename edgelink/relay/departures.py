"""Who has left the network, by its own word. Its lease is kept until the operator frees it."""

from __future__ import annotations

from edgelink.clock import Clock
from edgelink.relay.database import Database


class Departures:
    """The table of them; goes with the lease."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def all(self) -> frozenset[str]:
        """Node ids."""
        return frozenset(row["node_id"] for row in self._database.rows("SELECT node_id FROM departures"))

    def note(self, node_id: str) -> None:
        """Nothing for one that holds no lease any more."""
        self._database.execute(
            "INSERT OR IGNORE INTO departures SELECT node_id, ? FROM leases WHERE node_id = ?",
            self._clock.now().isoformat(),
            node_id,
        )

    def forget(self, node_id: str) -> None:
        self._database.execute("DELETE FROM departures WHERE node_id = ?", node_id)
