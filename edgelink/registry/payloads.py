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

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from edgelink.conditions import Condition, Status
from edgelink.config.defaults import DEFAULT_RIDE_THROUGH_S
from edgelink.config.models import Hostname, Port, RideThrough

PROTOCOL_VERSION: Literal[1] = 1
MAX_PAYLOAD_BYTES = 256 * 1024
MAX_RELAYS = 8
MAX_REVOKED = 4096  # that are told; the registry refuses all
MAX_MACHINE_PARTS = 32
MAX_TEXT = 2048  # characters of a text that a node says of itself

NodeId = Annotated[str, Field(pattern=r"^[a-z2-7]{26}$")]  # base32 of the first 16 bytes of SHA-256(verify key)
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=_-]*$", max_length=65536)]

# Bounded: a lease with its labels, and the directory of all, have to fit into one message each.
Labels = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=256)]],
    Field(max_length=32),
]

# What a node can follow: that, and not a version number, decides what it is given.
ShortText = Annotated[str, Field(max_length=64)]
Features = Annotated[tuple[ShortText, ...], Field(max_length=32)]
PLAIN_USERNAME = "plain-username"  # it takes its node_id for the name of its broker user
EASYTIER_CREDENTIALS = "easytier-credentials"  # so can its EasyTier with a credential in place of the network's secret

# What a relay says of itself goes into every node's EasyTier: nothing but a URL and an address gets through.
_DIALLED = r"([A-Za-z0-9]([A-Za-z0-9.-]{0,238}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"
OverlayPeer = Annotated[str, Field(pattern=rf"^(tcp|udp|wg|ws|wss|quic)://{_DIALLED}$")]
BrokerAddress = Annotated[str, Field(pattern=rf"^{_DIALLED}$")]


def _cut(text: Any) -> Any:
    return text[:MAX_TEXT] if isinstance(text, str) else text


Instance = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]  # one life of a node's daemon, drawn at its start
# A keyed hash of something that a copy of the disk does not carry, see :mod:`edgelink.registry.claims`.
MachinePart = Annotated[str, Field(pattern=r"^(mac|board):[0-9a-f]{32}$")]

CutText = Annotated[str, BeforeValidator(_cut)]  # long ones are cut, not refused: they may quote what others print


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


class RelayAddresses(BaseModel):
    """Where a relay is dialled, as it says itself: EasyTier's URLs, STUN, and where its broker is or would be.

    Only one relay has the registry; the others name the address at which they would serve it, so that nodes look
    there if it is moved.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    overlay_peers: tuple[OverlayPeer, ...] = Field(max_length=16)
    broker_addresses: tuple[BrokerAddress, ...] = Field(max_length=16)
    stun_servers: tuple[BrokerAddress, ...] = Field((), max_length=16)


class EnrolRequest(Payload):
    """Signed by the node's key; a second request of the same node gets the same lease."""

    token_id: str
    verify_key: Base64
    hostname: Hostname
    role: Role | None = None  # None: whatever the token is for
    labels: Labels = {}
    edgelink_version: str = Field(max_length=64)
    nonce: str = Field(default_factory=lambda: secrets.token_hex(8), max_length=64)  # tells a new request from a repeat
    asked_at: AwareDatetime | None = None  # by the node's clock: only grows, so that an old request is told from a new
    overlay_ip: IPv4Address | None = None  # asked for: with `overlay.kind: existing`, the address its device carries
    relay: RelayAddresses | None = None  # of a relay, and of nobody else
    features: Features = ()
    easytier_version: str | None = Field(None, max_length=64)


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
    is_relay: bool = False  # a relay's machine may also be the head
    overlay_ip: IPv4Address
    cidr: IPv4Network
    preferred_rank: int | None = Field(ge=0)  # None: takes no part in Ray (relay)
    verify_key: Base64
    labels: Labels = {}
    granted_at: datetime
    lease_epoch: int = Field(0, ge=0)  # grows with each change by the operator: an older lease does not count


