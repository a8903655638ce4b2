"""Everything that travels through the broker, as frozen, versioned models.

A payload that commands (lease, directory, cluster spec, enrolment request) travels in an :class:`Envelope`: the exact
bytes that were signed, and the signature. Receivers verify before they parse. All times are UTC, ISO 8601.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from edgelink.conditions import Condition, Phase, Status
from edgelink.config.defaults import DEFAULT_RIDE_THROUGH_S
from edgelink.config.models import Hostname, Port, RideThrough
from edgelink.protocol.token import split_address
from edgelink.wording import printable

PROTOCOL_VERSION: Literal[1] = 1
MAX_PAYLOAD_BYTES = 256 * 1024
MAX_RELAYS = 8
MAX_REVOKED = 4096  # that are told; the registry refuses all
MAX_UNLEASED = 256  # addresses; with more of them none are told
MAX_LEFT = 256
MAX_RULES = 256  # of access, in a network
MAX_ACCESS_RANGES = 4096  # of one node
MAX_ACCESS_ADDRESSES = 65536  # likewise
MAX_OPEN_PORTS = 32  # that a status tells of
MAX_PAUSED = 1024  # likewise, nodes
MAX_MACHINE_PARTS = 32
MAX_TEXT = 2048  # characters of a text that a node says of itself
MAX_NUMBER = 2**53  # beyond it, not every JSON reader tells neighbours apart
YEARS = range(1900, 9000)  # a clock that was never set shows 1970; at the calendar's ends, no zone can be changed

NodeId = Annotated[str, Field(pattern=r"^[a-z2-7]{26}$")]  # base32 of the first 16 bytes of SHA-256(verify key)
Base64 = Annotated[str, Field(pattern=r"^[A-Za-z0-9+/=_-]*$", max_length=65536)]


def unusable_fields(error: ValidationError, *, of_all: str | None = None) -> str:
    """The fields of a payload that are wrong, for people; of what is wrong with all of it ``of_all``, or why."""
    names = {
        str(item["loc"][0]) if item["loc"] else of_all or item["msg"].removeprefix("Value error, ")
        for item in error.errors()
    }
    return ", ".join(sorted(names))


def _without_controls(text: Any) -> Any:
    return printable(text) if isinstance(text, str) else text


PRINTABLE = BeforeValidator(_without_controls)  # what a node says of itself is shown on the operator's terminal

# Bounded: a lease with its labels, and the directory of all, have to fit into one message each.
Labels = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=64), PRINTABLE], Annotated[str, Field(max_length=256), PRINTABLE]
    ],
    Field(max_length=32),
]

ShortText = Annotated[str, Field(max_length=64), PRINTABLE]

# What a relay says of itself goes into every node's EasyTier: nothing but a URL and an address gets through.
_DIALLED = r"([A-Za-z0-9]([A-Za-z0-9.-]{0,238}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]):[0-9]{1,5}"


def _dialled(text: str) -> str:
    """What no pattern tells: a port that there is, an IPv6 address that is one. Each node's daemon would end at it."""
    split_address(text.rpartition("://")[2])
    return text


OverlayPeer = Annotated[str, Field(pattern=rf"^(tcp|udp|wg|ws|wss|quic)://{_DIALLED}$"), AfterValidator(_dialled)]
BrokerAddress = Annotated[str, Field(pattern=rf"^{_DIALLED}$"), AfterValidator(_dialled)]


def _cut(text: Any) -> Any:
    return printable(text[:MAX_TEXT]) if isinstance(text, str) else text


Instance = Annotated[
    str, Field(pattern=r"^[0-9a-f]{32}$", description="one life of a node's daemon, drawn at its start")
]
# A keyed hash of something that a copy of the disk does not carry, see :mod:`edgelink.relay.claims`.
MachinePart = Annotated[str, Field(pattern=r"^(mac|board):[0-9a-f]{32}$")]

CutText = Annotated[str, BeforeValidator(_cut)]  # long ones are cut, not refused: they may quote what others print


AddressRange = tuple[IPv4Address, IPv4Address]  # first and last
EdgesOpenTo = Literal["all", "members", "head"]


class Role(StrEnum):
    RELAY = "relay"
    HEAD = "head"
    EDGE = "edge"


