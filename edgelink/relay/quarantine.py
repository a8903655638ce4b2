"""What released nodes held rests for a while: a machine that goes on with it unawares would share it with its next
holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from ipaddress import IPv4Address

from edgelink.clock import Clock
from edgelink.protocol.payloads import Lease
from edgelink.relay.database import Database
from edgelink.relay.records import Rest


class Quarantine:
    """The table of what rests, for changes inside of the caller's transaction."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def put(self, lease: Lease, until: datetime | None) -> None:
        """What a lease that was just taken away held is nobody's before ``until`` (by our clock); None: ever."""
        for kind, value in held_by(lease).items():
            if (kind, value) != ("rank", "0"):  # the head's, whoever it is
                self._database.execute(
                    "INSERT OR REPLACE INTO quarantine VALUES (?, ?, ?, ?, ?)",
                    kind,
                    value,
                    lease.node_id,
                    lease.hostname,
                    until.isoformat() if until else None,
                )

    def prolong(self, node_id: str, until: datetime, *, slack: timedelta) -> None:
        """What rests of a node rests ``until`` then; as it was where that is less than ``slack`` later, or for ever."""
        before = (until - slack).isoformat()
        if self._database.row("SELECT 1 FROM quarantine WHERE node_id = ? AND until < ?", node_id, before):
            self._database.execute(
                "UPDATE quarantine SET until = ? WHERE node_id = ? AND until < ?", until.isoformat(), node_id, before
            )

    def resting(self) -> list[Rest]:
        """What rests now, in the order in which it was given up: what is put anew, or in place of another, is last."""
        now = self._clock.now()
        rests = self._database.records(Rest, "SELECT * FROM quarantine ORDER BY rowid")
        return [rest for rest in rests if rest.until is None or rest.until > now]

    def end(self, node: str) -> list[Rest]:
        """Free now what rests of a node, by its hostname or node_id; what that was."""
        ended = [rest for rest in self.resting() if node in (rest.node_id, rest.hostname)]
        for rest in ended:
            self._free(rest.kind, rest.value)
        return ended

    def for_good(self) -> list[IPv4Address]:
        """Addresses of revoked nodes, which only the operator's word gives to others; the newest last."""
        rows = self._database.rows(
            "SELECT value FROM quarantine WHERE kind = 'overlay_ip' AND until IS NULL ORDER BY rowid"
        )
        return [IPv4Address(row["value"]) for row in rows]

    def forget(self, lease: Lease) -> None:
        """What somebody holds does not rest."""
        for kind, value in held_by(lease).items():
            self._free(kind, value)

    def _free(self, kind: str, value: str) -> None:
        if kind == "overlay_ip":  # all nodes are told of those that rest for good: that is another text now
            self._database.execute(
                "UPDATE network SET state_number = state_number + 1 WHERE EXISTS "
                "(SELECT 1 FROM quarantine WHERE kind = 'overlay_ip' AND value = ? AND until IS NULL)",
                value,
            )
        self._database.execute("DELETE FROM quarantine WHERE kind = ? AND value = ?", kind, value)


def held_by(lease: Lease) -> Mapping[str, str]:
    """What nobody else may hold."""
    held = {"hostname": lease.hostname, "overlay_ip": str(lease.overlay_ip)}
    return held if lease.preferred_rank is None else {**held, "rank": str(lease.preferred_rank)}
