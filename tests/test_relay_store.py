"""The registry's database: what it keeps, what it refuses, and who may read it."""

from __future__ import annotations

import base64
import hashlib
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address
from itertools import product
from pathlib import Path
from typing import Annotated

import pytest
from registry_world import World, downgrade
from telling import refuses

from edgelink.config import Paths
from edgelink.errors import LeaseConflictError, RegistryError
from edgelink.files import AT_ONCE
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Lease, Role
from edgelink.relay.backup import backup, restore
from edgelink.relay.database import SCHEMA_VERSION, Database
from edgelink.relay.passwords import broker_password_hash
from edgelink.relay.records import FROM_JSON
from edgelink.relay.store import RegistryStore
from edgelink.testing import FakeClock


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


def lease_of(world: World, key: NodeKey, hostname: str, overlay_ip: str, rank: int | None, **fields: object) -> Lease:
    values = {
        "network_id": world.network.network_id,
        "node_id": key.node_id,
        "hostname": hostname,
        "role": Role.EDGE,
        "overlay_ip": IPv4Address(overlay_ip),
        "cidr": world.cidr,
        "preferred_rank": rank,
        "verify_key": key.verify_key_b64,
        "granted_at": world.clock.now(),
        **fields,
    }
    return Lease.model_validate(values)


def test_the_password_hash_is_mosquittos() -> None:
    """Salt, PBKDF2-SHA512 hash and iterations as the dynamic security plugin stores them."""
    password = broker_password_hash("correct horse")
    salt = base64.b64decode(password.salt)
    assert len(salt) == 12
    expected = hashlib.pbkdf2_hmac("sha512", b"correct horse", salt, password.iterations, 64)
    assert base64.b64decode(password.hash) == expected
    assert password.matches("correct horse")
    assert not password.matches("wrong")
    assert broker_password_hash("correct horse") != password


def test_only_root_reads_the_database(world: World) -> None:
    """The database and what SQLite puts beside it are 0600: the network's secret is in it."""
    world.join("edge-1")
    files = list(world.store.path.parent.glob("registry.sqlite3*"))
    assert len(files) >= 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_it_is_durable_before_it_is_told(world: World) -> None:
    """WAL with synchronous=FULL: each commit is an fsync."""
    rows = [world.store._database.row(f"PRAGMA {name}") for name in ("journal_mode", "synchronous", "foreign_keys")]
    assert [next(iter(row)) for row in rows if row is not None] == ["wal", 2, 1]


def test_everything_survives_a_reopening(world: World) -> None:
    """Network, leases, tokens, users and history are the same after a restart."""
    world.token(hostname="robot", ip=IPv4Address("10.10.0.9"), rank=9, labels={"room": "1"}, ttl_s=60)
    world.join("edge-1")
    store = world.store

    def content() -> list[object]:
        store = world.store
        return [
            store.network(),
            store.leases(),
            store.tokens.all(),
            store.broker_users(),
            store.history(),
            store.epoch(),
        ]

    before = content()
    world.reopen()
    assert world.store is not store
    assert content() == before


@pytest.mark.parametrize(
    ("hostname", "overlay_ip", "rank"),
    [
        ("edge-1", "10.10.0.9", 9),
        ("other", "10.10.0.5", 9),
        ("other", "10.10.0.9", 5),
    ],
    ids=["hostname", "address", "rank"],
)
def test_the_database_itself_refuses_doubles(world: World, hostname: str, overlay_ip: str, rank: int | None) -> None:
    """Should the allocator ever err, the UNIQUE constraints stand, and nothing of the transaction stays."""
    relay = lease_of(world, NodeKey.generate(), "relay", "10.10.0.1", None, is_relay=True)
    first = lease_of(world, NodeKey.generate(), "edge-1", "10.10.0.5", 5)
    for lease in (relay, first):
        world.store.put_lease(world.keys.sign(Kind.LEASE, lease), action="granted")
    double = lease_of(world, NodeKey.generate(), hostname, overlay_ip, rank)
    with pytest.raises(LeaseConflictError):
        world.store.put_lease(world.keys.sign(Kind.LEASE, double), action="granted")
    assert world.store.leases() == [relay, first]
    assert world.store.epoch() == 2


def test_a_transaction_is_all_or_nothing(world: World) -> None:
    """An error in the middle, also of an inner block, takes back everything."""
    lease = lease_of(world, NodeKey.generate(), "edge-1", "10.10.0.5", 5)

    class StopError(Exception): ...

    with pytest.raises(StopError), world.store.transaction():
        world.store.put_lease(world.keys.sign(Kind.LEASE, lease), action="granted")
        with world.store.transaction():
            raise StopError
    assert world.store.leases() == []
    assert world.store.history() == []
    with world.store.transaction():
        world.store.put_lease(world.keys.sign(Kind.LEASE, lease), action="granted")
    assert world.store.leases() == [lease]


