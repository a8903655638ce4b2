"""One of each message that nodes and registry exchange, with keys and times that are always the same."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network

from nacl.signing import SigningKey

from edgelink.conditions import Status
from edgelink.protocol.keys import Kind, NodeKey, request_id_of, seal, sign_envelope
from edgelink.protocol.payloads import (
    ClusterMember,
    ClusterSpec,
    ConditionReport,
    Directory,
    DirectoryEntry,
    EasyTierDeath,
    EnrolReply,
    EnrolRequest,
    Envelope,
    Lease,
    NetworkSecrets,
    NetworkState,
    NodeAccess,
    NodeSecrets,
    NodeStatus,
    Payload,
    PortAccess,
    RayDeath,
    RelayAddresses,
    ReportReply,
    ReportRequest,
    Role,
    Rotation,
)
from edgelink.protocol.requests import Claim, NodeReply, NodeRequest, Refused, Renew, Verdict

NETWORK_ID = "abcdefghijklmnop"
NODE = NodeKey(SigningKey(b"n" * 32))
HEAD = NodeKey(SigningKey(b"h" * 32))
RELAY = NodeKey(SigningKey(b"b" * 32))
REGISTRY = SigningKey(b"r" * 32)
REGISTRY_VERIFY_KEY = NodeKey(REGISTRY).verify_key_b64
AT = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
TOKEN_ID = "abcdefgh"
CIDR = IPv4Network("10.10.0.0/24")
_MACHINE = ("mac:" + "b" * 32, "board:" + "c" * 32)

# Each signed message: what it is, who signs it, and by whose key that is checked.
SIGNED: dict[str, tuple[Kind, type[Payload], str]] = {
    "enrol-request": (Kind.ENROL_REQUEST, EnrolRequest, NODE.verify_key_b64),
    "lease": (Kind.LEASE, Lease, REGISTRY_VERIFY_KEY),
    "relay-lease": (Kind.LEASE, Lease, REGISTRY_VERIFY_KEY),
    "secrets": (Kind.SECRETS, NodeSecrets, REGISTRY_VERIFY_KEY),
    "directory": (Kind.DIRECTORY, Directory, REGISTRY_VERIFY_KEY),
    "cluster": (Kind.CLUSTER_SPEC, ClusterSpec, HEAD.verify_key_b64),
    "report-request": (Kind.REPORT_REQUEST, ReportRequest, HEAD.verify_key_b64),
    "report": (Kind.REPORT, ReportReply, NODE.verify_key_b64),
    "ray-death": (Kind.RAY_DEATH, RayDeath, NODE.verify_key_b64),
    "easytier-death": (Kind.EASYTIER_DEATH, EasyTierDeath, NODE.verify_key_b64),
    "network": (Kind.NETWORK, NetworkState, REGISTRY_VERIFY_KEY),
    "access": (Kind.ACCESS, NodeAccess, REGISTRY_VERIFY_KEY),
    "network-secrets": (Kind.NETWORK_SECRETS, NetworkSecrets, REGISTRY_VERIFY_KEY),
    "claim": (Kind.NODE_REQUEST, NodeRequest, NODE.verify_key_b64),
    "renewal": (Kind.NODE_REQUEST, NodeRequest, NODE.verify_key_b64),
    "verdict": (Kind.NODE_REPLY, NodeReply, REGISTRY_VERIFY_KEY),
    "refusal": (Kind.NODE_REPLY, NodeReply, REGISTRY_VERIFY_KEY),
}
PLAIN: dict[str, type[Payload]] = {
    "enrol-reply": EnrolReply,
    "enrol-refusal": EnrolReply,
    "status": NodeStatus,
    "last-will": NodeStatus,
}
_SIGNERS = {key.verify_key_b64: key for key in (NODE, HEAD)}


def payloads() -> dict[str, Payload]:
    """The content of each message, by its name in :data:`SIGNED` or :data:`PLAIN`."""
    addresses = RelayAddresses(
        overlay_peers=("tcp://relay.example.org:11010",),
        broker_addresses=("relay.example.org:8883",),
        stun_servers=("203.0.113.5:3478",),
    )
    signed: dict[str, Payload] = {
        "enrol-request": EnrolRequest(
            token_id=TOKEN_ID,
            verify_key=NODE.verify_key_b64,
            hostname="franka-1",
            role=Role.EDGE,
            labels={"arm": "left"},
            edgelink_version="0.1.0",
            nonce="0123456789abcdef",
            asked_at=AT,
            overlay_ip=IPv4Address("10.10.0.3"),
            relay=addresses,
        ),
        "lease": _lease(NODE, "franka-1", Role.EDGE, "10.10.0.3", 1),
        "relay-lease": _lease(RELAY, "relay", Role.RELAY, "10.10.0.1", None),
        "secrets": NodeSecrets(
            network_name="edgelink",
            network_secret="not-a-secret",
            overlay_peers=addresses.overlay_peers,
            stun_servers=addresses.stun_servers,
            broker_username=NODE.node_id,
            broker_password="no-password",
        ),
        "directory": Directory(
            network_id=NETWORK_ID,
            epoch=7,
            generation=1,
            entries=(
                _entry(RELAY, "relay", Role.RELAY, "10.10.0.1", None),
                _entry(HEAD, "cloud", Role.HEAD, "10.10.0.2", 0),
                _entry(NODE, "franka-1", Role.EDGE, "10.10.0.3", 1),
            ),
            relays={RELAY.node_id: addresses},
        ),
        "cluster": ClusterSpec(
            network_id=NETWORK_ID,
            epoch=4,
            incarnation="c0ffee",
            head_node_id=HEAD.node_id,
            head_ip=IPv4Address("10.10.0.2"),
            ray_port=6379,
            ray_version="2.52.0",
            python_version="3.11.2",
            token_auth=True,
            members=(
                ClusterMember(
                    node_id=NODE.node_id,
                    hostname="franka-1",
                    overlay_ip=IPv4Address("10.10.0.3"),
                    node_rank=1,
                    sealed_ray_token="c2VhbGVk",
                    ray_restarts=2,
                ),
            ),
        ),
        "report-request": ReportRequest(network_id=NETWORK_ID, request_id="0" * 32, since_s=3600, made_at=AT),
        "report": ReportReply(request_id="0" * 32, node_id=NODE.node_id, sealed="c2VhbGVk"),
        "ray-death": RayDeath(network_id=NETWORK_ID, ray_node_id="f" * 56),
        "easytier-death": EasyTierDeath(network_id=NETWORK_ID, peer_id="741410679"),
        **_of_a_change(),
        "claim": _request(Claim(instance="a" * 32, machine=_MACHINE)),
        "renewal": _request(Renew(sealed_password="c2VhbGVk")),
        "verdict": _reply(Verdict(outcome="wait", reason="Asked", message="the other one is asked", again_s=1.0)),
        "refusal": _reply(Refused(error="no", error_reason="RateLimited", error_hint="later")),
    }
    envelopes = {name: _signed(name, payload) for name, payload in signed.items()}
    condition = ConditionReport(type="OverlayUp", status=Status.TRUE, reason="DeviceConfirmed", message="up", since=AT)
    return signed | {
        "enrol-reply": EnrolReply(
            request_id=request_id_of(envelopes["enrol-request"]),
            lease=envelopes["lease"],
            sealed_secrets=seal(NODE.verify_key_b64, envelopes["secrets"].model_dump_json().encode()),
            sent_at=AT,
        ),
        "enrol-refusal": EnrolReply(
            request_id="0" * 32, error="no", error_reason="TokenExpired", error_hint="ask", sent_at=AT
        ),
        "status": NodeStatus(
            node_id=NODE.node_id,
            online=True,
            phase="Ready",
            conditions=(condition,),
            edgelink_version="0.1.0",
            ray_version="2.52.0",
            python_version="3.11.2",
            ray_death=envelopes["ray-death"],
            reported_at=AT,
        ),
        "last-will": NodeStatus(node_id=NODE.node_id, online=False),
    }


def _of_a_change() -> dict[str, Payload]:
    """A change of the network's secret that is to come."""
    rotation = Rotation(to_epoch=4, switch_in_s=2.0)
    return {
        "access": NodeAccess(
            network_id=NETWORK_ID,
            node_id=NODE.node_id,
            generation=1,
            epoch=7,
            openings=(
                PortAccess(protocol="tcp", first=22, last=22, sources=((CIDR[2], CIDR[4]), (CIDR[9], CIDR[9]))),
                PortAccess(protocol="udp", first=5000, last=5010, sources=None),
            ),
        ),
        "network": NetworkState(
            network_id=NETWORK_ID,
            generation=1,
            number=12,
            secret_epoch=3,
            rotation=rotation,
            revoked=(HEAD.node_id,),
            revoked_ips=(IPv4Address("10.10.0.9"),),
        ),
        "network-secrets": NetworkSecrets(
            network_id=NETWORK_ID,
            node_id=NODE.node_id,
            generation=1,
            number=12,
            secret_epoch=3,
            network_secret="not-a-secret",
            next_epoch=4,
            next_secret="nor-this-one",
        ),
    }


