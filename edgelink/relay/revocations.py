"""Whose keys were put out of the network, for ever: what they ask for is refused, whatever token they bring."""

from __future__ import annotations

from edgelink.clock import Clock
from edgelink.errors import RegistryError
from edgelink.protocol.payloads import Lease
from edgelink.relay.database import Database
from edgelink.relay.records import Revocation


class Revocations:
    """The table of them, for changes inside of the caller's transaction."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def put(self, lease: Lease, why: str) -> None:
        """The holder of this lease is out; ``why`` is shown to people."""
        self._database.execute(
            "INSERT OR IGNORE INTO revocations VALUES (?, ?, ?, ?, ?, ?, ?)",
            lease.node_id,
            lease.verify_key,
            lease.hostname,
            str(lease.overlay_ip),
            lease.preferred_rank,
            self._clock.now().isoformat(),
            why,
        )

    def put_stranger(self, node_id: str, why: str) -> None:
        """Somebody who holds no lease here is out: all that is known is the fingerprint of the key."""
        self._database.execute(
            "INSERT OR IGNORE INTO revocations VALUES (?, '', ?, '0.0.0.0', NULL, ?, ?)",
            node_id,
            node_id,
            self._clock.now().isoformat(),
            why,
        )

    def find(self, node: str) -> Revocation | None:
        """By node_id, or the newest that had this hostname."""
        found = [item for item in self.all() if node in (item.node_id, item.hostname)]
        return found[-1] if found else None

    def get(self, node_id: str) -> Revocation | None:
        return self._database.record(Revocation, "SELECT * FROM revocations WHERE node_id = ?", node_id)

    def all(self) -> list[Revocation]:
        """Oldest first."""
        return self._database.records(Revocation, "SELECT * FROM revocations ORDER BY rowid")

    def refuse(self, node_id: str) -> None:
        """Raises RegistryError when this node was put out."""
        revocation = self.get(node_id)
        if revocation is not None:
            raise RegistryError(
                f"the key of this machine ({node_id}, {revocation.hostname}) was put out of the network at "
                f"{revocation.revoked_at:%Y-%m-%d %H:%M} UTC: {revocation.why}",
                hint="if that machine is to come back, it needs a new key: remove its state directory and join with a "
                "new token",
                reason="NodeRevoked",
            )