def test_release_forgets_lease_and_password_and_is_recorded(world: World) -> None:
    """The operator's command frees hostname, address and rank, ends the node's access, and leaves a trace."""
    lease = world.join("edge-1")
    epoch = world.store.epoch()
    assert world.store.release("edge-1") == lease
    assert world.store.leases() == []
    assert [user for user in world.store.broker_users() if user.kind == "node"] == []
    assert world.store.epoch() == epoch + 1
    assert [entry["action"] for entry in world.store.history()] == ["granted", "released"]
    assert world.join("edge-1").overlay_ip == lease.overlay_ip
    with refuses(RegistryError, "'nobody'", reason="NodeUnknown"):
        world.store.release("nobody")


def test_secrets_of_nodes_and_tokens_are_not_in_the_database(world: World) -> None:
    """Neither a token's secret nor a node's broker password can be read from the file."""
    key, token = NodeKey.generate(), world.token()
    result = world.enrol(key, token)
    world.store.close()
    content = b"".join(path.read_bytes() for path in world.store.path.parent.glob("registry.sqlite3*"))
    assert world.network.secret.encode() in content  # the search does find what is there
    assert result.broker_password is not None
    for secret in (token.secret, token.encode(), result.broker_password):
        assert secret.encode() not in content


def test_what_is_kept_in_memory_is_what_is_in_the_database(world: World) -> None:
    """Also after a transaction that failed in the middle, and after another process wrote."""

    class StopError(Exception): ...

    world.join("edge-1")
    with pytest.raises(StopError), world.store.transaction():
        world.join("edge-2")
        world.store.release("edge-1")
        assert [lease.hostname for lease in world.store.leases()] == ["edge-2"]
        raise StopError
    assert [lease.hostname for lease in world.store.leases()] == ["edge-1"]
    other = RegistryStore(world.store.path, world.clock)
    other.release("edge-1")
    other.close()
    assert world.store.leases() == [] == list(world.store.lease_envelopes())
    assert world.store.find_lease("edge-1") is None


