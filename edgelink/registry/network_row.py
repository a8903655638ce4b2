"""The network's one row in the registry's database, as :class:`edgelink.registry.records.Network`."""

from __future__ import annotations

import json
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network

from edgelink.registry.database import Database
from edgelink.registry.payloads import Role
from edgelink.registry.records import Network


def network_of(database: Database) -> Network | None:
    """What is recorded; None before the first start."""
    row = database.row("SELECT * FROM network")
    if row is None:
        return None
    return Network(
        network_id=row["network_id"],
        name=row["name"],
        secret=row["secret"],
        cidr=IPv4Network(row["cidr"]),
        relay_ip=IPv4Address(row["relay_ip"]),
        created_at=datetime.fromisoformat(row["created_at"]),
        secret_epoch=row["secret_epoch"],
        ranges={
            Role(role): (IPv4Address(first), IPv4Address(last))
            for role, (first, last) in json.loads(row["ranges"]).items()
        },
    )


def put_network(database: Database, network: Network) -> None:
    """Record it, once; inside of the caller's transaction."""
    database.execute(
        "INSERT INTO network (only_row, network_id, name, secret, cidr, relay_ip, created_at, epoch, secret_epoch) "
        "VALUES (1, ?, ?, ?, ?, ?, ?, 0, ?)",
        network.network_id,
        network.name,
        network.secret,
        str(network.cidr),
        str(network.relay_ip),
        network.created_at.isoformat(),
        network.secret_epoch,
    )