def _request(ask: Claim | Renew) -> NodeRequest:
    return NodeRequest(
        network_id=NETWORK_ID, node_id=NODE.node_id, nonce="1" * 32, cookie="2" * 32, made_at=AT, ask=ask
    )


def _reply(answer: Verdict | Refused) -> NodeReply:
    return NodeReply(network_id=NETWORK_ID, node_id=NODE.node_id, nonce="1" * 32, cookie="2" * 32, answer=answer)


def _signed(name: str, payload: Payload) -> Envelope:
    kind, _, verify_key = SIGNED[name]
    if verify_key == REGISTRY_VERIFY_KEY:
        return sign_envelope(REGISTRY, kind, payload, "registry")
    return _SIGNERS[verify_key].sign(kind, payload)


def _lease(key: NodeKey, hostname: str, role: Role, overlay_ip: str, rank: int | None) -> Lease:
    return Lease(
        network_id=NETWORK_ID,
        node_id=key.node_id,
        hostname=hostname,
        role=role,
        is_relay=role is Role.RELAY,
        overlay_ip=IPv4Address(overlay_ip),
        cidr=IPv4Network("10.10.0.0/24"),
        preferred_rank=rank,
        verify_key=key.verify_key_b64,
        labels={"arm": "left"} if role is Role.EDGE else {},
        granted_at=AT,
    )


def _entry(key: NodeKey, hostname: str, role: Role, overlay_ip: str, rank: int | None) -> DirectoryEntry:
    return DirectoryEntry(
        node_id=key.node_id,
        hostname=hostname,
        role=role,
        is_relay=role is Role.RELAY,
        overlay_ip=IPv4Address(overlay_ip),
        preferred_rank=rank,
        verify_key=key.verify_key_b64,
    )
