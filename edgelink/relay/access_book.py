"""The table of access rules: which ports of which nodes the operator has opened, for whom."""

from __future__ import annotations

from collections.abc import Iterable

from edgelink.clock import Clock
from edgelink.relay.database import Database
from edgelink.relay.records import AccessRule, MadeRule

_KEY = "target = ? AND protocol = ? AND first = ? AND last = ? AND source = ?"


class AccessBook:
    """For changes inside of the caller's transaction."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def all(self) -> list[MadeRule]:
        """Oldest first."""
        return self._database.records(MadeRule, "SELECT * FROM access_rules ORDER BY rowid")

    def find(self, rule: AccessRule) -> MadeRule | None:
        statement = f"SELECT * FROM access_rules WHERE {_KEY}"  # noqa: S608 (ours)
        return self._database.record(MadeRule, statement, *_values(rule))

    def put(self, rule: AccessRule, caller: str) -> None:
        """Record a new rule. ``caller``: who had it made."""
        self._database.execute(
            "INSERT INTO access_rules VALUES (?, ?, ?, ?, ?, ?, ?)",
            *_values(rule),
            self._clock.now().isoformat(),
            caller,
        )

    def remove(self, rule: AccessRule) -> None:
        self._database.execute(f"DELETE FROM access_rules WHERE {_KEY}", *_values(rule))  # noqa: S608 (ours)

    def replace_node(self, former: str, successor: str) -> None:
        """Have the rules that name one node by its node id name another one."""
        for column in ("target", "source"):
            self._database.execute(
                f"UPDATE OR REPLACE access_rules SET {column} = ? WHERE {column} = ?",  # noqa: S608 (ours)
                successor,
                former,
            )

    def has_been_used(self) -> bool:
        """Whether any rule was ever made."""
        return self._database.row("SELECT 1 FROM history WHERE action = 'access allowed' LIMIT 1") is not None


def _values(rule: AccessRule) -> Iterable[str | int]:
    return rule.target, rule.protocol, rule.first, rule.last, rule.source
