"""`edgelink registry check`: it finds what must not be, and says what; it changes nothing."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from registry_world import World, downgrade
from telling import Words, refuses

from edgelink.config import Paths
from edgelink.errors import RegistryError
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.payloads import Role
from edgelink.relay.database import SCHEMA_VERSION
from edgelink.relay.database_check import Checked, check_registry
from edgelink.relay.store import CLONE_REFUSED


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A relay, a head and an edge, one that was released and one that was replaced; closed."""
    world = World(tmp_path / "state")
    world.authority.relay_membership(NodeKey.generate(), "relay")
    world.join("cloud", Role.HEAD)
    world.join("edge-1", labels={"arm": "left"})
    world.join("gone")
    world.authority.release("gone")
    world.join("franka")
    world.enrol(NodeKey.generate(), world.token(replaces="franka"), "fresh")
    world.store.close()
    return world


def check(world: World) -> Checked:
    return check_registry(Paths(world.directory, world.directory / "run"))


def change(world: World, *statements: str) -> None:
    with closing(sqlite3.connect(world.store.path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def test_a_whole_registry_passes(world: World) -> None:
    """Without a daemon and with one, and nothing is written."""
    assert check(world) == Checked(4, ())
    before = world.store.path.read_bytes()
    assert check(world) == Checked(4, ())
    assert world.store.path.read_bytes() == before
    world.open()
    with world.store.transaction():
        assert check(world) == Checked(4, ())
    world.store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE leases SET overlay_ip = '10.10.0.77' WHERE hostname = 'edge-1'",
        "UPDATE leases SET rank = 9 WHERE hostname = 'edge-1'",
        "UPDATE leases SET hostname = 'other' WHERE hostname = 'edge-1'",
        "UPDATE leases SET is_relay = 1 WHERE hostname = 'edge-1'",
        "UPDATE leases SET envelope = replace(envelope, 'left', 'right') WHERE hostname = 'edge-1'",
        "UPDATE leases SET envelope = '{}' WHERE hostname = 'edge-1'",
        "DELETE FROM credentials",
        "UPDATE network SET network_id = 'another'",
        "DELETE FROM network",
        "UPDATE network SET cidr = '10.20.0.0/24'",
        "UPDATE network SET epoch = 1",
        "INSERT INTO quarantine VALUES ('overlay_ip', '10.10.0.3', 'x', 'former', NULL)",
        "INSERT INTO revocations SELECT node_id, '', hostname, overlay_ip, rank, '', '' FROM leases",
        "PRAGMA user_version = 99",
    ],
)
def test_what_must_not_be_is_found(world: World, statement: str, words: Words) -> None:
    change(world, statement)
    problems = check(world).problems
    assert problems
    for problem in problems:
        words(problem.partition("\n")[0], NETWORK=world.keys.network_id)


def test_a_row_that_belongs_to_nobody_is_found(world: World) -> None:
    """SQLite holds foreign keys only for those who ask for it."""
    change(world, "DELETE FROM leases WHERE hostname = 'edge-1'")
    assert any("of credentials" in problem for problem in check(world).problems)


def test_a_lease_of_another_network_is_found(world: World, tmp_path: Path, words: Words) -> None:
    """Signed by a registry, but not by this one."""
    other = World(tmp_path / "other")
    lease = world.keys.sign(Kind.LEASE, other.join("edge-1"))
    foreign = other.store.lease_envelopes().popitem()[1]
    other.store.close()
    with closing(sqlite3.connect(world.store.path, isolation_level=None)) as database:
        for envelope in (foreign, lease):
            database.execute("UPDATE leases SET envelope = ? WHERE hostname = 'edge-1'", (envelope.model_dump_json(),))
            for problem in check(world).problems:
                words(problem, NETWORK=other.keys.network_id)


def test_an_older_schema_is_told(world: World) -> None:
    """It is the daemon's to migrate."""
    downgrade(world.store.path)
    assert f"older EdgeLink ({SCHEMA_VERSION - 1})" in check(world).problems[0]


def test_damaged_pages_are_found(world: World) -> None:
    """With what to do; the file is left as it is."""
    data = bytearray(world.store.path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    for page in range(1, len(data) // size):
        data[page * size : page * size + 64] = b"\xff" * 64
    world.store.path.write_bytes(data)
    problems = check(world).problems
    assert "registry restore" in problems[-1]
    assert world.store.path.read_bytes() == bytes(data)


@pytest.mark.parametrize("content", [b"", b"no database at all, " * 400])
def test_another_file_in_its_place_is_found(world: World, content: bytes) -> None:
    world.store.path.write_bytes(content)
    assert check(world).problems


def test_a_registry_without_its_database_or_keys(world: World, tmp_path: Path) -> None:
    """Half of it is a problem that is told; none of it is another machine."""
    world.store.path.unlink()
    assert "is gone" in check(world).problems[0]
    with refuses(RegistryError, tmp_path / "elsewhere", reason="NoRegistryHere"):
        check_registry(Paths(tmp_path / "elsewhere", tmp_path / "run"))
    (world.directory / "authority" / "registry.key").unlink()
    world.store.path.write_bytes(b"")
    assert "registry.key missing" in check(world).problems[0]


def test_a_clone_that_was_refused_is_no_damage(world: World) -> None:
    """It is in the history, although nothing changed."""
    world.open()
    with world.store.transaction():
        world.store.record(CLONE_REFUSED, NodeKey.generate().node_id, "its key is here", "", is_change=False)
    world.store.close()
    assert check(world).problems == ()
    change(world, "DELETE FROM history WHERE action = 'released'")
    assert len(check(world).problems) == 1


def test_rests_that_have_ended_are_no_problem(world: World) -> None:
    """Somebody else holds by now what has rested, and that is forgotten with the new lease."""
    world.open()
    world.clock.step_wall_clock(timedelta(days=2).total_seconds())
    world.join("gone")
    world.store.close()
    assert check(world) == Checked(5, ())
