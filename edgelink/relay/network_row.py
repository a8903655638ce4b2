"""The network's one row in the registry's database, as :class:`edgelink.relay.records.Network`."""

from __future__ import annotations

from edgelink.relay.database import Database
from edgelink.relay.records import Network


def network_of(database: Database) -> Network | None:
    """What is recorded; None before the first start."""
    return database.record(Network, "SELECT * FROM network")


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