class Bounded(BaseModel):
    """What a database, a calendar or another JSON cannot hold is refused with the message, and ends no daemon."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # a newer peer may add fields

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        for name, value in self:
            if isinstance(value, int) and abs(value) > MAX_NUMBER:
                raise ValueError(f"{name} is beyond {MAX_NUMBER}")
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{name} is not finite")
            if isinstance(value, datetime) and value.year not in YEARS:
                raise ValueError(f"{name} is in the year {value.year}")
        return self


class Payload(Bounded):
    version: Literal[1] = PROTOCOL_VERSION


class Envelope(Payload):
    """What is signed: ``body`` is the exact JSON text; ``kind`` is covered by the signature (domain separation)."""

    kind: str = Field(description="what the body is, such as `lease`")
    body: str = Field(description="JSON")
    signature: Base64 = Field(description=r"Ed25519 over `edgelink/1/` + kind + `\0` + body")
    signer: NodeId | Literal["registry"] = Field(description="whose key made it")


class RelayAddresses(Bounded):
    """Where a relay is dialled, as it says itself: EasyTier's URLs, STUN, and where its broker is or would be.

    Only one relay has the registry; the others name the address at which they would serve it, so that nodes look
    there if it is moved.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    overlay_peers: tuple[OverlayPeer, ...] = Field(max_length=16, description="URLs of its EasyTier")
    broker_addresses: tuple[BrokerAddress, ...] = Field(max_length=16, description="host:port of its broker")
    stun_servers: tuple[BrokerAddress, ...] = Field((), max_length=16, description="host:port of its STUN")


class EnrolRequest(Payload):
    """Signed by the node's key; a second request of the same node gets the same lease."""

    token_id: str = Field(description="of the token that it joins with")
    verify_key: Base64
    hostname: Hostname
    role: Role | None = Field(None, description="null: whatever the token is for")
    labels: Labels = {}
    edgelink_version: ShortText
    nonce: str = Field(
        default_factory=lambda: secrets.token_hex(8), max_length=64, description="tells a new request from a repeat"
    )
    asked_at: AwareDatetime | None = Field(
        None, description="by the node's clock: only grows, so that an old request is told from a new"
    )
    overlay_ip: IPv4Address | None = Field(
        None, description="asked for: with `overlay.kind: existing`, the address its device carries"
    )
    relay: RelayAddresses | None = Field(None, description="of a relay, and of nobody else")


class EnrolReply(Payload):
    """Either ``lease`` and ``sealed_secrets``, or ``error``."""

    request_id: str = Field(description="of the request: a hash of its signature")
    lease: Envelope | None = Field(None, description="[Lease](#lease), signed by the registry")
    sealed_secrets: Base64 | None = Field(
        None, description="[NodeSecrets](#nodesecrets), signed, and sealed to the node's key"
    )
    error: str | None = Field(None, description="why it is refused, for people")
    error_reason: str | None = Field(
        None, description="the same in [one word](conditions.md#why-an-enrolment-is-refused)"
    )
    error_hint: str = Field("", description="what to do")
    sent_at: datetime = Field(description="by the registry's clock")


class Lease(Payload):
    """Signed by the registry: the fixed binding of a node. Never changed, but by the operator's explicit command."""

    network_id: str
    node_id: NodeId
    hostname: Hostname
    role: Role
    is_relay: bool = Field(False, description="a relay's machine may also be the head")
    overlay_ip: IPv4Address
    cidr: IPv4Network = Field(description="of the overlay")
    preferred_rank: int | None = Field(ge=0, description="null: takes no part in Ray (relay)")
    verify_key: Base64
    labels: Labels = {}
    given_labels: tuple[str, ...] = Field(
        (), max_length=32, description="names of the labels that the operator gave; the node says the others of itself"
    )
    granted_at: datetime = Field(description="by the relay's clock")
    lease_epoch: int = Field(
        0, ge=0, description="grows with each change by the operator: an older lease does not count"
    )


class NodeSecrets(Payload):
    """What a node must know and nobody else may read."""

    network_name: str = Field(description="EasyTier's")
    network_secret: str = Field(repr=False, description="EasyTier's")
    overlay_peers: tuple[str, ...] = Field((), description="EasyTier URLs of the (other) relays")
    stun_servers: tuple[str, ...] = Field((), description="of the relays, as host:port")
    broker_username: str = Field(description="the node's at the broker")
    broker_password: str = Field(repr=False, description="likewise")
    generation: int = Field(0, ge=0, description="of the registry that said so")
    secret_epoch: int = Field(1, ge=1, description="of `network_secret`")


