"""Everything that travels through the broker, as frozen, versioned models.

A payload that commands (lease, directory, cluster spec, enrolment request) travels in an :class:`Envelope`: the exact
bytes that were signed, and the signature. Receivers verify before they parse. All times are UTC, ISO 8601.
"""

from __future__ import annotations

import secrets
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgelink.config.models import Hostname, Port

PROTOCOL_VERSION: Literal[1] = 1
MAX_PAYLOAD_BYTES = 256 * 1024

NodeId = Annotated[str, Field(pattern=r"^[a-z2-7]{26}$")]  # base32 of the first 16 bytes of SHA-256(verify key)
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=_-]*$", max_length=65536)]

# Bounded: a lease with its labels, and the directory of all, have to fit into one message each.
Labels = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=256)]],
    Field(max_length=32),
]


class Role(StrEnum):
    RELAY = "relay"
    HEAD = "head"
    EDGE = "edge"


class Payload(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer peer may add fields

    version: Literal[1] = PROTOCOL_VERSION


class Envelope(Payload):
    """``body`` is the signed JSON text; ``kind`` is covered by the signature (domain separation)."""

    kind: str
    body: str
    signature: Base64  # Ed25519 over b"edgelink/1/" + kind + b"\\0" + body
    signer: NodeId | Literal["registry"]


class EnrolRequest(Payload):
    """Signed by the node's key; a second request of the same node gets the same lease."""

    token_id: str
    verify_key: Base64
    hostname: Hostname
    role: Role | None = None  # None: whatever the token is for
    labels: Labels = {}
    edgelink_version: str = Field(max_length=64)
    nonce: str = Field(default_factory=lambda: secrets.token_hex(8), max_length=64)  # tells a new request from a repeat
    overlay_ip: IPv4Address | None = None  # asked for: with `overlay.kind: existing`, the address its device carries


class EnrolReply(Payload):
    """Either ``lease`` and ``sealed_secrets``, or ``error``."""

    request_id: str
    lease: Envelope | None = None
    sealed_secrets: Base64 | None = None  # NodeSecrets, sealed to the node's key
    error: str | None = None
    error_reason: str | None = None
    error_hint: str = ""


class Lease(Payload):
    """Signed by the registry: the fixed binding of a node. Never changed, but by the operator's explicit command."""

    network_id: str
    node_id: NodeId
    hostname: Hostname
    role: Role
    is_relay: bool = False  # the relay's machine may also be the head
    overlay_ip: IPv4Address
    cidr: IPv4Network
    preferred_rank: int | None = Field(ge=0)  # None: takes no part in Ray (relay)
    verify_key: Base64
    labels: dict[str, str] = {}
    granted_at: datetime


class NodeSecrets(Payload):
    """What a node must know and nobody else may read."""

    network_name: str
    network_secret: str = Field(repr=False)
    overlay_peers: tuple[str, ...] = ()  # EasyTier URLs of the relay; empty on the relay itself
    broker_username: str
    broker_password: str = Field(repr=False)


class DirectoryEntry(Payload):
    node_id: NodeId
    hostname: Hostname
    role: Role
    is_relay: bool = False
    overlay_ip: IPv4Address
    preferred_rank: int | None
    verify_key: Base64


class Directory(Payload):
    """Signed by the registry: who holds which lease. ``epoch`` grows with every change."""

    network_id: str
    epoch: int
    entries: tuple[DirectoryEntry, ...]

    def entry(self, node_id: str) -> DirectoryEntry | None:
        return next((e for e in self.entries if e.node_id == node_id), None)

    @property
    def head(self) -> DirectoryEntry | None:
        return next((e for e in self.entries if e.role is Role.HEAD), None)

    @property
    def relay(self) -> DirectoryEntry | None:
        return next((e for e in self.entries if e.is_relay), None)


class NodeStatus(Payload):
    """A node's own report, on its own topic; informs, never commands. ``online=False`` is the Last Will."""

    node_id: NodeId
    online: bool
    phase: str = "Unknown"
    conditions: tuple[dict[str, Any], ...] = ()
    edgelink_version: str = ""
    ray_version: str | None = None
    python_version: str | None = None
    reported_at: datetime | None = None


class ClusterMember(Payload):
    node_id: NodeId
    hostname: Hostname
    overlay_ip: IPv4Address
    node_rank: int = Field(ge=0)
    sealed_ray_token: Base64 | None = None  # None where this Ray has no token authentication


class ClusterSpec(Payload):
    """Signed by the head's node key: the Ray cluster that edges join.

    ``epoch`` grows with every change of the members; ``incarnation`` names one life of the Ray head: edges
    that joined another one have to start Ray anew.
    """

    network_id: str
    epoch: int
    incarnation: str
    head_node_id: NodeId
    head_ip: IPv4Address
    ray_port: Port
    ray_version: str
    python_version: str
    token_auth: bool
    members: tuple[ClusterMember, ...]

    def member(self, node_id: str) -> ClusterMember | None:
        return next((m for m in self.members if m.node_id == node_id), None)
