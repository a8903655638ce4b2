"""The registry's memory: one SQLite file on the relay, which never forgets what was acknowledged.

Every change is one transaction that is on disk (WAL, ``synchronous=FULL``) when the call returns; what must never
happen twice (a hostname, an overlay IP, a rank) is a UNIQUE constraint as well as a rule of the
allocator. Secrets of nodes and tokens are kept as hashes only. The network's own secret is kept in clear: it has to be
given to each new node. What may be granted is decided in :mod:`edgelink.relay.authority`, not here.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from edgelink.clock import Clock
from edgelink.errors import LeaseConflictError, RegistryError
from edgelink.files import AT_ONCE, Files
from edgelink.protocol.payloads import Envelope, Lease, RelayAddresses
from edgelink.relay.access_book import AccessBook
from edgelink.relay.database import Database
from edgelink.relay.departures import Departures
from edgelink.relay.holdings import Holdings
from edgelink.relay.machine_book import MachineBook
from edgelink.relay.network_row import network_of, put_network
from edgelink.relay.passwords import BrokerPassword
from edgelink.relay.quarantine import Quarantine
from edgelink.relay.records import BrokerUser, Network, Ranges
from edgelink.relay.revocations import Revocations
from edgelink.relay.rotation import generation_after
from edgelink.relay.rotation_book import RotationBook
from edgelink.relay.token_book import TokenBook

CLONE_REFUSED = "clone refused"  # the one action in the history that changed nothing


@dataclass(frozen=True)
class _Leases:
    """Those of the database at one version of it."""

    version: int
    envelopes: dict[str, Envelope]
    holdings: Holdings


@dataclass(frozen=True)
class _NodePassword:
    node_id: str
    password: BrokerPassword


class RegistryStore:
    """One open database; see :class:`edgelink.relay.database.Database`."""

    def __init__(self, path: Path, clock: Clock, files: Files = AT_ONCE) -> None:
        self.path = path
        self._clock = clock
        self._leases: _Leases | None = None
        self._database = Database(path, files, on_rollback=self._forget)
        self.transaction = self._database.transaction
        self.quarantine = Quarantine(self._database, clock)
        self.revocations = Revocations(self._database, clock)
        self.tokens = TokenBook(self._database, clock)
        self.rotations = RotationBook(self._database, clock)
        self.machines = MachineBook(self._database, clock)
        self.access = AccessBook(self._database, clock)
        self.departures = Departures(self._database, clock)

    def close(self) -> None:
        self._database.close()

    # the network

    def network(self) -> Network | None:
        return network_of(self._database)

    def require_network(self) -> Network:
        """Raises RegistryError when there is none yet."""
        network = self.network()
        if network is None:
            raise RegistryError("there is no network on this relay yet", hint="`sudo edgelink up --relay` makes one")
        return network

    def create_network(self, network: Network) -> None:
        """Record the network; there is one a database, for ever."""
        with self.transaction():
            if self.network() is not None:
                raise RegistryError(f"{self.path}: holds a network already")
            put_network(self._database, network)

    def set_ranges(self, ranges: Ranges) -> None:
        """From which address to which each role's are dealt from now on."""
        text = json.dumps({role.value: [str(first), str(last)] for role, (first, last) in ranges.items()})
        with self.transaction():
            self._database.execute("UPDATE network SET ranges = ?", text)

    def epoch(self) -> int:
        """Grows with each change of the leases."""
        row = self._database.row("SELECT epoch FROM network")
        return row["epoch"] if row else 0

    def generation(self) -> int:
        """Grows with each restoration from a backup."""
        return self.rotations.generation()

    # relays

    def relay_addresses(self) -> dict[str, RelayAddresses]:
        """Where each relay is dialled, by node_id; the first relay first."""
        rows = self._database.rows("SELECT node_id, addresses FROM relays ORDER BY rowid")
        return {row["node_id"]: RelayAddresses.model_validate_json(row["addresses"]) for row in rows}

    def stun_servers(self) -> tuple[str, ...]:
        """Where the relays answer STUN, as host:port."""
        return tuple(server for relay in self.relay_addresses().values() for server in relay.stun_servers)

    def set_relay_addresses(self, node_id: str, addresses: RelayAddresses) -> None:
        """Record where the relay that holds this lease is dialled; a change counts as one of the directory."""
        with self.transaction():
            lease = self.lease(node_id)
            if lease is None or self.relay_addresses().get(node_id) == addresses:
                return
            self._database.execute(
                "INSERT INTO relays VALUES (?, ?) ON CONFLICT (node_id) DO UPDATE SET addresses = excluded.addresses",
                node_id,
                addresses.model_dump_json(),
            )
            self._changed("relay at " + ", ".join(addresses.overlay_peers), lease)

    def note_restoration(self, node_id: str, *, keep_addresses: bool) -> None:
        """This is a copy from a backup, and counts more than what it was copied of.

        Served by the relay that holds this lease; without ``keep_addresses``, at an address that it will say itself.
        """
        with self.transaction():
            lease = self.require_lease(node_id)
            if not keep_addresses:
                self._database.execute("DELETE FROM relays WHERE node_id = ?", node_id)
            generation = generation_after(self.generation(), self._clock.now())
            self._database.execute("UPDATE network SET generation = ?", generation)
            self._changed("registry restored to", lease)

    # leases

    @property
    def holdings(self) -> Holdings:
        """All leases, as they stand in the database, without reading it anew. Look, in a transaction; do not change."""
        with self._database.lock:
            return self._known().holdings

    def leases(self) -> list[Lease]:
        """All leases, by overlay IP."""
        with self._database.lock:
            return sorted(self._known().holdings.leases, key=lambda lease: lease.overlay_ip)

    def lease_envelopes(self) -> dict[str, Envelope]:
        """The signed leases by node_id: what is published to the nodes."""
        with self._database.lock:
            return dict(self._known().envelopes)

    def lease(self, node_id: str) -> Lease | None:
        return self.holdings.lease(node_id)

    def lease_envelope(self, node_id: str) -> Envelope | None:
        with self._database.lock:
            return self._known().envelopes.get(node_id)

    def find_lease(self, node: str) -> Lease | None:
        """By hostname or node_id."""
        holdings = self.holdings
        return holdings.lease(node) or holdings.of_hostname(node)

    def require_lease(self, node: str) -> Lease:
        """By hostname or node_id. Raises RegistryError when no such node holds one."""
        lease = self.find_lease(node)
        if lease is None:
            raise RegistryError(
                f"no node {node!r} holds a lease",
                hint="`edgelink registry list` shows hostnames and node ids",
                reason="NodeUnknown",
            )
        return lease

    def _known(self) -> _Leases:
        """What was read or written last, unless another process has changed it since."""
        version = self._database.version()
        if self._leases is None or self._leases.version != version:
            rows = self._database.rows("SELECT node_id, envelope FROM leases ORDER BY node_id")
            envelopes = {row["node_id"]: Envelope.model_validate_json(row["envelope"]) for row in rows}
            self._leases = _Leases(version, envelopes, Holdings(map(_lease, envelopes.values())))
        return self._leases

    def _forget(self) -> None:
        """What was written was taken back."""
        self._leases = None

    def put_lease(self, envelope: Envelope, *, action: str, caller: str = "") -> None:
        """Record a signed lease, new or in place of the same node's; ``action`` and who had it done go into the
        history."""
        lease = _lease(envelope)
        try:
            with self.transaction():
                known = self._known()
                self._database.execute(
                    "INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, 0) ON CONFLICT (node_id) DO UPDATE SET hostname = "
                    "excluded.hostname, overlay_ip = excluded.overlay_ip, rank = excluded.rank, is_relay = "
                    "excluded.is_relay, envelope = excluded.envelope",
                    lease.node_id,
                    lease.hostname,
                    str(lease.overlay_ip),
                    lease.preferred_rank,
                    int(lease.is_relay),
                    envelope.model_dump_json(),
                )
                self.quarantine.forget(lease)
                self._changed(action, lease, caller)
                known.holdings.put(lease)
                known.envelopes[lease.node_id] = envelope
        except sqlite3.IntegrityError as error:
            raise LeaseConflictError(f"the lease of {lease.hostname} clashes with another one: {error}") from error

    def release(self, node: str, *, action: str = "released", caller: str = "") -> Lease:
        """Forget a node's lease and its broker password: the operator's explicit command. By hostname or node_id."""
        with self.transaction():
            lease = self.require_lease(node)
            known = self._known()
            self._database.execute("DELETE FROM leases WHERE node_id = ?", lease.node_id)
            self._changed(action, lease, caller)
            known.holdings.remove(lease.node_id)
            del known.envelopes[lease.node_id]
            return lease

    def set_left(self, node_id: str, *, has_left: bool) -> bool:
        """Record that a node has left the network by its own word, or is back. Return whether that is news."""
        with self.transaction():
            lease = self.lease(node_id)
            if lease is None or (node_id in self.departures.all()) is has_left:
                return False
            if has_left:
                self.departures.note(node_id)
            else:
                self.departures.forget(node_id)
            self._changed("left" if has_left else "back", lease)
            return True

    def history(self) -> list[dict[str, str]]:
        """Every change of a lease, oldest first."""
        return [dict(row) for row in self._database.rows("SELECT * FROM history ORDER BY rowid")]

    def _changed(self, action: str, lease: Lease, caller: str = "") -> None:
        detail = f"{lease.hostname} {lease.role.value} {lease.overlay_ip} rank {lease.preferred_rank}"
        self.record(action, lease.node_id, detail, caller)

    def record(self, action: str, node_id: str, detail: str, caller: str, *, is_change: bool = True) -> None:
        """Into the history, in the caller's transaction: what was done to a node, and who had it done.

        ``is_change``: everybody is to hear of the registry anew.
        """
        now = self._clock.now().isoformat()
        self._database.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?)", now, action, node_id, detail, caller)
        if is_change:
            self._database.execute("UPDATE network SET epoch = epoch + 1")

    def asked_at(self, node_id: str) -> datetime | None:
        """When the newest enrolment request of this lease's holder was made, by the node's clock."""
        row = self._database.row("SELECT asked_at FROM enrolments WHERE node_id = ?", node_id)
        return datetime.fromisoformat(row["asked_at"]) if row else None

    def note_asked(self, node_id: str, asked_at: datetime) -> None:
        self._database.execute("INSERT OR REPLACE INTO enrolments VALUES (?, ?)", node_id, asked_at.isoformat())

    # broker passwords

    def set_node_password(self, node_id: str, password: BrokerPassword) -> None:
        """In place of an earlier one."""
        with self.transaction():
            self._database.execute(
                "INSERT OR REPLACE INTO credentials VALUES (?, ?, ?, ?)",
                node_id,
                password.salt,
                password.hash,
                password.iterations,
            )

    def node_password(self, node_id: str) -> BrokerPassword | None:
        return self._database.record(BrokerPassword, "SELECT * FROM credentials WHERE node_id = ?", node_id)

    def broker_user(self, node_id: str) -> BrokerUser | None:
        """One node's; None when it has no lease."""
        lease, password = self.lease(node_id), self.node_password(node_id)
        if lease is None or password is None:
            return None
        return BrokerUser("node", node_id, lease.role, password)

    def broker_users(self) -> list[BrokerUser]:
        """Who may connect now: each node, and each token that may still enrol someone or answer who used it."""
        self.tokens.note_expired()
        now = self._clock.now()
        leases = {lease.node_id: lease for lease in self.leases()}
        users = [
            BrokerUser(
                "node", node_id, leases[node_id].role, BrokerPassword(row["salt"], row["hash"], row["iterations"])
            )
            for row in self._database.rows("SELECT * FROM credentials ORDER BY node_id")
            if (node_id := row["node_id"]) in leases
        ]
        answers = {
            row["token_id"]
            for row in self._database.rows("SELECT * FROM token_uses")
            # A use from before the lease was for one that was released: its node came back by another token.
            if (lease := leases.get(row["node_id"])) and datetime.fromisoformat(row["used_at"]) >= lease.granted_at
        }
        for token in self.tokens.all():
            state = token.state(now)
            if state == "live" or (state == "used" and token.token_id in answers):
                users.append(BrokerUser("token", token.token_id, token.role, token.password))
        return users


def _lease(envelope: Envelope) -> Lease:
    return Lease.model_validate_json(envelope.body)
