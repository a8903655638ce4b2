"""The tokens that the registry remembers, in its database: not their secrets, and who has used them."""

from __future__ import annotations

import json
from dataclasses import replace

from edgelink.clock import Clock
from edgelink.errors import RegistryError
from edgelink.relay.database import Database
from edgelink.relay.records import Reservation, TokenRecord

_TOKENS = (
    "SELECT *, (SELECT count(*) FROM token_uses WHERE token_uses.token_id = tokens.token_id) AS use_count FROM tokens"
)


class TokenBook:
    """Part of :class:`edgelink.relay.store.RegistryStore`."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def add(self, token: TokenRecord) -> None:
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO tokens (token_id, role, hostname, overlay_ip, rank, labels, uses, created_at, expires_at, "
                "salt, hash, iterations, replaces) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                token.token_id,
                token.role.value,
                token.hostname,
                str(token.overlay_ip) if token.overlay_ip else None,
                token.rank,
                json.dumps(dict(token.labels)),
                token.uses,
                token.created_at.isoformat(),
                token.expires_at.isoformat(),
                token.password.salt,
                token.password.hash,
                token.password.iterations,
                token.replaces,
            )

    def promises(self) -> list[Reservation]:
        """What the live tokens promise to whoever brings them."""
        return self._database.records(
            Reservation,
            "SELECT token_id, hostname, overlay_ip, rank FROM tokens WHERE revoked_at IS NULL AND ended_at IS NULL "
            "AND expires_at > ? AND (hostname IS NOT NULL OR overlay_ip IS NOT NULL OR rank IS NOT NULL) "
            "AND uses > (SELECT count(*) FROM token_uses WHERE token_uses.token_id = tokens.token_id)",
            self._now(),
        )

    def note_expired(self) -> None:
        """Tokens that have expired stay so, also should the clock go back."""
        now = self._now()
        if self._database.row("SELECT 1 FROM tokens WHERE ended_at IS NULL AND expires_at <= ?", now):
            self._database.execute(
                "UPDATE tokens SET ended_at = ? WHERE ended_at IS NULL AND expires_at <= ?", now, now
            )

    def all(self) -> list[TokenRecord]:
        """All tokens ever made, oldest first."""
        used_by: dict[str, list[str]] = {}
        for row in self._database.rows("SELECT token_id, node_id FROM token_uses ORDER BY rowid"):
            used_by.setdefault(row["token_id"], []).append(row["node_id"])
        return [
            replace(token, used_by=tuple(used_by.get(token.token_id, ())))
            for token in self._database.records(TokenRecord, f"{_TOKENS} ORDER BY rowid")
        ]

    def get(self, token_id: str) -> TokenRecord | None:
        """``used_by`` only once it is used up: before, who was let in does not matter, and may be thousands."""
        token = self._database.record(TokenRecord, f"{_TOKENS} WHERE token_id = ?", token_id)
        if token is None or token.uses_left:
            return token
        uses = self._database.rows("SELECT node_id FROM token_uses WHERE token_id = ? ORDER BY rowid", token_id)
        return replace(token, used_by=tuple(use["node_id"] for use in uses))

    def use(self, token_id: str, node_id: str) -> None:
        """Count one use; the same node counts once, at its last time."""
        with self._database.transaction():
            self._database.execute(
                "INSERT INTO token_uses VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET used_at = excluded.used_at",
                token_id,
                node_id,
                self._now(),
            )

    def revoke(self, token_id: str) -> None:
        """Raises RegistryError when there is no such token; revoking twice is harmless."""
        with self._database.transaction():
            if self.get(token_id) is None:
                raise RegistryError(
                    f"there is no token {token_id!r}", hint="`edgelink token list` shows them", reason="TokenUnknown"
                )
            self._database.execute(
                "UPDATE tokens SET revoked_at = ? WHERE token_id = ? AND revoked_at IS NULL", self._now(), token_id
            )

    def _now(self) -> str:
        return self._clock.now().isoformat()