class NetworkSecrets(Payload):
    """The network's secret, now and next; signed by the registry inside of what is sealed to the node.

    Of two such documents the one with the higher ``(generation, number)`` counts; equal ones say the same, although
    each sealing gives another text. The next secret is to be kept, and used once ``secret_epoch`` has come to it.
    """

    network_id: str
    node_id: NodeId
    generation: int = Field(ge=0)
    number: int = Field(ge=0, description="of the NetworkState that this belongs to")
    secret_epoch: int = Field(ge=1, description="of `network_secret`")
    network_secret: str = Field(repr=False, description="EasyTier's")
    next_epoch: int | None = Field(None, ge=2, description="of `next_secret`")
    next_secret: str | None = Field(None, repr=False, description="during a change")


class Rotation(Bounded):
    """A change of the network's secret that is to come."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    to_epoch: int = Field(ge=2, description="of the next secret")
    switch_in_s: float = Field(ge=0, description="in how many seconds after this was said the network changes to it")


class NetworkState(Payload):
    """Signed by the registry, for all nodes: which secret the network runs on, and who was put out of it; no secret.

    Of two the one with the higher ``(generation, number)`` counts. Two with one number differ in ``switch_in_s``: who
    hears both goes by the earlier hour.
    """

    network_id: str
    generation: int = Field(ge=0)
    number: int = Field(ge=0, description="grows with each change of what is said here")
    secret_epoch: int = Field(ge=1, description="of the secret that the network runs on")
    rotation: Rotation | None = Field(None, description="the change that is to come")
    revoked: tuple[NodeId, ...] = Field((), max_length=MAX_REVOKED, description="who was put out of the network")
    revoked_ips: tuple[IPv4Address, ...] = Field(
        (), max_length=MAX_REVOKED, description="what they held, until somebody else is given it"
    )


class PortAccess(Bounded):
    """Ports of a node that some of the others may reach over the overlay."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    protocol: Literal["tcp", "udp"] = Field(description="of the ports")
    first: Port = Field(description="the first port")
    last: Port = Field(description="the last port")
    sources: tuple[AddressRange, ...] | None = Field(
        max_length=MAX_ACCESS_RANGES, description="first and last address of each range; null: all members"
    )

    @model_validator(mode="after")
    def _is_in_order(self) -> Self:
        ranges: list[tuple[int, int]] = [(self.first, self.last)]
        ranges += [(int(first), int(last)) for first, last in self.sources or ()]
        if any(first > last for first, last in ranges):
            raise ValueError("a range ends before it begins")
        return self

    @property
    def addresses(self) -> Iterator[IPv4Address]:
        """Those of the ranges."""
        for first, last in self.sources or ():
            yield from map(IPv4Address, range(int(first), int(last) + 1))

    @property
    def address_count(self) -> int:
        """How many addresses the ranges hold."""
        return sum(int(last) - int(first) + 1 for first, last in self.sources or ())


class NodeAccess(Payload):
    """Signed by the registry, for one node: what it answers over the overlay beside EdgeLink's and Ray's own ports.

    Of two the one with the higher ``(generation, epoch)`` counts. No openings: nothing more is open.
    """

    network_id: str
    node_id: NodeId
    generation: int = Field(ge=0)
    epoch: int = Field(ge=0, description="of the directory that the addresses are of")
    openings: tuple[PortAccess, ...] = Field((), max_length=MAX_RULES, description="what is open")

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if not are_few(self.openings):
            raise ValueError("too many addresses")
        return self


def are_few(openings: Iterable[PortAccess]) -> bool:
    """Whether their addresses fit into one node's document."""
    found = list(openings)
    ranges = sum(len(opening.sources or ()) for opening in found)
    return ranges <= MAX_ACCESS_RANGES and sum(opening.address_count for opening in found) <= MAX_ACCESS_ADDRESSES


