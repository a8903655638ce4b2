"""All MQTT topics: who may write and read each, what it carries, when it is sent.

The names on the wire (:mod:`edgelink.protocol.topics`), the broker's access rules
(:mod:`edgelink.relay.dynamic_security`) and ``docs/reference/mqtt.md`` are made of this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel

from edgelink.protocol import payloads, requests
from edgelink.protocol.keys import Kind

QOS = 1  # of every message and subscription


class Party(StrEnum):
    """Who has rights on a topic, as the broker tells users apart. ``NODE`` is the one that the topic names."""

    TOKEN_HOLDER = "whoever holds the token"  # noqa: S105 (not a password)
    REGISTRY = "registry"
    NODE = "that node"
    NODES = "all nodes"
    HEAD = "head"
    OVERSEERS = "relays, head"


@dataclass(frozen=True)
class Topic:
    """One topic of a network.

    Attributes:
        path: below ``edgelink/1/<network id>/``; each level in angle brackets is filled in.
        writers: who may publish.
        readers: who may subscribe and is sent what comes.
        payload: what is said.
        meaning: what that is, for people, and what of it does not count.
        sent: when it is published.
        kind: of the envelope that the payload is signed in, by who writes it; None: it is not signed.
        sealed_to: to whose key the envelope is sealed; None: whoever may read the topic reads it.
        inside: what else the payload carries, signed or sealed by itself.
        is_retained: the broker keeps the last one for who comes later.
        of_registry: why the registry's own user writes it too, where it is another's; "": it does not.
    """

    path: str
    writers: tuple[Party, ...]
    readers: tuple[Party, ...]
    payload: type[BaseModel]
    meaning: str
    sent: str
    kind: Kind | None = None
    sealed_to: Party | None = None
    inside: tuple[type[BaseModel], ...] = ()
    is_retained: bool = False
    of_registry: str = ""


ENROL_REQUEST = Topic(
    "enrol/<token id>/<node id>/request",
    writers=(Party.TOKEN_HOLDER,),
    readers=(Party.REGISTRY,),
    payload=payloads.EnrolRequest,
    kind=Kind.ENROL_REQUEST,
    meaning="signed by the node's key, with its time; one older than the newest granted is refused",
    sent="by `edgelink join`, again every two seconds until it is answered",
)
ENROL_REPLY = Topic(
    "enrol/<token id>/<node id>/reply",
    writers=(Party.REGISTRY,),
    readers=(Party.TOKEN_HOLDER,),
    payload=payloads.EnrolReply,
    inside=(payloads.Lease, payloads.NodeSecrets),
    meaning="signed lease, and secrets sealed to the node's key; or why it is refused",
    sent="in answer to each request; the same request, asked again, gets the same lease",
)
DIRECTORY = Topic(
    "directory",
    writers=(Party.REGISTRY,),
    readers=(Party.NODES,),
    payload=payloads.Directory,
    kind=Kind.DIRECTORY,
    is_retained=True,
    meaning="who holds which lease (above 256 nodes: relays, head, and the digests of the roster's pages), and where "
    "each relay is dialled; signed by the registry; its epoch only grows (within a generation), its generation grows "
    "with each restoration from a backup",
    sent="at each change of a lease or of a relay's addresses; in a burst of them once a second in a large network",
)
NETWORK = Topic(
    "network",
    writers=(Party.REGISTRY,),
    readers=(Party.NODES,),
    payload=payloads.NetworkState,
    kind=Kind.NETWORK,
    is_retained=True,
    meaning="on which secret epoch the network is, in how many seconds it changes to another one, who was revoked, and "
    "which overlay addresses they leave behind; signed by the registry; an older one does not count",
    sent="when a change of the secret is told, every five seconds until it comes, when it comes, and at each "
    "revocation",
)
CLUSTER = Topic(
    "cluster",
    writers=(Party.HEAD,),
    readers=(Party.NODES,),
    payload=payloads.ClusterSpec,
    kind=Kind.CLUSTER_SPEC,
    is_retained=True,
    meaning="cluster spec, signed by the head's key; holds the Ray token sealed to each node",
    sent="at each start of the head's Ray, and at each change of its members or of what is wanted of them",
)
REPORT_REQUEST = Topic(
    "report/request",
    writers=(Party.HEAD,),
    readers=(Party.NODES, Party.REGISTRY),
    payload=payloads.ReportRequest,
    kind=Kind.REPORT_REQUEST,
    meaning="`edgelink report --all` asks, `edgelink logs --ray NODE` that node only; signed by the head's key, with "
    "the time: older than ten minutes is refused",
    sent="when a person asks on the head",
)
LEASE = Topic(
    "node/<node id>/lease",
    writers=(Party.REGISTRY,),
    readers=(Party.NODE,),
    payload=payloads.Lease,
    kind=Kind.LEASE,
    is_retained=True,
    meaning="lease, signed by the registry; one that was granted before, or has a lower epoch, does not count",
    sent="when it is granted, and at each change by the operator",
)
ACCESS = Topic(
    "node/<node id>/access",
    writers=(Party.REGISTRY,),
    readers=(Party.NODE,),
    payload=payloads.NodeAccess,
    kind=Kind.ACCESS,
    is_retained=True,
    meaning="which ports of the node others may reach over the overlay by the operator's word (`edgelink access`); "
    "signed by the registry; an older one does not count",
    sent="at each change of what it says: of a rule, or of a node that a rule means; not before the first rule",
)
SECRETS = Topic(
    "node/<node id>/secrets",
    writers=(Party.REGISTRY,),
    readers=(Party.NODE,),
    payload=payloads.NetworkSecrets,
    kind=Kind.NETWORK_SECRETS,
    sealed_to=Party.NODE,
    is_retained=True,
    meaning="the network's secret and, before a change, the next one; sealed to the node, signed inside",
    sent="when a change of the secret is told, and when it comes",
)
STATUS = Topic(
    "node/<node id>/status",
    writers=(Party.NODE,),
    readers=(Party.REGISTRY, Party.OVERSEERS),
    payload=payloads.NodeStatus,
    inside=(payloads.RayDeath, payloads.NetworkState),
    is_retained=True,
    of_registry="clears it once the node holds no lease",
    meaning="its Last Will says offline; conditions, versions (EdgeLink, EasyTier, Python, Ray, torch, rlinf), labels "
    "of its lease; which life of its daemon says so, also in the Last Will: the end of another one is not the node's; "
    "which Ray of its own has ended, signed by the node; on which secret it runs, and how long a robot may hold a "
    "change up; what a registry that was restored has forgotten, signed by that registry",
    sent="at the begin of each session and at each change, twice a second at most; offline, by the broker, when the "
    "session is lost",
)
REPORT = Topic(
    "node/<node id>/report",
    writers=(Party.NODE,),
    readers=(Party.HEAD,),
    payload=payloads.ReportReply,
    kind=Kind.REPORT,
    of_registry="that of its own machine",
    meaning="what it recorded, compressed, signed by the node and sealed to the head; at most one in half a minute",
    sent="in answer to `report/request`",
)
EASYTIER = Topic(
    "node/<node id>/easytier",
    writers=(Party.NODE,),
    readers=(Party.NODES, Party.REGISTRY),
    payload=payloads.EasyTierDeath,
    kind=Kind.EASYTIER_DEATH,
    of_registry="that of its own machine",
    meaning="its EasyTier with this peer id has ended, signed by the node: others give up their UDP connections to it",
    sent="when its EasyTier ends, where it may have such",
)
SILENCE = Topic(
    "node/<node id>/silence",
    writers=(Party.NODE,),
    readers=(Party.NODES,),
    payload=payloads.PairSilence,
    kind=Kind.PAIR_SILENCE,
    meaning="it misses the node that is named although a relay answers it, signed by the node: the one that is named "
    "may have lost it for ever, and looks",
    sent="every two seconds while it lasts, more rarely after 30 s; three times where its EasyTier does not list that "
    "node",
)
NODE_REQUEST = Topic(
    "node/<node id>/request",
    writers=(Party.NODE,),
    readers=(Party.REGISTRY,),
    payload=requests.NodeRequest,
    kind=Kind.NODE_REQUEST,
    inside=(requests.Renew, requests.Claim),
    meaning="what the node asks (`renew`: a new password at the broker, sealed to the registry's key; `claim`: this "
    "life of its daemon, on this machine, is the node), signed by the node; counts once, with the cookie of the "
    "registry's last reply, which is good for one to two minutes",
    sent="`claim` at the daemon's start and in each session with the registry, `renew` by `edgelink renew`; again "
    "every two seconds until it is answered",
)
NODE_REPLY = Topic(
    "node/<node id>/reply",
    writers=(Party.REGISTRY,),
    readers=(Party.NODE,),
    payload=requests.NodeReply,
    kind=Kind.NODE_REPLY,
    inside=(requests.Done, requests.Verdict, requests.Refused, requests.Again, requests.Speak),
    meaning="`done`, `verdict` on a claim (accepted, refused, or to wait), `refused` with the reason, or `again` with "
    "a cookie, each for the one request that it names; unasked, `speak`: somebody else claims to be this node, which "
    "is to send its status once more; signed by the registry",
    sent="in answer to `request`; `speak` when another machine claims to be the node",
)
ROSTER = Topic(
    "roster/<page>",
    writers=(Party.REGISTRY,),
    readers=(Party.OVERSEERS,),
    payload=payloads.RosterPage,
    kind=Kind.ROSTER,
    is_retained=True,
    meaning="the nodes of 256 neighbouring overlay addresses, in a network of more than 256; signed by the registry; "
    "counts with the directory that states its digest",
    sent="with the directory, where the page has changed",
)

# In this order each user has its rights: the broker is made anew where those look different from before.
TOPICS = (
    ENROL_REQUEST,
    ENROL_REPLY,
    DIRECTORY,
    NETWORK,
    CLUSTER,
    REPORT_REQUEST,
    LEASE,
    ACCESS,
    SECRETS,
    STATUS,
    REPORT,
    EASYTIER,
    SILENCE,
    NODE_REQUEST,
    NODE_REPLY,
    ROSTER,
)
