"""What the registry remembers of its network's secret: a change that is under way, how far each node is, and who was
put out for ever. Each call is one transaction, on disk when it returns; what is to be done is decided in
:mod:`edgelink.relay.rotation`, who may ask for it in :mod:`edgelink.relay.rotations`.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import timedelta

from edgelink.clock import Clock
from edgelink.protocol.payloads import Lease, NetworkAnswer
from edgelink.relay.database import Database
from edgelink.relay.rotation import COMMITTED_S, Progress, RotationRecord, epoch_after, generation_after

_SECRET_BYTES = 32  # 256 bits


class RotationBook:
    """One network's; in the registry's database."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def record(self) -> RotationRecord | None:
        """The change that is under way."""
        return self._database.record(RotationRecord, "SELECT *, prepare_until AS phase_until FROM rotation")

    def progress(self) -> list[Progress]:
        """How far each node is that ever said so, or is waited for; kept when a change is over."""
        statement = "SELECT *, expected AS is_expected FROM rotation_nodes ORDER BY node_id"
        return self._database.records(Progress, statement)

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

    def begin(
        self, *, why: str, expected: Collection[str], prepare_s: float, hold_s: float, force: bool
    ) -> RotationRecord:
        """A new secret, and a change to it, in place of one that is under way: that one was told to its nodes, and
        whoever was put out meanwhile may be one of them."""
        with self._database.transaction():
            now, running = self._clock.now(), self.record()
            record = RotationRecord(
                rotation_id=secrets.token_hex(16),
                from_epoch=self.secret_epoch(),
                to_epoch=epoch_after(self.secret_epoch(), self.generation(), running),
                next_secret=secrets.token_urlsafe(_SECRET_BYTES),
                why=why,
                phase="prepare",
                started_at=now,
                phase_until=now + timedelta(seconds=prepare_s),
                hold_until=now + timedelta(seconds=hold_s),
                force=force,
            )
            self._database.execute("DELETE FROM rotation")
            self._database.execute(
                "INSERT INTO rotation VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                record.rotation_id,
                record.from_epoch,
                record.to_epoch,
                record.next_secret,
                record.why,
                record.phase,
                record.started_at.isoformat(),
                record.phase_until.isoformat(),
                record.hold_until.isoformat(),
                int(record.force),
            )
            self._database.execute("UPDATE rotation_nodes SET expected = 0, hold_until = NULL")
            for node_id in expected:
                self._database.execute(
                    "INSERT INTO rotation_nodes (node_id, expected) SELECT node_id, 1 FROM leases WHERE node_id = ? "
                    "ON CONFLICT (node_id) DO UPDATE SET expected = 1",
                    node_id,
                )
            self._changed()
        return record

    def note(self, answer: NetworkAnswer) -> bool:
        """Take a node's word; whether it is news. What it prepared and runs only grows."""
        if self._news(answer) is None:
            return False  # as a rule: nothing is written for it
        with self._database.transaction():
            news = self._news(answer)
            if news is None:
                return False
            self._database.execute(
                "INSERT INTO rotation_nodes (node_id, expected, prepared_epoch, running_epoch, hold_until) "
                "SELECT node_id, 0, ?, ?, ? FROM leases WHERE node_id = ? ON CONFLICT (node_id) DO UPDATE SET "
                "prepared_epoch = excluded.prepared_epoch, running_epoch = excluded.running_epoch, "
                "hold_until = excluded.hold_until",
                *news,
                answer.node_id,
            )
        return True

    def _news(self, answer: NetworkAnswer) -> tuple[int, int, str | None] | None:
        """What is to be put down now of what it prepared, what it runs, and how long it holds; None: all is known."""
        before = self._database.row("SELECT * FROM rotation_nodes WHERE node_id = ?", answer.node_id)
        hold = answer.hold_until.isoformat() if answer.hold_until else None
        record = self.record()
        if record is None or record.rotation_id != answer.rotation_id:
            hold = None  # of another change
        prepared, running = answer.prepared_epoch, answer.running_epoch
        if before is not None:
            prepared, running = max(prepared, before["prepared_epoch"]), max(running, before["running_epoch"])
            if (prepared, running, hold) == (before["prepared_epoch"], before["running_epoch"], before["hold_until"]):
                return None
        return prepared, running, hold

    def note_enrolled(self, node_id: str) -> None:
        """A node got the present secret with its lease, and will not say itself with which one it runs, or not yet."""
        self._database.execute(
            "INSERT INTO rotation_nodes (node_id, expected, running_epoch) VALUES (?, 0, ?) ON CONFLICT (node_id) "
            "DO UPDATE SET running_epoch = max(running_epoch, excluded.running_epoch)",
            node_id,
            self.secret_epoch(),
        )

    def commit(self) -> None:
        """From now on the network runs on the next secret."""
        with self._database.transaction():
            record = self.record()
            if record is None or record.phase == "committed":
                return
            self._database.execute(
                "UPDATE network SET secret = ?, secret_epoch = ?", record.next_secret, record.to_epoch
            )
            until = self._clock.now() + timedelta(seconds=COMMITTED_S)
            self._database.execute("UPDATE rotation SET phase = 'committed', prepare_until = ?", until.isoformat())
            self._changed()

    def abort(self) -> None:
        """Stay with the present secret, under a number above the one that was given up."""
        with self._database.transaction():
            record = self.record()
            if record is None or record.phase == "committed":
                return
            self._database.execute("UPDATE network SET secret_epoch = ?", record.to_epoch + 1)
            self._end()

    def finish(self) -> None:
        """The change is over; how far each node is stays known."""
        with self._database.transaction():
            self._end()

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
            self._database.execute(
                "UPDATE network SET secret = ?, secret_epoch = ?",
                secrets.token_urlsafe(_SECRET_BYTES),
                epoch_after(max(self.secret_epoch(), epoch), self.generation(), self.record()),
            )
            self._end()

    def _end(self) -> None:
        self._database.execute("DELETE FROM rotation")
        self._database.execute("UPDATE rotation_nodes SET expected = 0, hold_until = NULL")
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
