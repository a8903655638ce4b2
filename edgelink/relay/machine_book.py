"""On which machine each node runs, as the registry remembers it; decided in :mod:`edgelink.relay.claims`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from edgelink.clock import Clock
from edgelink.relay.claims import Recorded
from edgelink.relay.database import Database


class MachineBook:
    """The table of them; goes with the lease."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def get(self, node_id: str) -> Recorded | None:
        return self._database.record(Recorded, "SELECT * FROM machines WHERE node_id = ?", node_id)

    def put(self, node_id: str, instance: str, machine: Sequence[str]) -> None:
        """This life is the node, from now on; nothing for one that holds no lease any more."""
        self._database.execute(
            "INSERT INTO machines SELECT node_id, ?, ?, ? FROM leases WHERE node_id = ? ON CONFLICT (node_id) "
            "DO UPDATE SET instance = excluded.instance, machine = excluded.machine, since = excluded.since",
            instance,
            json.dumps(list(machine)),
            self._clock.now().isoformat(),
            node_id,
        )