def test_threads_take_turns(world: World) -> None:
    """Enrolments from several threads get different addresses and ranks."""
    leases: list[Lease] = []

    def join(number: int) -> None:
        leases.append(world.join(f"edge-{number}"))

    threads = [threading.Thread(target=join, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({lease.overlay_ip for lease in leases}) == len({lease.preferred_rank for lease in leases}) == 8


def test_two_processes_do_not_get_in_each_others_way(world: World) -> None:
    """A second connection, as a command on the relay would have, sees and adds to the same registry."""
    other = RegistryStore(world.store.path, world.clock)
    world.join("edge-1")
    lease = lease_of(world, NodeKey.generate(), "edge-2", "10.10.0.7", 7)
    other.put_lease(world.keys.sign(Kind.LEASE, lease), action="granted")
    assert (
        [held.hostname for held in world.store.leases()]
        == ["edge-1", "edge-2"]
        == [held.hostname for held in other.leases()]
    )
    other.close()


def test_a_newer_schema_is_left_alone(tmp_path: Path) -> None:
    """An older EdgeLink does not touch a database that a newer one wrote."""
    path = tmp_path / "registry.sqlite3"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(RegistryError, match="newer EdgeLink"):
        RegistryStore(path, FakeClock())


def schema_of(path: Path) -> dict[str, list[tuple[str, str]]]:
    """Name and type of each column, by table."""
    with closing(sqlite3.connect(path)) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {
            table: [(row[1], row[2]) for row in database.execute(f"PRAGMA table_info({table})")]
            for table in sorted(tables)
        }


@pytest.mark.parametrize("version", [1, SCHEMA_VERSION - 2])
def test_what_is_older_than_the_version_before_is_left_alone(tmp_path: Path, version: int) -> None:
    path = tmp_path / "registry.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {version}")
    with refuses(RegistryError, "too old", version):
        RegistryStore(path, FakeClock())
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (version,)


def test_a_migration_that_fails_changes_nothing(world: World) -> None:
    """All of it is one transaction."""
    world.join("edge-1")
    world.store.close()
    downgrade(world.store.path)
    with closing(sqlite3.connect(world.store.path, isolation_level=None)) as database:
        database.execute("ALTER TABLE leases ADD COLUMN secret_epoch INTEGER")
    before = schema_of(world.store.path)
    with refuses(RegistryError, "secret_epoch"):
        world.open()
    assert schema_of(world.store.path) == before


def test_the_version_before_is_brought_up_to_date(world: World, tmp_path: Path) -> None:
    """Leases, network, tokens and history are as they were; and it goes on from there."""
    key, token = NodeKey.generate(), world.token(uses=2)
    world.enrol(key, token)
    store = world.store
    content = [store.leases(), store.network(), store.tokens.all(), store.history(), store.broker_users()]
    store.close()
    downgrade(store.path)
    world.open()
    RegistryStore(tmp_path / "new.sqlite3", FakeClock()).close()
    assert schema_of(store.path) == schema_of(tmp_path / "new.sqlite3")
    store = world.store
    assert [store.leases(), store.network(), store.tokens.all(), store.history(), store.broker_users()] == content
    assert world.lease(world.enrol(key, token)) == content[0][0]
    assert world.join("edge-2").overlay_ip == IPv4Address("10.10.0.3")


@pytest.mark.parametrize("phase, epoch", [("prepare", 3), ("committed", 2)])
def test_a_change_of_the_version_before_gives_its_number_to_no_other_secret(
    world: World, phase: str, epoch: int
) -> None:
    """One that was being prepared is given up; what was seen of the nodes stays known."""
    key, token = NodeKey.generate(), world.token()
    world.enrol(key, token)
    rotations = world.authority.rotations
    rotations.rotate()
    secret = rotations.record.next_secret
    if phase == "committed":  # as the version before has it: the network is on it, and the change is not over
        with world.store.transaction():
            world.store._database.execute("UPDATE network SET secret = ?, secret_epoch = 2", secret)
    world.store.close()
    downgrade(world.store.path)
    with closing(sqlite3.connect(world.store.path, isolation_level=None)) as database:
        database.execute("UPDATE rotation SET phase = ?", (phase,))
    world.open()
    rotations = world.authority.rotations
    assert (rotations.record, rotations.secret_epoch) == (None, epoch)
    assert (world.authority.network.secret == secret) is (phase == "committed")
    assert rotations.seen_epochs() == {key.node_id: 1}
    assert rotations.rotate().to_epoch == epoch + 1


@pytest.mark.timeout(120)
def test_torn_pages_are_refused_and_a_backup_helps(world: World, tmp_path: Path) -> None:
    """Whichever page was spoilt, and however: it is refused with what to do, or every lease is what it was."""
    paths = Paths(world.directory, world.directory / "run")
    world.authority.relay_membership(NodeKey.load_or_create(paths.node_key), "relay")
    for number in range(30):
        world.join(f"edge-{number}")
    world.join("gone")
    world.authority.release("gone")
    leases, saved = world.store.leases(), backup(paths, world.clock)
    world.store.close()
    whole = world.store.path.read_bytes()
    size = int.from_bytes(whole[16:18], "big")
    refused = 0
    for page, spoil in product(range(len(whole) // size), (b"\0" * size, b"\xff" * 512, whole[-size:], b"\0")):
        torn = bytearray(whole)
        torn[page * size : page * size + len(spoil)] = spoil
        if torn == whole:
            continue
        world.store.path.write_bytes(torn)
        try:
            store = RegistryStore(world.store.path, world.clock)
        except RegistryError as error:
            assert error.condition_reason == "RegistryDamaged" or "newer EdgeLink" in str(error), error
            assert "registry restore" in error.hint or "newer EdgeLink" in str(error)
            refused += 1
            continue
        assert store.leases() == leases
        store.close()
    assert refused > len(whole) // size

    world.store.path.rename(tmp_path / "torn")
    restore(saved, paths, world.clock)
    world.open()
    assert world.store.leases() == leases


def test_a_damaged_database_is_named(tmp_path: Path) -> None:
    """A file that is no database is an error that says not to remove it."""
    path = tmp_path / "registry.sqlite3"
    path.write_bytes(b"this is no database, " * 100)
    with refuses(RegistryError, path, "edgelink registry restore", reason="RegistryDamaged"):
        RegistryStore(path, FakeClock())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """No traceback when the state directory is not one."""
    (tmp_path / "file").write_text("")
    with refuses(RegistryError, tmp_path / "file" / "registry.sqlite3"):
        RegistryStore(tmp_path / "file" / "registry.sqlite3", FakeClock())


@dataclass(frozen=True)
class Inner:
    first: int
    address: IPv4Address


@dataclass(frozen=True)
class Row:
    name: str
    at: datetime | None
    is_set: bool
    labels: Annotated[Mapping[str, str], FROM_JSON]
    inner: Inner


def test_rows_are_read_as_records(tmp_path: Path) -> None:
    """By the types of their fields; a record in a record is made of the same row, and what nobody asks for is left."""
    database = Database(tmp_path / "one.sqlite3", AT_ONCE, on_rollback=lambda: None)
    select = "SELECT ? AS name, ? AS at, ? AS is_set, ? AS labels, ? AS first, ? AS address, 7 AS more"
    at = datetime(2026, 11, 1, 12, 0, 0, 5, tzinfo=UTC)
    inner = Inner(2, IPv4Address("10.0.0.1"))
    found = database.record(Row, select, "{}", at.isoformat(), 1, '{"a": "b"}', 2, "10.0.0.1")
    assert found == Row("{}", at, True, {"a": "b"}, inner)
    nothing = database.record(Row, select, "", None, 0, "{}", 2, "10.0.0.1")
    assert nothing == Row("", None, False, {}, inner)
    assert database.record(Row, f"{select} LIMIT 0", *[None] * 6) is None
    with refuses(RegistryError, "inner", reason="RegistryDamaged") as caught:
        database.record(Row, select, "", None, 0, "{}", 2, "a-secret")
    assert "a-secret" not in f"{caught.value} {caught.value.__cause__}"
    database.close()
