"""The facts of one daemon. Each field has one writer and at least one reader outside its writer's file.

``None`` means that the fact is not known, or that there is none; where the two differ, the fact has a type of its own.
Values are data. The first value of each is what a daemon knows when it starts, and allows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from edgelink.conditions import Conditions, Phase, Said
from edgelink.config.defaults import DEFAULT_RIDE_THROUGH_S
from edgelink.facts.board import Table, Wish
from edgelink.member.access_watch import AccessTold
from edgelink.member.lease_watch import HeardLease
from edgelink.member.registry_client import Session
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.openings import Opening
from edgelink.overlay.targets import Targets
from edgelink.overlay.ways import Ways
from edgelink.protocol.held_secret import HeldSecret, NetworkTold
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ClusterSpec, Directory, Envelope, Lease, NodeStatus
from edgelink.ray_cluster.cluster_spec import OwnEpoch
from edgelink.ray_cluster.held_run import HeldRun, Meeting, Ranks
from edgelink.ray_cluster.pause import Pause
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.ray_cluster.versions import Versions
from edgelink.ray_cluster.wishes import Wishes


@dataclass(frozen=True)
class Facts:
    """See ``docs/reference/facts.md`` for the writer and the readers of each.

    Attributes:
        membership: this node's membership as it is on disk.
        lease_in_use: the lease that the daemon runs with, whatever is on disk. None: the one on disk.
        next_lease: the newest lease of this node that was heard in this daemon's life.
        coming_lease: a lease on disk that comes into use once Ray has ended.
        kept_secret: the network's secret that the daemon still runs with although another one is on disk.
        hook_answered: the number of the secret about which this robot's hook has had its say. None: it was not asked.
        tries_next_secret: EasyTier is to run on the next secret: its hour has come, and nobody is heard on this one.
        running: the membership that the daemon runs with. Derived.
        admission: what this machine may do before the registry has said that it is the node.
        claim_word: what ``Leased`` has to say of this machine's claim to be the node. None: nothing but the lease.
        session: the session with the registry's broker.
        broker_away: None where nothing is wrong with that session. What answers at the relay's address in the broker's
            place, or "" where nothing does. Derived.
        network: what the registry has told of the network's secret.
        directory: who holds which lease.
        cluster_spec: the head's newest word of the Ray cluster.
        stated_cluster: the word of this head's daemon, signed. None: it has given none yet.
        own_epoch: the newest epoch under which the network knows a cluster spec of this node.
        wishes: what the operator at this head wants of everybody's Ray.
        statuses: the last status of each node, by node id; on head and relays only.
        online: node ids of the nodes that say that they are online.
        lost: node ids of the nodes whose connection the broker has lost.
        stopped: node ids of the nodes that said in this session that they are switched off on purpose.
        waiting: node ids of the nodes that go on with a lease that was changed.
        metered: node ids of the nodes that pay for each byte.
        run: the run that holds the lock; on the head only.
        meeting: why the edges may have to reach each other although no run is granted; on the head only.
        ride_through_s: how long an outage may be without costing a node, as far as this daemon knows. Derived.
        without_ray: node ids of the nodes that have no Ray by their own configuration; on the head only.
        targets: the nodes that this one asks over the overlay. None: it is not known who is in the network. Derived.
        answering: hostname of each node that answers over the overlay, and since when it does without a silence, in
            seconds on the monotonic clock.
        silent: hostname of each node that does not, and the first question that it did not answer, on that clock.
        unheard: hostname of each node that does not, and its last answer, on that clock. None: it never answered.
        ranks: the nodes that take part in Ray, with their ranks; on the head only. Derived.
        publishable: those of them that are to join Ray now, as nobody else has their rank; on the head only. Derived.
        ray_members: the nodes of Ray as Ray listed them last; on the head only.
        reported_dead: overlay address and Ray's id of every Ray whose end its node has stated; on the head only.
        paused: node id of each node that is alive in Ray and does not answer; on the head only.
        proven: hostname of each node whose last answer over the overlay proved who it is.
        unproven: hostname of each node that can prove who it is, is heard, and does not prove it; and since when that
            is so, in seconds on the monotonic clock.
        disowned: hostname of each node that told the registry meanwhile that its echo is up; and since when it is
            unproven.
        doubted: overlay address of each node that can prove who it is and does not, or is silent: no connection with it
            begins.
        impostors: overlay addresses where somebody else than the holder has answered, and the holder not since.
        peers_connected: Ray may start: the nodes that it needs answer over the overlay. Derived.
        nobody_answers: none of the nodes whose silence counts answers over the overlay. Derived.
        secret_changed_s: when this node changed to another secret of the network, on the monotonic clock.
        is_metered: this machine's uplink costs by the byte.
        alternations: hostname of each node that has spoken with two voices, and when it did so last, in seconds on the
            monotonic clock; on head and relays only.
        holders: hostname of each overlay address's holder, as the registry says.
        revoked_ips: overlay addresses that nobody may use.
        usable_ips: the overlay addresses that nodes may use. None: this node is not told of all of them.
        access: what the registry has told of the network's access rules, as far as they are about this node.
        openings: what the operator opens on this node over the overlay, by access rules or its configuration. Derived.
        follows_spec: the epoch of the cluster spec that closes this edge to others, once its rules are in place. None:
            none has.
        standstills: how often this machine has slept, or this daemon was held up for seconds.
        overlay_spec: what EasyTier has to be on this node. Derived.
        easytier_may_start: EasyTier may be started on this machine. Derived.
        overlay_is_up: the overlay's device is confirmed. Derived.
        confirmed_config: the hash of the configuration that EasyTier is confirmed to run with. "": none runs that is
            confirmed. None: another daemon of this machine runs EasyTier, and knows.
        easytier_as_wanted: EasyTier is confirmed to run as its specification says. None: another daemon knows. Derived.
        easytier_ends: how often an EasyTier of this daemon has ended.
        restart_for_relays: EasyTier is to be started anew to dial relays that it could not be told of.
        restart_for_pair: EasyTier is to be started anew for a node that it has lost.
        easytier_peer_id: the id that EasyTier last said it has. "": it has said none yet.
        listing: the ids of the EasyTiers that ours lists, and whether each is reached directly.
        echo_wishes: how often this daemon has wanted every other node asked at once.
        last_answer_s: when that question was asked, on the monotonic clock, which another node was the last to answer.
        ways: to whom the kernel does not send by the overlay's device, and by which it does instead.
        host_patience_s: the ``ride_through`` that the host's TCP was last adjusted for, in seconds.
        easytier_version: the version of the EasyTier that is used here. None: not known yet.
        versions: the versions of Ray, Python and what is trained with, once they are known.
        dead_ray: Ray's id of the Ray that ended here last. None: none has, or it had no id yet.
        conditions: the conditions of this node.
        is_stopping: this daemon ends, and its EasyTier and Ray with it.
        phase: the phase of this node. Derived.
        node_status: what the network is told of this node. Derived.
    """

    membership: Membership | None = None
    lease_in_use: Envelope | None = None
    next_lease: HeardLease | None = None
    coming_lease: Lease | None = None
    kept_secret: HeldSecret | None = None
    hook_answered: int | None = None
    tries_next_secret: bool = False
    running: Membership | None = None
    admission: Admission = field(default_factory=Admission)
    claim_word: Said | None = None
    session: Session = field(default_factory=Session)
    broker_away: str | None = None
    network: NetworkTold = field(default_factory=NetworkTold)
    directory: Directory | None = None
    cluster_spec: ClusterSpec | None = None
    stated_cluster: Envelope | None = None
    own_epoch: OwnEpoch = field(default_factory=OwnEpoch)
    wishes: Wishes = field(default_factory=Wishes)
    statuses: Table[str, NodeStatus] = field(default_factory=lambda: Table({}))
    online: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()
    stopped: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    metered: frozenset[str] = frozenset()
    run: HeldRun | None = None
    meeting: Meeting = field(default_factory=Meeting)
    ride_through_s: int = DEFAULT_RIDE_THROUGH_S
    without_ray: frozenset[str] = frozenset()
    targets: Targets | None = None
    answering: Mapping[str, float] = field(default_factory=dict)
    silent: Mapping[str, float] = field(default_factory=dict)
    unheard: Mapping[str, float | None] = field(default_factory=dict)
    ranks: Ranks = ()
    publishable: Ranks = ()
    ray_members: tuple[RayMember, ...] = ()
    reported_dead: frozenset[tuple[str, str]] = frozenset()
    paused: Mapping[str, Pause] = field(default_factory=dict)
    proven: frozenset[str] = frozenset()
    unproven: Mapping[str, float] = field(default_factory=dict)
    disowned: Mapping[str, float] = field(default_factory=dict)
    doubted: frozenset[IPv4Address] = frozenset()
    impostors: frozenset[IPv4Address] = frozenset()
    peers_connected: bool = False
    nobody_answers: bool = False
    secret_changed_s: float | None = None
    is_metered: bool = False
    alternations: tuple[tuple[str, float], ...] = ()
    holders: Mapping[IPv4Address, str] = field(default_factory=dict)
    revoked_ips: frozenset[IPv4Address] = frozenset()
    usable_ips: frozenset[IPv4Address] | None = None
    access: AccessTold = field(default_factory=AccessTold)
    openings: frozenset[Opening] = frozenset()
    follows_spec: int | None = None
    standstills: int = 0
    overlay_spec: OverlaySpec | None = None
    easytier_may_start: bool = False
    overlay_is_up: bool = False
    confirmed_config: str | None = ""
    easytier_as_wanted: bool | None = False
    easytier_ends: int = 0
    restart_for_relays: Wish = field(default_factory=Wish)
    restart_for_pair: Wish = field(default_factory=Wish)
    easytier_peer_id: str = ""
    listing: frozenset[tuple[str, bool]] = frozenset()
    echo_wishes: int = 0
    last_answer_s: float | None = None
    ways: Ways = field(default_factory=Ways)
    host_patience_s: int | None = None
    easytier_version: str | None = None
    versions: Versions = field(default_factory=Versions)
    dead_ray: str | None = None
    conditions: Conditions = field(default_factory=Conditions)
    is_stopping: bool = False
    phase: Phase = Phase.STARTING
    node_status: NodeStatus | None = None


def contradictions(facts: Facts) -> list[str]:
    """What cannot be together: facts of a test, or of a daemon that is wired wrongly."""
    session, admission = facts.session, facts.admission
    rules = {
        "the daemon runs with a membership, and there is none on disk": facts.running and not facts.membership,
        "a lease is to come into use, and there is no membership": facts.coming_lease and not facts.membership,
        "EasyTier has a specification, and the node no membership": facts.overlay_spec and not facts.running,
        "a session is there, and none has begun": session.is_connected and not session.number,
        "the registry speaks in a session that is not there": session.directory and not session.is_connected,
        "the node is accepted, and its EasyTier may not start": admission.is_accepted and not admission.may_start,
    }
    return [what for what, holds in rules.items() if holds]