class DirectoryEntry(Payload):
    """What all may know of a lease."""

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
    Where the registry knows every address that may be in use, ``unleased_ips`` has those that no lease has.
    ``epoch`` grows with every change, ``generation`` with every restoration from a backup: of two registries the one
    with the higher generation is the one that counts.
    """

    network_id: str
    epoch: int = Field(description="grows with every change")
    entries: tuple[DirectoryEntry, ...] = Field(description="who holds a lease")
    generation: int = 0
    relays: dict[NodeId, RelayAddresses] = Field({}, description="where each relay is dialled")
    roster: dict[int, str] = Field(
        {}, max_length=256, description="digest of each page that is told on `roster/<page>`"
    )
    unleased_ips: tuple[IPv4Address, ...] | None = Field(
        None,
        max_length=MAX_UNLEASED,
        description="addresses that changed leases had, which their nodes may still use; none told: others may be in "
        "use as well, and nodes let every address in",
    )
    left: tuple[NodeId, ...] = Field((), max_length=MAX_LEFT, description="who has left, and still holds a lease")

    def entry(self, node_id: str) -> DirectoryEntry | None:
        return next((e for e in self.entries if e.node_id == node_id), None)

    @property
    def head(self) -> DirectoryEntry | None:
        return next((e for e in self.entries if e.role is Role.HEAD), None)

    @property
    def relay_entries(self) -> tuple[DirectoryEntry, ...]:
        return tuple(e for e in self.entries if e.is_relay)


class RosterPage(Payload):
    """Signed by the registry: some of the nodes of a large network, see :mod:`edgelink.protocol.roster_pages`."""

    network_id: str
    page: int = Field(ge=0, description="its number, as in the topic")
    entries: tuple[DirectoryEntry, ...] = Field(max_length=256, description="who holds a lease in this part")


class ConditionReport(Bounded):
    """One condition as its node states it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: Annotated[str, PRINTABLE] = Field(min_length=1, max_length=64, description="[its name](conditions.md)")
    status: Status = Field(description="text, because there are three")
    reason: CutText
    message: CutText
    since: datetime | None = Field(None, description="when the status last changed")
    final: bool = Field(False, description="no retry can mend it: a person has to act")

    @classmethod
    def of(cls, condition: Condition) -> ConditionReport:
        return cls.model_validate(condition, from_attributes=True)


LEFT = "Left"  # the phase that a node tells last when it leaves the network


class NodeStatus(Payload):
    """A node's own report, on its own topic; informs, never commands. ``online=False`` is the Last Will."""

    node_id: NodeId
    online: bool = Field(description="false: the Last Will, or with the phase Stopping its last word")
    instance: Instance | None = Field(None, description="of the daemon that says so")
    phase: Annotated[str, PRINTABLE] = Field(
        "Unknown", min_length=1, max_length=64, description="Starting, Ready, Degraded, …"
    )
    conditions: tuple[ConditionReport, ...] = Field((), max_length=64, description="all of its own")
    edgelink_version: CutText = ""
    ray_version: CutText | None = None
    python_version: CutText | None = None
    packages: Annotated[dict[ShortText, CutText], Field(max_length=16)] | None = Field(
        None, description="versions of those that are compared"
    )
    easytier_version: CutText | None = None
    device: CutText | None = Field(None, description="of the overlay: what RLINF_COMM_NET_DEVICES says there")
    labels: Labels = Field({}, description="of its lease")
    ray_death: Envelope | None = Field(
        None, description="[RayDeath](#raydeath), signed by the node: it commands the head, unlike the rest"
    )
    metered: bool = Field(False, description="its uplink costs by the byte: others ask it less often")
    open_ports: Annotated[tuple[ShortText, ...], Field(max_length=MAX_OPEN_PORTS)] = Field(
        (), description="what it answers over the overlay by access rules, in words"
    )
    follows_spec: int | None = Field(
        None, description="epoch of the cluster spec whose `edges_open_to` it follows; null: nothing is closed by one"
    )
    paused: Annotated[tuple[NodeId, ...], Field(max_length=MAX_PAUSED)] = Field(
        (), description="of the head: members that are alive in Ray and do not answer it"
    )
    secret_epoch: int = Field(
        0, ge=0, description="of the network's secret with which its overlay is confirmed to run; 0: not yet"
    )
    hold_s: float = Field(
        0.0, ge=0, description="how long it may hold a change of the secret up for its robot; 0: it need not wait"
    )
    known_network: Envelope | None = Field(
        None, description="a [NetworkState](#networkstate) of this registry's that it does not know itself any more"
    )
    reported_at: datetime | None = Field(None, description="by the node's clock")

    @property
    def is_stopped(self) -> bool:
        """Whether the node was switched off on purpose. A Last Will does not say so."""
        return not self.online and self.phase in (Phase.STOPPING.value, LEFT)

    @property
    def has_left(self) -> bool:
        """Whether the node has left the network, by its own word."""
        return not self.online and self.phase == LEFT


