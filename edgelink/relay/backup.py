"""A backup of a network's registry: all that a relay needs to serve it on another machine and address, in one file.

A tar archive of the database (copied while the daemon runs, by SQLite's own backup), the network's keys and CA, the
relay's node key, and a manifest with the hash of each. It is as secret as the state directory itself: who has it can
be this network's registry.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgelink import __version__
from edgelink.clock import Clock
from edgelink.config import Paths
from edgelink.errors import ConfigError, RegistryError
from edgelink.files import fsync_directory, private_directory, write_atomic
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Lease
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.store import RegistryStore

_FORMAT = 1
_MANIFEST = "manifest.json"
_DATABASE = "registry.sqlite3"
_NODE_KEY = "node.key"
_AUTHORITY = "authority"
_OTHER_FILE = "name a file that `edgelink registry backup` made"


@dataclass(frozen=True)
class Restored:
    """``relay`` is the lease under which this machine serves the registry from now on."""

    network_id: str
    relay: Lease
    is_moved: bool  # to a machine that was another relay before
    set_aside: Path | None  # where that lies of an earlier registry which was in the way


def has_registry(paths: Paths) -> bool:
    """Whether this machine holds a network's registry, or part of one."""
    return paths.registry_database.exists() or paths.authority_keys.exists()


def require_registry(paths: Paths) -> None:
    """Raises RegistryError where :func:`has_registry` says no."""
    if not has_registry(paths):
        raise RegistryError(
            f"there is no registry on this machine ({paths.registry_database})",
            hint="run it on the relay that has it",
            reason="NoRegistryHere",
        )


