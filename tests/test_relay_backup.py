"""Backup of a registry, and its restoration on another machine."""

from __future__ import annotations

import base64
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from registry_world import ADDRESSES, World, downgrade
from telling import refuses

from edgelink.config import Paths
from edgelink.errors import ConfigError, RegistryError, UntrustedError
from edgelink.member.access_watch import AccessWatch
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Directory, Envelope, NodeAccess, RelayAddresses, Role
from edgelink.protocol.transport import Message
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.backup import backup, restore
from edgelink.relay.database import SCHEMA_VERSION
from edgelink.relay.store import RegistryStore
from edgelink.testing import FakeClock

SECOND = RelayAddresses(overlay_peers=("tcp://198.51.100.7:11010",), broker_addresses=("198.51.100.7:8883",))
CLOCK = FakeClock()


class Relay:
    """The machine with the registry, an edge and a second relay in its network."""

    def __init__(self, directory: Path) -> None:
        self.paths = Paths(directory, directory / "run")
        self.world = World(directory)
        self.key = NodeKey.load_or_create(self.paths.node_key)
        self.lease = self.world.authority.ensure_relay_lease(self.key, "relay")
        self.edge = NodeKey.generate()
        token = self.world.token()
        self.edge_membership = self.world.membership(self.edge, token, self.world.enrol(self.edge, token))
        self.second = NodeKey.generate()
        token = self.world.token(Role.RELAY)
        result = self.world.enrol(self.second, token, "relay-2", role=Role.RELAY, relay=SECOND)
        self.second_membership = self.world.membership(self.second, token, result)


@pytest.fixture
def relay(tmp_path: Path) -> Relay:
    return Relay(tmp_path / "old")


@pytest.fixture
def fresh(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "new", tmp_path / "new-run")


def authority(paths: Paths, *addresses: str) -> Authority:
    keys = AuthorityKeys.load(paths.authority_keys)
    return Authority(RegistryStore(paths.registry_database, CLOCK), keys, CLOCK, addresses=addresses)


def directory(found: Authority, membership: Membership) -> Directory:
    return open_envelope(found.directory(), Kind.DIRECTORY, Directory, membership.registry_verify_key)


def test_a_new_machine_becomes_the_relay(relay: Relay, fresh: Paths) -> None:
    """The same network, keys, leases and passwords: what nodes hold is good there, and what it signs to them."""
    before = relay.world.store.leases()
    restored = restore(backup(relay.paths, CLOCK), fresh, CLOCK)
    assert (restored.relay, restored.is_moved) == (relay.lease, False)
    there = authority(fresh, "192.0.2.9:8883")
    assert there.ensure_relay_lease(NodeKey.load(fresh.node_key), "relay") == relay.lease
    store = RegistryStore(fresh.registry_database, CLOCK)
    assert store.leases() == before
    password = store.node_password(relay.edge.node_id)
    assert password is not None
    assert password.matches(relay.edge_membership.secrets.broker_password)
    assert AuthorityKeys.load(fresh.authority_keys).ca_pem == relay.edge_membership.ca_pem
    told = directory(there, relay.edge_membership)
    assert told.relays[relay.key.node_id].broker_addresses == ("192.0.2.9:8883",)
    old = directory(relay.world.authority, relay.edge_membership)
    assert told.generation > old.generation == 0
    assert told.epoch > old.epoch
    following = relay.edge_membership.following(told, in_use="192.0.2.9:8883")
    assert following.addresses == ("192.0.2.9:8883", *SECOND.broker_addresses)


def test_files_of_a_restored_registry_are_private(relay: Relay, fresh: Paths) -> None:
    """Keys and secrets are in them."""
    restore(backup(relay.paths, CLOCK), fresh, CLOCK)
    for path in fresh.state.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert fresh.state.stat().st_mode & 0o777 == 0o700
    assert not list(fresh.state.glob(".restore-*"))


def test_another_relay_takes_the_registry_over(relay: Relay, fresh: Paths) -> None:
    """It keeps its own key, lease and address, at which nodes look already."""
    fresh.state.mkdir()
    key_file = fresh.node_key
    key_file.touch(0o600)
    key_file.write_bytes(_key_bytes(relay.second))
    relay.second_membership.save(fresh)
    restored = restore(backup(relay.paths, CLOCK), fresh, CLOCK)
    assert (restored.relay.hostname, restored.is_moved) == ("relay-2", True)
    there = authority(fresh, *SECOND.broker_addresses)
    assert there.ensure_relay_lease(NodeKey.load(key_file), "whatever") == relay.second_membership.lease
    told = directory(there, relay.edge_membership)
    assert told.relays[relay.second.node_id].broker_addresses == SECOND.broker_addresses
    assert told.relays[relay.key.node_id].broker_addresses == ADDRESSES  # until the operator releases it
    there.release("relay")
    assert set(directory(there, relay.edge_membership).relays) == {relay.second.node_id}


def _key_bytes(key: NodeKey) -> bytes:
    return base64.b64encode(bytes(key._signing_key))


