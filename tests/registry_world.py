"""A registry on a temporary directory, as the tests of the registry need it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import EnrolRequest, Envelope, Lease, Role
from edgelink.protocol.token import Token
from edgelink.relay.authority import Authority, EnrolResult
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.database import SCHEMA_VERSION
from edgelink.relay.founding import NetworkRequest
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenRequest
from edgelink.testing import FakeClock

ADDRESSES = ("203.0.113.5:8883", "relay.example.org:8883")
DEFAULT_CIDR = IPv4Network("10.10.0.0/24")
PEERS = ("tcp://203.0.113.5:11010",)


@dataclass
class World:
    """One network's registry, and what nodes would send to it."""

    directory: Path
    clock: FakeClock = field(default_factory=FakeClock)
    cidr: IPv4Network = DEFAULT_CIDR

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.keys = AuthorityKeys.load_or_create(self.directory / "authority", self.clock)
        self.store = RegistryStore(self.directory / "registry.sqlite3", self.clock)
        self.authority = Authority(self.store, self.keys, self.clock, addresses=ADDRESSES, overlay_peers=PEERS)
        self.network = self.authority.create_network(NetworkRequest("lab", self.cidr))

    def reopen(self) -> None:
        """What a restart of the daemon does."""
        self.store.close()
        self.open()

    def token(self, role: Role = Role.EDGE, **options: Any) -> Token:
        return self.authority.create_token(TokenRequest(role, **options))

    def request(self, key: NodeKey, token: Token, hostname: str = "edge-1", **fields: Any) -> Envelope:
        fields.setdefault("role", Role.EDGE)
        request = EnrolRequest(
            token_id=token.token_id,
            verify_key=key.verify_key_b64,
            hostname=hostname,
            edgelink_version="0.1.0",
            **fields,
        )
        return key.sign(Kind.ENROL_REQUEST, request)

    def enrol(self, key: NodeKey, token: Token, hostname: str = "edge-1", **fields: Any) -> EnrolResult:
        return self.authority.enrol(self.request(key, token, hostname, **fields), token.token_id)

    def join(self, hostname: str, role: Role = Role.EDGE, **options: Any) -> Lease:
        """A new machine with a new token."""
        result = self.enrol(NodeKey.generate(), self.token(role, **options), hostname, role=role)
        return self.lease(result)

    def lease(self, result: EnrolResult) -> Lease:
        assert result.reply.lease is not None, result.reply.error
        return open_envelope(result.reply.lease, Kind.LEASE, Lease, self.keys.verify_key_b64)

    def membership(self, key: NodeKey, token: Token, result: EnrolResult) -> Membership:
        return Membership.from_reply(result.reply, token=token, key=key, ca_pem=self.keys.ca_pem)


def downgrade(path: Path) -> None:
    """Make the closed database at ``path`` what the version before wrote. To be deleted with that migration."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(
            "CREATE TABLE rotation_nodes (node_id TEXT PRIMARY KEY REFERENCES leases ON DELETE CASCADE,"
            "    expected INTEGER NOT NULL, prepared_epoch INTEGER NOT NULL, running_epoch INTEGER NOT NULL,"
            "    hold_until TEXT) STRICT;"
            "INSERT INTO rotation_nodes SELECT node_id, 1, secret_epoch, secret_epoch, NULL FROM leases;"
            "ALTER TABLE leases DROP COLUMN secret_epoch;"
            "ALTER TABLE rotation ADD COLUMN phase TEXT NOT NULL DEFAULT 'prepare';"
            f"PRAGMA user_version = {SCHEMA_VERSION - 1}"
        )