class RayDeath(Payload):
    """Signed by the node: its Ray of this id has ended, and the head is to bury it.

    Ray's ids are unique and each dies once, so that an old one that a broker plays again says what is true already.
    """

    network_id: str
    ray_node_id: str = Field(min_length=1, max_length=128, description="Ray's id of what has ended")


class EasyTierDeath(Payload):
    """Signed by the node: its EasyTier with this peer id has ended, and connections to it are dead.

    EasyTier draws its id anew at each start, so that an old one that a broker plays again says what is true already.
    """

    network_id: str
    peer_id: str = Field(pattern=r"^[0-9]{1,20}$", description="EasyTier's id of what has ended")


class PairSilence(Payload):
    """Signed by the node: it misses another node's echoes although a relay answers it.

    It informs the addressee, who acts only if it misses this node, too. A broker that plays an old one again can have
    the addressee close a connection to its relay once for each silence of its own, a pause of a second.
    """

    network_id: str
    peer: NodeId = Field(description="whom it misses: the addressee")
    silent_for_s: float = Field(ge=0, description="for how long it has missed the addressee")
    relay_answers_for_s: float = Field(ge=0, description="for how long a relay has answered it")
    lists_peer: bool = Field(description="whether its EasyTier lists the addressee")


class ReportRequest(Payload):
    """Signed by the head: nodes are to send what they recorded of the last ``since_s`` seconds."""

    network_id: str
    request_id: str = Field(pattern=r"^[0-9a-f]{32}$")
    since_s: float = Field(gt=0, le=7 * 86400, description="how far back, a week at most")
    made_at: AwareDatetime = Field(description="an old request is not answered")
    node_ids: tuple[NodeId, ...] = Field((), max_length=16, description="who is asked; none: everybody, as before")


class ReportReply(Payload):
    """Signed by the node; ``sealed`` is a gzipped JSON object, text by file name, that the head alone can open."""

    request_id: str
    node_id: NodeId
    sealed: str = Field(max_length=MAX_PAYLOAD_BYTES, description="to the head's key")


class ClusterMember(Payload):
    """A node that takes part."""

    node_id: NodeId
    hostname: Hostname
    overlay_ip: IPv4Address
    node_rank: int = Field(ge=0)
    sealed_ray_token: Base64 | None = Field(None, description="null where this Ray has no token authentication")
    ray_restarts: int = Field(0, ge=0, description="grows when the head wants this node's Ray started anew")


class ClusterSpec(Payload):
    """Signed by the head's node key: the Ray cluster that edges join.

    ``epoch`` grows with every change of the members; ``incarnation`` names one life of the Ray head: edges
    that joined another one have to start Ray anew.
    """

    network_id: str
    epoch: int = Field(description="grows with every change of the members")
    incarnation: str = Field(description="one life of the Ray head")
    head_node_id: NodeId = Field(description="who signs")
    head_ip: IPv4Address = Field(description="the head's overlay address")
    ray_port: Port = Field(description="of its GCS")
    ray_version: str
    python_version: str
    token_auth: bool = Field(description="whether this Ray asks for a token")
    ride_through_s: RideThrough = Field(DEFAULT_RIDE_THROUGH_S, description="outages that are to cost a pause only")
    ray_wanted: bool = Field(True, description="false: no Ray on any node, until the head says otherwise")
    edges_open_to: EdgesOpenTo = Field(
        "all", description="who reaches Ray and a training on an edge, beside head and relays: all, these members, none"
    )
    members: tuple[ClusterMember, ...] = Field(description="who is to be in Ray, by rank")

    def member(self, node_id: str) -> ClusterMember | None:
        return next((m for m in self.members if m.node_id == node_id), None)