def test_access_rules_come_along_and_count_more_than_those_since(relay: Relay, fresh: Paths) -> None:
    """A node that followed what came after the backup goes by the backup's rules, and an old broker's word is old."""
    access = relay.world.authority.access
    watch = AccessWatch(relay.edge_membership, None)

    def hear(documents: Mapping[str, tuple[NodeAccess, Envelope]]) -> None:
        _, envelope = documents[relay.edge.node_id]
        watch.take(Message(watch.topic, envelope.model_dump_json().encode()))

    kept, later = access.rule("edge", "tcp/22", "relay"), access.rule("edge", "tcp/80", "all")
    access.allow([kept], caller="ops")
    data = backup(relay.paths, CLOCK)
    access.deny([kept])
    access.allow([later])
    last = access.documents()
    hear(last)
    restore(data, fresh, CLOCK)
    restored = authority(fresh, *ADDRESSES)
    assert [(made.rule, made.made_by) for made in restored.access.all()] == [(kept, "ops")]
    hear(restored.access.documents())
    assert watch.told.recorded is not None
    assert [opening.first for opening in watch.told.recorded.openings] == [22]
    with pytest.raises(UntrustedError, match="older"):
        hear(last)


def test_what_was_granted_while_it_was_copied_is_whole(relay: Relay, fresh: Paths) -> None:
    """A backup is one moment of a database that is in use: what is committed is in it, what is not is not."""
    with relay.world.store.transaction():
        relay.world.store._database.execute("UPDATE network SET name = 'half done'")
        data = backup(relay.paths, CLOCK)
    restore(data, fresh, CLOCK)
    network = RegistryStore(fresh.registry_database, CLOCK).network()
    assert network is not None
    assert network.name == "lab"


def test_a_machine_that_holds_a_registry_is_refused(relay: Relay, tmp_path: Path) -> None:
    """Its own, and another network's, whole or in part."""
    data = backup(relay.paths, CLOCK)
    epoch = relay.world.store.epoch()
    with refuses(ConfigError, relay.world.network.network_id, reason="RegistryExists"):
        restore(data, relay.paths, CLOCK)
    assert (relay.world.store.epoch(), relay.world.store.generation()) == (epoch, 0)
    other = Relay(tmp_path / "other")
    other.world.store.close()
    other.paths.registry_database.unlink()
    with refuses(ConfigError, other.world.network.network_id, "--replace", reason="RegistryExists"):
        restore(data, other.paths, CLOCK)


@pytest.mark.parametrize("lost", ["database", "keys"])
def test_what_is_left_of_a_registry_is_kept(relay: Relay, lost: str) -> None:
    """Also what an interrupted restoration leaves: the missing part comes back, the present one is not touched."""
    data = backup(relay.paths, CLOCK)
    relay.world.join("edge-9")
    leases = relay.world.store.leases()
    relay.world.store.close()
    if lost == "database":
        for path in relay.paths.state.glob("registry.sqlite3*"):
            path.unlink()
    else:
        relay.paths.authority_keys.rename(relay.paths.state / "lost")
    restore(data, relay.paths, CLOCK)
    kept = RegistryStore(relay.paths.registry_database, CLOCK).leases()
    assert kept == (leases if lost == "keys" else [lease for lease in leases if lease.hostname != "edge-9"])
    assert AuthorityKeys.load(relay.paths.authority_keys).network_id == relay.world.network.network_id


def test_a_wal_that_was_left_is_no_part_of_the_restored_registry(relay: Relay) -> None:
    """Whoever moves the database away may leave it: SQLite would replay it into the restored one."""
    data = backup(relay.paths, CLOCK)
    saved = relay.world.store.leases()
    relay.world.join("edge-9")  # in the -wal only: the daemon is killed before it is written back
    relay.paths.registry_database.rename(relay.paths.state / "moved-away")
    wal = relay.paths.state / "registry.sqlite3-wal"
    lost = wal.read_bytes()
    restored = restore(data, relay.paths, CLOCK)
    store = RegistryStore(relay.paths.registry_database, CLOCK)
    assert store.leases() == saved
    assert store.generation() > 0
    assert restored.set_aside is not None
    assert (restored.set_aside / wal.name).read_bytes() == lost


