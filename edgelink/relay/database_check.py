"""Whether a registry's database is whole and says one thing: asked of the files, with or without a daemon."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from pydantic import ValidationError

from edgelink.config import Paths
from edgelink.errors import EdgelinkError
from edgelink.protocol.keys import Kind, node_id_of, open_envelope
from edgelink.protocol.payloads import Envelope, Lease, unusable_fields
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.backup import require_registry
from edgelink.relay.database import SCHEMA_VERSION
from edgelink.relay.quarantine import held_by
from edgelink.relay.store import CLONE_REFUSED

_RESTORE = "stop the daemon and restore the newest backup: `edgelink registry restore --replace FILE`"


@dataclass(frozen=True)
class Checked:
    """``problems`` in words for people; empty: all is well."""

    leases: int
    problems: tuple[str, ...]


def check_registry(paths: Paths) -> Checked:
    """Look at every page, every lease and its signature, and at what must never be; changes nothing.

    Raises:
        RegistryError: there is no registry here.
    """
    require_registry(paths)
    if not paths.registry_database.exists():
        return Checked(0, (f"{paths.registry_database} is gone: {_RESTORE}",))
    try:
        keys = AuthorityKeys.load(paths.authority_keys)
    except EdgelinkError as error:
        return Checked(0, (str(error),))
    try:
        with closing(_open(paths.registry_database)) as database:
            problems = _damage(database)
            if problems:
                return Checked(0, (*problems, _RESTORE))
            return _look(database, keys)
    except sqlite3.Error as error:
        return Checked(0, (f"{paths.registry_database} cannot be read: {error}", _RESTORE))


def _open(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10.0)
    database.row_factory = sqlite3.Row
    database.execute("BEGIN")  # one state of it, whatever a daemon writes meanwhile
    return database


def _damage(database: sqlite3.Connection) -> list[str]:
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version > SCHEMA_VERSION:
        return [f"it was written by a newer EdgeLink (schema {version}, this one knows {SCHEMA_VERSION})"]
    if version < SCHEMA_VERSION:
        return [f"it has the schema of an older EdgeLink ({version}): start `edgelink relay`, which migrates it"]
    found = [row[0] for row in database.execute("PRAGMA integrity_check(20)")]
    found = [f"damaged: {text}" for text in found if text != "ok"]
    found += [
        f"a row of {row['table']} belongs to a {row['parent']} that is not there"
        for row in database.execute("PRAGMA foreign_key_check")
    ]
    return found


def _look(database: sqlite3.Connection, keys: AuthorityKeys) -> Checked:
    network = database.execute("SELECT * FROM network").fetchone()
    rows = database.execute("SELECT * FROM leases ORDER BY hostname").fetchall()
    if network is None:
        return Checked(len(rows), ("there is no network in it",))
    problems = []
    if network["network_id"] != keys.network_id:
        problems.append(f"it belongs to network {network['network_id']}, the keys beside it to {keys.network_id}")
    rests = {(row["kind"], row["value"]): row["hostname"] for row in database.execute("SELECT * FROM quarantine")}
    revoked = {row["node_id"] for row in database.execute("SELECT node_id FROM revocations")}
    can_connect = {row["node_id"] for row in database.execute("SELECT node_id FROM credentials")}
    for row in rows:
        for problem in _of_lease(row, keys, IPv4Network(network["cidr"]), IPv4Address(network["relay_ip"])):
            problems.append(f"the lease of {row['hostname']} ({row['node_id']}): {problem}")
        if row["node_id"] in revoked:
            problems.append(f"{row['hostname']} ({row['node_id']}) holds a lease, although its key was put out")
        if row["node_id"] not in can_connect:
            problems.append(f"{row['hostname']} ({row['node_id']}) has no password for the broker: let it join again")
        for kind, column in (("hostname", "hostname"), ("overlay_ip", "overlay_ip"), ("rank", "rank")):
            former = rests.get((kind, str(row[column])))
            if former is not None:
                problems.append(f"the {kind} {row[column]} of {row['hostname']} rests for {former} at the same time")
    (entries,) = database.execute("SELECT count(*) FROM history WHERE action <> ?", (CLONE_REFUSED,)).fetchone()
    if entries != network["epoch"]:
        problems.append(f"its count of changes is {network['epoch']}, and its history holds {entries}")
    return Checked(len(rows), tuple(problems))


def _of_lease(row: sqlite3.Row, keys: AuthorityKeys, cidr: IPv4Network, relay_ip: IPv4Address) -> list[str]:
    try:
        envelope = Envelope.model_validate_json(row["envelope"])
        lease = open_envelope(envelope, Kind.LEASE, Lease, keys.verify_key_b64)
    except ValidationError as error:
        return [f"its signed text is damaged: unusable {unusable_fields(error, of_all='JSON')}"]
    except (EdgelinkError, ValueError) as error:
        return [f"its signature does not hold: {error}"]
    stated = {"node_id": lease.node_id, "rank": None, **held_by(lease), "is_relay": str(int(lease.is_relay))}
    problems = [
        f"its {name} is {row[name]}, the signed one {value}"
        for name, value in stated.items()
        if (None if row[name] is None else str(row[name])) != value
    ]
    if lease.network_id != keys.network_id:
        problems.append(f"it is of network {lease.network_id}")
    if node_id_of(lease.verify_key) != lease.node_id:
        problems.append("its key is another node's")
    is_special = lease.overlay_ip in (cidr.network_address, cidr.broadcast_address)
    if lease.overlay_ip != relay_ip and (lease.overlay_ip not in cidr or is_special):
        problems.append(f"{lease.overlay_ip} is no host address of {cidr}")
    return problems