def backup(paths: Paths, clock: Clock) -> bytes:
    """The backup of the registry in ``paths``; the daemon may run meanwhile.

    Raises:
        RegistryError: there is no registry here, or it is damaged.
    """
    require_registry(paths)
    keys = AuthorityKeys.load(paths.authority_keys)
    files = {_DATABASE: _database(paths.registry_database), _NODE_KEY: paths.node_key.read_bytes()}
    files |= {f"{_AUTHORITY}/{file.name}": file.read_bytes() for file in sorted(paths.authority_keys.iterdir())}
    manifest = {
        "format": _FORMAT,
        "network_id": keys.network_id,
        "made_at": clock.now().isoformat(timespec="seconds"),
        "edgelink_version": __version__,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, data in {_MANIFEST: json.dumps(manifest, indent=2).encode(), **files}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(data), 0o600, int(clock.now().timestamp())
            tar.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def restore(data: bytes, paths: Paths, clock: Clock, *, replace: bool = False) -> Restored:
    """Put a backup's registry on this machine; ``edgelink relay`` serves it from then on.

    A machine that is a relay of this network stays the relay that it is. What is half there already (a database
    without keys, or the other way round) is completed, so an interrupted restoration can be repeated.

    Args:
        replace: a registry that is here is set aside, whatever EdgeLink wrote it and in whatever state it is; nothing
            may have it open.

    Raises:
        ConfigError: this machine holds a registry, or is a member as something else than a relay.
        RegistryError: the file is no backup, is damaged, or is of a newer EdgeLink.
    """
    files = _read(data)
    private_directory(paths.state)
    stage = paths.state / f".restore-{secrets.token_hex(4)}"
    private_directory(stage / _AUTHORITY)
    try:
        for name, content in files.items():
            write_atomic(stage / name, content)
        keys = AuthorityKeys.load(stage / _AUTHORITY)
        if not replace:
            _refuse_other_registry(paths, keys.network_id, clock)
        with closing(RegistryStore(stage / _DATABASE, clock)) as store:
            lease, is_moved = _prepare(store, keys.network_id, paths, NodeKey.load(stage / _NODE_KEY))
        set_aside = _set_aside(paths, clock, replace=replace)
        _place(stage, paths)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Restored(keys.network_id, lease, is_moved, set_aside)


def _database(path: Path) -> bytes:
    """A consistent copy of a database that may be in use."""
    with tempfile.TemporaryDirectory(prefix="edgelink-backup-") as directory:  # 0700
        copy = Path(directory) / _DATABASE
        try:
            with (
                closing(sqlite3.connect(f"file:{path}?mode=rw", uri=True)) as source,
                closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # so that all of it is in the one file
                (verdict,) = target.execute("PRAGMA integrity_check").fetchone()
        except sqlite3.Error as error:
            raise RegistryError(f"{path}: cannot be copied: {error}", hint="restore an earlier backup") from error
        if verdict != "ok":
            raise RegistryError(f"{path}: is damaged: {verdict}", hint="restore an earlier backup")
        return copy.read_bytes()


def _read(data: bytes) -> dict[str, bytes]:
    """The files by name, each checked against the manifest. Nothing is unpacked by the names in the archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = {m.name: file.read() for m in tar.getmembers() if (file := tar.extractfile(m)) is not None}
        manifest: dict[str, Any] = json.loads(found.pop(_MANIFEST))
        hashes = dict(manifest["sha256"])
        made_by, is_newer = manifest["edgelink_version"], manifest["format"] > _FORMAT
    except (tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise RegistryError("this is not a backup of a registry", hint=_OTHER_FILE, reason="BackupDamaged") from error
    if is_newer:
        raise RegistryError(f"the backup was made by a newer EdgeLink ({made_by})", hint="install that version")
    for name, expected in hashes.items():
        if name not in found or hashlib.sha256(found[name]).hexdigest() != expected:
            raise RegistryError(f"the backup is damaged: {name}", hint="take another copy", reason="BackupDamaged")
    files = {name: content for name, content in found.items() if name in hashes and _is_known(name)}
    if not {_DATABASE, _NODE_KEY} <= files.keys():
        raise RegistryError("the backup is not whole", hint=_OTHER_FILE, reason="BackupDamaged")
    return files


def _is_known(name: str) -> bool:
    directory, _, file = name.rpartition("/")
    return name in (_DATABASE, _NODE_KEY) or (directory == _AUTHORITY and file not in ("", ".", ".."))


def _refuse_other_registry(paths: Paths, network_id: str, clock: Clock) -> None:
    there: list[str] = []
    if paths.authority_keys.exists():
        there.append(AuthorityKeys.load(paths.authority_keys).network_id)
    if paths.registry_database.exists():
        with closing(RegistryStore(paths.registry_database, clock)) as store:
            network = store.network()
            there.append(network.network_id if network else "unknown")
    if len(there) == 2 or any(found != network_id for found in there):
        raise ConfigError(
            f"this machine holds a registry already, of network {there[0]}",
            hint="restore on another machine; to go back to the backup here, stop the daemon and give --replace: what "
            f"is here stays, in a directory of its own in {paths.state}",
            reason="RegistryExists",
        )


def _prepare(store: RegistryStore, network_id: str, paths: Paths, backed_up: NodeKey) -> tuple[Lease, bool]:
    """Settle as which relay this machine serves the registry, and make it count more than the one it was copied of.

    The relay's lease, and whether it is another one than the backup was made on.
    """
    network = store.network()
    if network is None or network.network_id != network_id:
        raise RegistryError("the backup's database and keys do not belong together", hint=_OTHER_FILE)
    key = NodeKey.load(paths.node_key) if paths.node_key.exists() else backed_up
    lease = store.lease(key.node_id)
    if lease is None or not lease.is_relay:
        what = f"is enrolled as {lease.role.value} {lease.hostname}" if lease else "has a key of its own"
        raise ConfigError(
            f"this machine {what} ({paths.node_key})",
            hint="restore on a new machine, or on a relay that had joined before the backup was made",
            reason="WrongRole",
        )
    is_moved = key.node_id != backed_up.node_id
    store.note_restoration(lease.node_id, keep_addresses=is_moved)
    return lease, is_moved


def _set_aside(paths: Paths, clock: Clock, *, replace: bool) -> Path | None:
    """Move away what would be taken for a part of the restored registry; where to, None: there was nothing.

    SQLite replays a ``-wal`` that lies beside a database into it, also one of another database.
    """
    database = paths.registry_database
    files = [database.with_name(f"{database.name}{end}") for end in ("-wal", "-shm")]
    if replace:
        # The database first: while it is there, an interrupted restoration is refused instead of completed with it.
        files = [database, *files, paths.authority_keys]
    elif database.exists():  # it is kept, and these are its own
        return None
    there = [file for file in files if file.exists()]
    if not there:
        return None
    aside = paths.state / f"registry-set-aside-{clock.now():%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
    private_directory(aside)
    for file in there:
        file.rename(aside / file.name)
    fsync_directory(aside)
    fsync_directory(paths.state)  # before anything takes their place
    return aside


def _place(stage: Path, paths: Paths) -> None:
    if not paths.node_key.exists():
        os.link(stage / _NODE_KEY, paths.node_key)
    if not paths.authority_keys.exists():
        (stage / _AUTHORITY).rename(paths.authority_keys)
    if not paths.registry_database.exists():
        (stage / _DATABASE).rename(paths.registry_database)
    fsync_directory(paths.state)
