"""What the registry remembers, as frozen records: the network, tokens, and who may connect to the broker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from edgelink.process.port_ranges import in_words
from edgelink.protocol.payloads import Role
from edgelink.relay.passwords import BrokerPassword

Ranges = Mapping[Role, tuple[IPv4Address, IPv4Address]]  # from which address to which each role's are dealt
FROM_JSON = BeforeValidator(lambda value: json.loads(value) if isinstance(value, str) else value)  # as a column has it


@dataclass(frozen=True)
class Network:
    """Settled on first start, the same ever after, but for the secret and the ranges."""

    network_id: str
    name: str
    secret: str = field(repr=False)
    cidr: IPv4Network
    relay_ip: IPv4Address
    created_at: datetime
    secret_epoch: int = 1  # of the secret
    ranges: Annotated[Ranges, FROM_JSON] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenRecord:
    """What the registry remembers of a token: not its secret."""

    token_id: str
    role: Role
    hostname: str | None
    overlay_ip: IPv4Address | None
    rank: int | None
    labels: Annotated[Mapping[str, str], FROM_JSON]
    uses: int
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None
    password: BrokerPassword = field(repr=False)
    used_by: tuple[str, ...] = ()
    use_count: int = 0
    replaces: str | None = None  # the node whose place its bearer takes
    # Since when it is known to have expired: it stays so should the clock go back.
    ended_at: datetime | None = field(default=None, compare=False)

    @property
    def uses_left(self) -> int:
        return max(0, self.uses - self.use_count)

    def state(self, now: datetime) -> Literal["live", "used", "expired", "revoked"]:
        if self.revoked_at is not None:
            return "revoked"
        if self.ended_at is not None or now >= self.expires_at:
            return "expired"
        return "live" if self.uses_left else "used"

    def to_dict(self, now: datetime) -> dict[str, Any]:
        return {
            "token_id": self.token_id,
            "role": self.role.value,
            "state": self.state(now),
            "uses": self.uses,
            "uses_left": self.uses_left,
            "used_by": list(self.used_by),
            "hostname": self.hostname,
            "ip": str(self.overlay_ip) if self.overlay_ip else None,
            "rank": self.rank,
            "labels": dict(self.labels),
            "replaces": self.replaces,
            "created_at": self.created_at.isoformat(timespec="seconds"),
            "expires_at": self.expires_at.isoformat(timespec="seconds"),
        }


@dataclass(frozen=True)
class Reservation:
    """What one live token promises to whoever brings it."""

    token_id: str
    hostname: str | None = None
    overlay_ip: IPv4Address | None = None
    rank: int | None = None


@dataclass(frozen=True)
class Rest:
    """What a released node held, and nobody else gets before ``until`` (None: ever), by the relay's clock."""

    kind: Literal["hostname", "overlay_ip", "rank"]
    value: str
    node_id: str  # who held it
    hostname: str
    until: datetime | None

    def to_dict(self) -> dict[str, Any]:
        until = self.until.isoformat(timespec="seconds") if self.until else None
        return {
            "kind": self.kind,
            "value": self.value,
            "node_id": self.node_id,
            "hostname": self.hostname,
            "until": until,
        }


@dataclass(frozen=True)
class Released:
    """A lease that was taken away; what it held, by kind as in :class:`Rest`; ``rests_until`` None: it is free."""

    node_id: str
    hostname: str
    held: Mapping[str, str]
    rests_until: datetime | None


@dataclass(frozen=True)
class Revocation:
    """A key that was put out of the network, and what it held; ``why`` in words for people."""

    node_id: str
    verify_key: str
    hostname: str
    overlay_ip: IPv4Address
    rank: int | None
    revoked_at: datetime
    why: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "node_id": self.node_id,
            "hostname": self.hostname,
            "overlay_ip": str(self.overlay_ip),
            "rank": self.rank,
            "revoked_at": self.revoked_at.isoformat(timespec="seconds"),
            "why": self.why,
        }


@dataclass(frozen=True)
class AccessRule:
    """Ports of some nodes that some nodes may reach over the overlay.

    Attributes:
        target: whose ports: ``all``, a role, ``KEY=VALUE`` of a label, or a node id.
        source: who may reach them, likewise.
    """

    target: str
    protocol: Literal["tcp", "udp"]
    first: int
    last: int
    source: str

    @property
    def ports(self) -> str:
        """As the operator gave them."""
        return in_words(self.protocol, self.first, self.last)

    def __str__(self) -> str:
        return f"{self.target} {self.ports} from {self.source}"

    def overlaps(self, other: AccessRule) -> bool:
        """Whether both open some port."""
        return self.protocol == other.protocol and self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class MadeRule:
    """A rule, when it was made, and the user of the relay who had it made."""

    rule: AccessRule
    made_at: str
    made_by: str


@dataclass(frozen=True)
class BrokerUser:
    """Who may connect to the broker. ``subject`` is the node_id or token_id; the topics follow from kind and role."""

    kind: Literal["node", "token"]
    subject: str
    role: Role
    password: BrokerPassword = field(repr=False)

    @property
    def username(self) -> str:
        """A node's is its node_id: its own topics follow from that name (see dynamic_security)."""
        return self.subject if self.kind == "node" else token_username(self.subject)


def token_username(token_id: str) -> str:
    return f"token-{token_id}"
