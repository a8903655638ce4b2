"""The registry's SQLite file: its schema, its opening, and transactions that are on disk when they end.

WAL and ``synchronous=FULL``: what was committed outlives a power cut. What the tables mean is in
:mod:`edgelink.relay.store`.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from edgelink.errors import NotCommittedError, RegistryError
from edgelink.files import Files, fsync_directory
from edgelink.protocol.payloads import unusable_fields

_BUSY_TIMEOUT_S = 10.0  # another process (a command on the relay) writes for milliseconds

_CHECKED_BYTES = 64 * 1024 * 1024  # some 50,000 nodes; looking through that takes 0.2 s
_DAMAGED = (
    "stop the daemon and put the newest backup in its place: `edgelink registry restore --replace FILE` keeps what is "
    "here; going on without one would give out again what is in use"
)

_NOT_WRITABLE = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR}  # the first byte of the codes

SCHEMA_VERSION = 12
_SCHEMA = """
CREATE TABLE network (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    network_id TEXT NOT NULL, name TEXT NOT NULL, secret TEXT NOT NULL, cidr TEXT NOT NULL, relay_ip TEXT NOT NULL,
    created_at TEXT NOT NULL, epoch INTEGER NOT NULL, generation INTEGER NOT NULL DEFAULT 0,
    secret_epoch INTEGER NOT NULL DEFAULT 1, state_number INTEGER NOT NULL DEFAULT 0, ranges TEXT NOT NULL DEFAULT '{}'
) STRICT;
CREATE TABLE leases (
    node_id TEXT PRIMARY KEY, hostname TEXT NOT NULL UNIQUE, overlay_ip TEXT NOT NULL UNIQUE, rank INTEGER UNIQUE,
    is_relay INTEGER NOT NULL CHECK (is_relay IN (0, 1)), envelope TEXT NOT NULL,
    secret_epoch INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE relays (node_id TEXT PRIMARY KEY REFERENCES leases ON DELETE CASCADE, addresses TEXT NOT NULL) STRICT;
CREATE TABLE credentials (
    node_id TEXT PRIMARY KEY REFERENCES leases ON DELETE CASCADE,
    salt TEXT NOT NULL, hash TEXT NOT NULL, iterations INTEGER NOT NULL
) STRICT;
CREATE TABLE enrolments (node_id TEXT PRIMARY KEY REFERENCES leases ON DELETE CASCADE, asked_at TEXT NOT NULL) STRICT;
CREATE TABLE machines (
    node_id TEXT PRIMARY KEY REFERENCES leases ON DELETE CASCADE,
    instance TEXT NOT NULL, machine TEXT NOT NULL, since TEXT NOT NULL
) STRICT;
CREATE TABLE departures (node_id TEXT PRIMARY KEY REFERENCES leases ON DELETE CASCADE, since TEXT NOT NULL) STRICT;
CREATE TABLE tokens (
    token_id TEXT PRIMARY KEY, role TEXT NOT NULL, hostname TEXT, overlay_ip TEXT, rank INTEGER, labels TEXT NOT NULL,
    uses INTEGER NOT NULL, created_at TEXT NOT NULL, expires_at TEXT NOT NULL, revoked_at TEXT,
    salt TEXT NOT NULL, hash TEXT NOT NULL, iterations INTEGER NOT NULL, replaces TEXT, ended_at TEXT
) STRICT;
CREATE TABLE token_uses (
    token_id TEXT NOT NULL REFERENCES tokens, node_id TEXT NOT NULL, used_at TEXT NOT NULL,
    PRIMARY KEY (token_id, node_id)
) STRICT;
CREATE TABLE history (
    at TEXT NOT NULL, action TEXT NOT NULL, node_id TEXT NOT NULL, detail TEXT NOT NULL,
    caller TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE quarantine (
    kind TEXT NOT NULL CHECK (kind IN ('hostname', 'overlay_ip', 'rank')), value TEXT NOT NULL,
    node_id TEXT NOT NULL, hostname TEXT NOT NULL, until TEXT, PRIMARY KEY (kind, value)
) STRICT;
CREATE TABLE revocations (
    node_id TEXT PRIMARY KEY, verify_key TEXT NOT NULL, hostname TEXT NOT NULL, overlay_ip TEXT NOT NULL, rank INTEGER,
    revoked_at TEXT NOT NULL, why TEXT NOT NULL
) STRICT;
CREATE TABLE rotation (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1), to_epoch INTEGER NOT NULL, next_secret TEXT NOT NULL,
    why TEXT NOT NULL, started_at TEXT NOT NULL, switch_at TEXT NOT NULL
) STRICT;
CREATE TABLE access_rules (
    target TEXT NOT NULL, protocol TEXT NOT NULL CHECK (protocol IN ('tcp', 'udp')), first INTEGER NOT NULL,
    last INTEGER NOT NULL, source TEXT NOT NULL, made_at TEXT NOT NULL, made_by TEXT NOT NULL,
    PRIMARY KEY (target, protocol, first, last, source)
) STRICT;
"""

# From the version before, which changed the secret in two phases. A change that was being prepared is given up, and its
# number is not given again. To be deleted, with what calls it, at the first release: until then no other version has
# left a database behind.
_MIGRATION_BEFORE_RELEASE = """
UPDATE network SET state_number = state_number + 1, secret_epoch = max(secret_epoch, to_epoch + (phase = 'prepare'))
    FROM rotation;
ALTER TABLE leases ADD COLUMN secret_epoch INTEGER NOT NULL DEFAULT 0;
UPDATE leases SET secret_epoch = coalesce(
    (SELECT running_epoch FROM rotation_nodes WHERE rotation_nodes.node_id = leases.node_id), 0);
DROP TABLE rotation_nodes;
DROP TABLE rotation;
CREATE TABLE rotation (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1), to_epoch INTEGER NOT NULL, next_secret TEXT NOT NULL,
    why TEXT NOT NULL, started_at TEXT NOT NULL, switch_at TEXT NOT NULL
) STRICT;
"""

RecordT = TypeVar("RecordT")


@cache
def _reader_of(kind: type[RecordT]) -> tuple[TypeAdapter[RecordT], tuple[str, ...]]:
    """Return what makes such records of rows, and the fields that are records of the same row."""
    hints = get_type_hints(kind)
    return TypeAdapter(kind), tuple(name for name, hint in hints.items() if is_dataclass(hint))


class Database:
    """One open file. Usable from several threads; several processes may have it open at once."""

    def __init__(self, path: Path, files: Files, *, on_rollback: Callable[[], None]) -> None:
        """``on_rollback`` is called when a transaction that has changed something is undone."""
        self.path = path
        self._files = files
        self.lock = threading.RLock()
        self._depth = 0
        self._connection = self._open()
        self._on_rollback = on_rollback

    def close(self) -> None:
        self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing of what is done inside, of a block within a block as well; on disk when the outermost ends.

        Writers in other processes wait from the first line, so what is read inside stays true until the end.
        """
        with self.lock:
            level, changes = f"level{self._depth}", self._connection.total_changes
            self.execute("BEGIN IMMEDIATE" if self._depth == 0 else f"SAVEPOINT {level}")
            self._depth += 1
            try:
                yield
                self.execute("COMMIT" if self._depth == 1 else f"RELEASE {level}")
            except BaseException:
                if self._connection.total_changes != changes:
                    self._on_rollback()
                if self._connection.in_transaction:
                    if self._depth == 1:
                        self.execute("ROLLBACK")
                    else:
                        self.execute(f"ROLLBACK TO {level}")
                        self.execute(f"RELEASE {level}")
                raise
            finally:
                self._depth -= 1

    def _open(self) -> sqlite3.Connection:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # SQLite gives its WAL the mode of the database, so this covers both.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            fsync_directory(self.path.parent)
        except OSError as error:
            raise RegistryError(
                f"{self.path}: cannot be opened: {error.strerror}",
                hint="the registry has to be written: make its disk writable; nodes go on with what they have",
            ) from error
        database = sqlite3.connect(self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        database.row_factory = sqlite3.Row
        try:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute("PRAGMA foreign_keys = ON")
            self._refuse_damaged(database)
            self._migrate(database)
        except sqlite3.Error as error:
            database.close()
            raise self._failed(error) from error
        except RegistryError:
            database.close()
            raise
        return database

    def _refuse_damaged(self, database: sqlite3.Connection) -> None:
        """A torn page would otherwise be found when it is too late: a lease that is not read is given out again."""
        if self.path.stat().st_size > _CHECKED_BYTES:
            return
        (verdict,) = database.execute("PRAGMA integrity_check(1)").fetchone()
        if verdict != "ok":
            raise RegistryError(f"{self.path}: is damaged: {verdict}", hint=_DAMAGED, reason="RegistryDamaged")

    def _migrate(self, database: sqlite3.Connection) -> None:
        database.execute("BEGIN IMMEDIATE")
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise RegistryError(
                f"{self.path}: was written by a newer EdgeLink (schema {version}, this one knows {SCHEMA_VERSION})",
                hint="install that version again, or go back to a backup of this one: "
                "`edgelink registry restore --replace FILE`; nothing was changed",
            )
        if 0 < version < SCHEMA_VERSION - 1:
            raise RegistryError(
                f"{self.path}: was written by an EdgeLink that is too old (schema {version}, this one knows "
                f"{SCHEMA_VERSION})",
                hint="start a version in between once, which brings it up to date; nothing was changed",
            )
        steps = {0: _SCHEMA, SCHEMA_VERSION - 1: _MIGRATION_BEFORE_RELEASE}
        for statement in steps.get(version, "").split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        database.execute("COMMIT")

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        with self.lock:
            try:
                return self._connection.execute(statement, values)
            except sqlite3.IntegrityError:
                raise
            except sqlite3.Error as error:
                raise self._failed(error) from error
            except OverflowError as error:  # not one of sqlite3's: nothing is wrong with the database
                raise RegistryError(f"a number is too large for the registry: {error}") from error

    def rows(self, statement: str, *values: Any) -> list[sqlite3.Row]:
        with self.lock:
            return self.execute(statement, *values).fetchall()

    def row(self, statement: str, *values: Any) -> sqlite3.Row | None:
        rows = self.rows(statement, *values)
        return rows[0] if rows else None

    def records(self, kind: type[RecordT], statement: str, *values: Any) -> list[RecordT]:
        """Return the rows as frozen dataclasses, whose fields are named like the columns.

        Text is read as what the field holds: a time, an address, JSON. A field that is a dataclass itself is made of
        columns of the same row.

        Raises:
            RegistryError: a column holds something else.
        """
        adapter, inner = _reader_of(kind)  # type: ignore[arg-type]  # mypy takes no type for hashable
        rows = map(dict, self.rows(statement, *values))
        try:
            return [adapter.validate_python(row | dict.fromkeys(inner, row)) for row in rows]
        except ValidationError as error:  # without the values: they may be secrets
            raise RegistryError(
                f"{self.path}: is damaged: unusable {unusable_fields(error)}", hint=_DAMAGED, reason="RegistryDamaged"
            ) from None

    def record(self, kind: type[RecordT], statement: str, *values: Any) -> RecordT | None:
        """Return the first row like :meth:`records`. None: there is no row."""
        return next(iter(self.records(kind, statement, *values)), None)

    def version(self) -> int:
        """Changes when another connection, as a rule of another process, has changed something."""
        row = self.row("PRAGMA data_version")
        return row[0] if row else 0

    def _failed(self, error: sqlite3.Error) -> RegistryError:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _NOT_WRITABLE:
            self._files.refused(self.path, str(error))
            return NotCommittedError(
                f"{self.path}: cannot be written: {error}", hint="free some space there on the relay; nothing is lost"
            )
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return RegistryError(f"{self.path}: is damaged: {error}", hint=_DAMAGED, reason="RegistryDamaged")
        return RegistryError(
            f"{self.path}: the registry's database failed: {error}",
            hint="check free space and permissions there; if it is damaged, restore it from a backup: never remove it, "
            "or addresses in use would be given out again",
        )
