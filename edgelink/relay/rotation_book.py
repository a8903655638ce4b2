"""What the registry remembers of its network's secret: the next one, when the network changes to it, and on which
secret each node was seen last. Each call is one transaction, on disk when it returns; what is to be done is decided in
:mod:`edgelink.relay.rotations`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import timedelta

from edgelink.clock import Clock
from edgelink.protocol.payloads import Lease
from edgelink.relay.database import Database
from edgelink.relay.rotation import RotationRecord, epoch_after, generation_after

_SECRET_BYTES = 32  # 256 bits


class RotationBook:
    """One network's; in the registry's database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def record(self) -> RotationRecord | None:
        """The change that is to come."""
        return self._database.record(RotationRecord, "SELECT * FROM rotation")

    def number(self) -> int:
        """Grows with each change of what is said to all nodes."""
        row = self._database.row("SELECT state_number FROM network")
        return row["state_number"] if row else 0

    def revoke_tokens(self, lease: Lease) -> None:
        """Every token that this lease's holder used or that is for its place, inside of the caller's transaction.

        Also one for its place that was made before the lease was changed, and fixes what it was before.
        """
        self._database.execute(
            "UPDATE tokens SET revoked_at = ? WHERE revoked_at IS NULL AND (token_id IN (SELECT token_id FROM "
            "token_uses WHERE node_id = ?) OR replaces = ? OR hostname = ? OR overlay_ip = ? OR rank = ?)",
            self._now(),
            lease.node_id,
            lease.node_id,
            lease.hostname,
            str(lease.overlay_ip),
            lease.preferred_rank,
        )

    def revoke_all_tokens(self) -> None:
        self._database.execute("UPDATE tokens SET revoked_at = ? WHERE revoked_at IS NULL", self._now())

    def begin(self, *, why: str, switch_in_s: float) -> RotationRecord:
        """Make a new secret, to which the network changes in ``switch_in_s``.

        It replaces another one that was to come: a node that was put out meanwhile may know that one.
        """
        with self._database.transaction():
            now = self._clock.now()
            record = RotationRecord(
                to_epoch=epoch_after(self.secret_epoch(), self.generation(), self.record()),
                next_secret=secrets.token_urlsafe(_SECRET_BYTES),
                why=why,
                started_at=now,
                switch_at=now + timedelta(seconds=switch_in_s),
            )
            self._database.execute("DELETE FROM rotation")
            self._database.execute(
                "INSERT INTO rotation VALUES (1, ?, ?, ?, ?, ?)",
                record.to_epoch,
                record.next_secret,
                record.why,
                record.started_at.isoformat(),
                record.switch_at.isoformat(),
            )
            self._changed()
        return record

    def hasten(self, switch_in_s: float) -> None:
        """Have the network change in ``switch_in_s``: no robot holds the change up any more."""
        now = self._clock.now()
        with self._database.transaction():
            self._database.execute(
                "UPDATE rotation SET started_at = ?, switch_at = ?",
                now.isoformat(),
                (now + timedelta(seconds=switch_in_s)).isoformat(),
            )
            self._changed()

    def commit(self) -> None:
        """From now on the network runs on the next secret."""
        with self._database.transaction():
            record = self.record()
            if record is None:
                return
            self._set_secret(record.next_secret, record.to_epoch)

    def seen_epochs(self) -> dict[str, int]:
        """The newest secret on which each node that holds a lease was seen, by node id. 0: on none yet."""
        rows = self._database.rows("SELECT node_id, secret_epoch FROM leases")
        return {row["node_id"]: row["secret_epoch"] for row in rows}

    def note_epochs(self, epochs: Mapping[str, int]) -> bool:
        """Write down on which secret nodes are seen, which only grows. Return whether something is news."""
        known = self.seen_epochs()
        news = [(epoch, node_id) for node_id, epoch in epochs.items() if known.get(node_id, epoch) < epoch]
        if news:  # as a rule nothing is written
            with self._database.transaction():
                for epoch, node_id in news:
                    self._database.execute("UPDATE leases SET secret_epoch = ? WHERE node_id = ?", epoch, node_id)
        return bool(news)

    def renew_after_restoration(self, *, epoch: int, generation: int, number: int) -> None:
        """A fresh secret, at once: the one of the backup is known to somebody who was put out since.

        Args:
            epoch, generation, number: the highest that a node was told before.
        """
        with self._database.transaction():
            known = self.generation()
            self._database.execute(
                "UPDATE network SET generation = ?, state_number = max(state_number, ?)",
                known if known > generation else generation_after(generation, self._clock.now()),
                number,
            )
            fresh = epoch_after(max(self.secret_epoch(), epoch), self.generation(), self.record())
            self._set_secret(secrets.token_urlsafe(_SECRET_BYTES), fresh)

    def _set_secret(self, secret: str, epoch: int) -> None:
        self._database.execute("UPDATE network SET secret = ?, secret_epoch = ?", secret, epoch)
        self._database.execute("DELETE FROM rotation")
        self._changed()

    def _changed(self) -> None:
        self._database.execute("UPDATE network SET state_number = state_number + 1")

    def secret_epoch(self) -> int:
        """The number of the present secret."""
        row = self._database.row("SELECT secret_epoch FROM network")
        return row["secret_epoch"] if row else 1

    def generation(self) -> int:
        """Grows with each restoration from a backup."""
        row = self._database.row("SELECT generation FROM network")
        return row["generation"] if row else 0

    def _now(self) -> str:
        return self._clock.now().isoformat()