class NodeSecrets(Payload):
    """What a node must know and nobody else may read."""

    network_name: str
    network_secret: str = Field(repr=False)
    overlay_peers: tuple[str, ...] = ()  # EasyTier URLs of the (other) relays
    stun_servers: tuple[str, ...] = ()  # of the relays, as host:port
    broker_username: str
    broker_password: str = Field(repr=False)
    generation: int = Field(0, ge=0)  # of the registry that said so
    secret_epoch: int = Field(1, ge=1)  # of network_secret
    # In a network without a secret for all: EasyTier's of this node, "": it comes with NetworkSecrets, or, for the
    # relay, which has the secret, there is none. None: the network has a secret for all.
    credential: str | None = Field(None, repr=False)


class NetworkSecrets(Payload):
    """The network's secret, now and next; signed by the registry inside of what is sealed to the node.

    Of two such documents the one with the higher ``(generation, number)`` counts; equal ones say the same, although
    each sealing gives another text. The next secret is to be kept, and used once ``secret_epoch`` has come to it.
    """

    network_id: str
    node_id: NodeId
    generation: int = Field(ge=0)
    number: int = Field(ge=0)  # of the NetworkState that this belongs to
    secret_epoch: int = Field(ge=1)
    network_secret: str = Field(repr=False)
    next_epoch: int | None = Field(None, ge=2)
    next_secret: str | None = Field(None, repr=False)
    credential: str | None = Field(None, repr=False)  # as in NodeSecrets
    granted_at: datetime | None = None  # of the lease that the credential goes with; None: an older registry says so


class Rotation(BaseModel):
    """A change of the network's secret that is under way."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    rotation_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    to_epoch: int = Field(ge=2)
    phase: Literal["prepare", "committed"]
    hold_until: AwareDatetime | None = None  # until when a node may ask for patience, by the relay's clock


class NetworkState(Payload):
    """Signed by the registry, for all nodes: which secret the network runs on, and who was put out of it; no secret.

    Of two the one with the higher ``(generation, number)`` counts.
    """

    network_id: str
    generation: int = Field(ge=0)
    number: int = Field(ge=0)  # grows with each change of what is said here
    secret_epoch: int = Field(ge=1)
    rotation: Rotation | None = None
    revoked: tuple[NodeId, ...] = Field((), max_length=MAX_REVOKED)
    # What they held, until somebody else is given it.
    revoked_ips: tuple[IPv4Address, ...] = Field((), max_length=MAX_REVOKED)


class NetworkAnswer(Payload):
    """Signed by the node: how far it has followed the network's secret; of two the one with the higher ``number``."""

    network_id: str
    node_id: NodeId
    generation: int = Field(ge=0)
    number: int = Field(ge=0)
    rotation_id: str | None = Field(None, pattern=r"^[0-9a-f]{32}$")
    prepared_epoch: int = Field(0, ge=0)  # whose secret it has on disk; 0: no next one
    running_epoch: int = Field(0, ge=0)  # with whose secret its overlay is confirmed to run; 0: not yet
    hold_until: AwareDatetime | None = None  # it asks for patience: a robot in motion
    hold_why: Annotated[str, BeforeValidator(_cut)] = ""
    known: Envelope | None = None  # a NetworkState of this registry's that it does not know itself any more


class DirectoryEntry(Payload):
    node_id: NodeId
    hostname: Hostname
    role: Role
    is_relay: bool = False
    overlay_ip: IPv4Address
    preferred_rank: int | None
    verify_key: Base64


