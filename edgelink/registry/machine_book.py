"""On which machine each node runs, as the registry remembers it; decided in :mod:`edgelink.registry.claims`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from edgelink.clock import Clock
from edgelink.registry.claims import Recorded
from edgelink.registry.database import Database


class MachineBook:
    """The table of them; goes with the lease."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def get(self, node_id: str) -> Recorded | None:
        row = self._database.row("SELECT * FROM machines WHERE node_id = ?", node_id)
        if row is None:
            return None
        return Recorded(row["instance"], tuple(json.loads(row["machine"])), datetime.fromisoformat(row["since"]))

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