def test_a_relay_goes_back_to_a_backup(relay: Relay) -> None:
    """Its registry was migrated by a newer EdgeLink, or is damaged: it is set aside, and nothing of it is deleted."""
    data = backup(relay.paths, CLOCK)
    saved = relay.world.store.leases()
    relay.world.join("edge-9")
    relay.world.store.close()
    with closing(sqlite3.connect(relay.paths.registry_database)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    key = relay.paths.node_key.read_bytes()
    with refuses(RegistryError, "edgelink registry restore --replace FILE"):
        restore(data, relay.paths, CLOCK)
    newer = relay.paths.registry_database.read_bytes()
    restored = restore(data, relay.paths, CLOCK, replace=True)
    assert restored.relay == relay.lease
    assert RegistryStore(relay.paths.registry_database, CLOCK).leases() == saved
    assert AuthorityKeys.load(relay.paths.authority_keys).network_id == relay.world.network.network_id
    assert relay.paths.node_key.read_bytes() == key
    aside = restored.set_aside
    assert aside is not None
    assert aside.stat().st_mode & 0o777 == 0o700
    assert (aside / "registry.sqlite3").read_bytes() == newer
    assert AuthorityKeys.load(aside / "authority").network_id == relay.world.network.network_id
    relay.paths.registry_database.write_bytes(b"this is no database, " * 100)
    again = restore(data, relay.paths, CLOCK, replace=True)
    assert again.set_aside not in (None, aside)
    assert RegistryStore(relay.paths.registry_database, CLOCK).leases() == saved


def test_a_registry_stays_where_its_backup_cannot_take_its_place(relay: Relay, tmp_path: Path) -> None:
    """Of another network, say: nothing is set aside before that is known."""
    other = Relay(tmp_path / "other")
    with refuses(ConfigError, relay.paths.node_key, reason="WrongRole"):
        restore(backup(other.paths, CLOCK), relay.paths, CLOCK, replace=True)
    assert relay.paths.registry_database.exists()
    assert relay.paths.authority_keys.exists()
    assert not list(relay.paths.state.glob("registry-set-aside-*"))


def test_a_member_that_is_no_relay_is_refused(relay: Relay, fresh: Paths) -> None:
    """Neither an edge of the network, nor a machine with a key that the backup does not know, becomes the relay."""
    data = backup(relay.paths, CLOCK)
    fresh.state.mkdir()
    NodeKey.load_or_create(fresh.node_key)
    with refuses(ConfigError, fresh.node_key, reason="WrongRole"):
        restore(data, fresh, CLOCK)
    fresh.node_key.write_bytes(_key_bytes(relay.edge))
    with refuses(ConfigError, "edge-1", fresh.node_key, reason="WrongRole"):
        restore(data, fresh, CLOCK)
    assert not fresh.registry_database.exists()
    assert not fresh.authority_keys.exists()


def _without(name: str) -> Callable[[bytes], bytes]:
    def spoil(data: bytes) -> bytes:
        out = io.BytesIO()
        with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
            for member in old.getmembers():
                if member.name != name:
                    new.addfile(member, old.extractfile(member))
        return out.getvalue()

    return spoil


def _newer(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as old, tarfile.open(fileobj=out, mode="w") as new:
        for member in old.getmembers():
            file = old.extractfile(member)
            assert file is not None
            content = file.read()
            if member.name == "manifest.json":
                content = json.dumps({**json.loads(content), "format": 99, "edgelink_version": "9.9"}).encode()
                member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    ("spoil", "named", "reason"),
    [
        (lambda _: b"", "", "BackupDamaged"),
        (lambda _: b"something else" * 1000, "", "BackupDamaged"),
        (lambda data: data[: len(data) // 2], "", "BackupDamaged"),
        (lambda data: data.replace(b"edge-1", b"edge-X", 1), "registry.sqlite3", "BackupDamaged"),
        (_without("authority/ca.key"), "authority/ca.key", "BackupDamaged"),
        (_without("manifest.json"), "", "BackupDamaged"),
        (_newer, "(9.9)", "RegistryFailed"),
    ],
    ids=["empty", "other", "cut off", "altered", "part missing", "no manifest", "newer"],
)
def test_a_spoilt_file_is_refused(
    relay: Relay, fresh: Paths, spoil: Callable[[bytes], bytes], named: str, reason: str
) -> None:
    """Nothing is left of the attempt."""
    with refuses(RegistryError, named, reason=reason):
        restore(spoil(backup(relay.paths, CLOCK)), fresh, CLOCK)
    assert not fresh.state.exists() or not list(fresh.state.iterdir())


def test_a_damaged_database_is_not_backed_up(relay: Relay) -> None:
    """A backup that could not be restored is worse than none."""
    relay.world.store.close()
    for path in relay.paths.state.glob("registry.sqlite3-*"):
        path.unlink()
    content = bytearray(relay.paths.registry_database.read_bytes())
    content[4096:8192] = bytes(4096)
    relay.paths.registry_database.write_bytes(content)
    with pytest.raises(RegistryError, match=r"damaged|cannot be copied"):
        backup(relay.paths, CLOCK)


def test_without_a_registry_there_is_nothing_to_back_up(fresh: Paths) -> None:
    with refuses(RegistryError, fresh.registry_database, reason="NoRegistryHere"):
        backup(fresh, CLOCK)


def test_a_backup_of_an_older_edgelink_is_brought_up_to_date(relay: Relay, fresh: Paths) -> None:
    """The database in it is migrated like one on disk."""
    relay.world.store.release("relay-2")
    relay.world.store.close()
    downgrade(relay.paths.registry_database)
    restore(backup(relay.paths, CLOCK), fresh, CLOCK)
    assert RegistryStore(fresh.registry_database, CLOCK).generation() > 0