class Directory(Payload):
    """Signed by the registry: who holds which lease, and where the relays are.

    Of a large network only relays and head are named here; ``roster`` holds the digests of the pages that name all.
    ``epoch`` grows with every change, ``generation`` with every restoration from a backup: of two registries the one
    with the higher generation is the one that counts.
    """

    network_id: str
    epoch: int
    entries: tuple[DirectoryEntry, ...]
    generation: int = 0
    relays: dict[NodeId, RelayAddresses] = {}
    roster: Annotated[dict[int, str], Field(max_length=256)] = {}

    def entry(self, node_id: str) -> DirectoryEntry | None:
        return next((e for e in self.entries if e.node_id == node_id), None)

    @property
    def head(self) -> DirectoryEntry | None:
        return next((e for e in self.entries if e.role is Role.HEAD), None)

    @property
    def relay_entries(self) -> tuple[DirectoryEntry, ...]:
        return tuple(e for e in self.entries if e.is_relay)


class RosterPage(Payload):
    """Signed by the registry: some of the nodes of a large network, see :mod:`edgelink.registry.roster`."""

    network_id: str
    page: int = Field(ge=0)
    entries: tuple[DirectoryEntry, ...] = Field(max_length=256)


class ConditionReport(BaseModel):
    """One condition as its node states it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: str = Field(min_length=1, max_length=64)
    status: Status
    reason: CutText
    message: CutText
    since: datetime | None = None
    final: bool = False

    @classmethod
    def of(cls, condition: Condition) -> ConditionReport:
        return cls.model_validate(condition, from_attributes=True)


class NodeStatus(Payload):
    """A node's own report, on its own topic; informs, never commands. ``online=False`` is the Last Will."""

    node_id: NodeId
    online: bool
    instance: Instance | None = None  # of the daemon that says so
    phase: str = Field("Unknown", min_length=1, max_length=64)
    conditions: tuple[ConditionReport, ...] = Field((), max_length=64)
    edgelink_version: CutText = ""
    ray_version: CutText | None = None
    python_version: CutText | None = None
    packages: Annotated[dict[ShortText, CutText], Field(max_length=16)] | None = None  # of those that are compared
    easytier_version: CutText | None = None
    device: CutText | None = None  # of the overlay: what RLINF_COMM_NET_DEVICES says there
    labels: Labels = {}  # of its lease
    ray_death: Envelope | None = None  # RayDeath, signed by the node: it commands the head, unlike the rest
    features: Features = ()
    reported_at: datetime | None = None


class RayDeath(Payload):
    """Signed by the node: its Ray of this id has ended, and the head is to bury it.

    Ray's ids are unique and each dies once, so that an old one that a broker plays again says what is true already.
    """

    network_id: str
    ray_node_id: str = Field(min_length=1, max_length=128)


class EasyTierDeath(Payload):
    """Signed by the node: its EasyTier with this peer id has ended, and connections to it are dead.

    EasyTier draws its id anew at each start, so that an old one that a broker plays again says what is true already.
    """

    network_id: str
    peer_id: str = Field(pattern=r"^[0-9]{1,20}$")


class ReportRequest(Payload):
    """Signed by the head: every node is to send what it recorded of the last ``since_s`` seconds."""

    network_id: str
    request_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    since_s: float = Field(gt=0, le=7 * 86400)
    made_at: AwareDatetime  # an old request is not answered


class ReportReply(Payload):
    """Signed by the node; ``sealed`` is a gzipped JSON object, text by file name, that the head alone can open."""

    request_id: str
    node_id: NodeId
    sealed: str = Field(max_length=MAX_PAYLOAD_BYTES)


class ClusterMember(Payload):
    node_id: NodeId
    hostname: Hostname
    overlay_ip: IPv4Address
    node_rank: int = Field(ge=0)
    sealed_ray_token: Base64 | None = None  # None where this Ray has no token authentication
    ray_restarts: int = Field(0, ge=0)  # grows when the head wants this node's Ray started anew


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
    ride_through_s: RideThrough = DEFAULT_RIDE_THROUGH_S
    ray_wanted: bool = True  # False: no Ray on any node, until the head says otherwise
    members: tuple[ClusterMember, ...]

    def member(self, node_id: str) -> ClusterMember | None:
        return next((m for m in self.members if m.node_id == node_id), None)
