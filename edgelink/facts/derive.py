"""Facts that follow from other facts. Pure functions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Interface
from typing import Final

from edgelink import __version__
from edgelink.condition_table import Place
from edgelink.condition_table.required import OVERLAY_UP, PEERS_REACHABLE
from edgelink.conditions import Conditions, Phase, Status, derive_phase
from edgelink.config import Config
from edgelink.errors import NoRelayError, UntrustedError
from edgelink.facts.board import Board, Fact
from edgelink.facts.facts import Facts
from edgelink.member.registry_client import Session
from edgelink.overlay.config_file import OverlaySpec, instance_of
from edgelink.overlay.diagnosis import CUT_OFF
from edgelink.overlay.echo_proof import Identity
from edgelink.overlay.openings import Opening, told
from edgelink.overlay.targets import Targets
from edgelink.protocol.held_secret import HeldSecret, NetworkTold
from edgelink.protocol.keys import Kind, NodeKey
from edgelink.protocol.life import Admission
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import (
    MAX_OPEN_PORTS,
    MAX_PAUSED,
    ClusterSpec,
    ConditionReport,
    Directory,
    Envelope,
    NodeStatus,
    RayDeath,
    Role,
)
from edgelink.ray_cluster.held_run import HeldRun
from edgelink.ray_cluster.pause import Pause
from edgelink.ray_cluster.ray_members import RayMember, alive_with_rank
from edgelink.ray_cluster.versions import Versions

RUNNING: Final[Fact[Membership | None]] = Fact("running")
OVERLAY_SPEC: Final[Fact[OverlaySpec | None]] = Fact("overlay_spec")
EASYTIER_MAY_START: Final[Fact[bool]] = Fact("easytier_may_start")
OVERLAY_IS_UP: Final[Fact[bool]] = Fact("overlay_is_up")
EASYTIER_AS_WANTED: Final[Fact[bool | None]] = Fact("easytier_as_wanted")
RIDE_THROUGH_S: Final[Fact[int]] = Fact("ride_through_s")
TARGETS: Final[Fact[Targets | None]] = Fact("targets")
PEERS_CONNECTED: Final[Fact[bool]] = Fact("peers_connected")
BROKER_AWAY: Final[Fact[str | None]] = Fact("broker_away")
NOBODY_ANSWERS: Final[Fact[bool]] = Fact("nobody_answers")
PHASE: Final[Fact[Phase]] = Fact("phase")
NODE_STATUS: Final[Fact[NodeStatus | None]] = Fact("node_status")

MOST_PAIRS = 50  # nodes of a network in which each asks each


def board_of(config: Config) -> Board[Facts]:
    """The board of a daemon that knows nothing yet."""
    board = Board(Facts())
    derive_all(board, config)
    return board


def derive_all(board: Board[Facts], config: Config) -> None:
    """Have the board derive what follows from other facts."""
    board.derive(RUNNING, "what runs", Kept, running)

    def spec_of_applied(now: Run) -> OverlaySpec | None:
        membership = applied(now)
        return None if membership is None else overlay_spec(membership, config)

    board.derive(OVERLAY_SPEC, "overlay's specification", Run, spec_of_applied)
    board.derive(EASYTIER_MAY_START, "permission", Permission, easytier_may_start)
    board.derive(OVERLAY_IS_UP, "condition OverlayUp", Told, overlay_is_up)
    if config.overlay.kind == "easytier":
        board.derive(EASYTIER_AS_WANTED, "comparison", Confirmed, easytier_as_wanted)
    else:
        board.derive(EASYTIER_AS_WANTED, "comparison", Existing, existing_as_wanted)
    board.derive(PHASE, "what it adds up to", Observed, phase)


def derive_peers(board: Board[Facts], config: Config) -> None:
    """Have the board of a node that asks others derive whom it asks, and whether enough of them answer."""
    relays_carry = config.overlay.kind == "easytier"
    board.derive(TARGETS, "whom to ask", Network, partial(targets, relays_carry=relays_carry))
    board.derive(PEERS_CONNECTED, "answers that Ray needs", Answers, peers_connected)
    board.derive(BROKER_AWAY, "session with the broker", Broker, broker_away)
    board.derive(NOBODY_ANSWERS, "condition PeersReachable", Told, nobody_answers)


def derive_patience(board: Board[Facts], config: Config, place: Place) -> None:
    """Have the board of a daemon derive how long an outage may be."""
    follow = partial(ride_through_s, configured=config.ride_through_s, place=place)
    board.derive(RIDE_THROUGH_S, "patience", Patience, follow)


def derive_status(board: Board[Facts], config: Config, key: NodeKey) -> None:
    """Have the board of a member derive what the network is told of it."""
    hold_s = float(config.robot.hold_for) if config.robot.hold else 0.0
    status = partial(node_status, key=key, device=config.overlay.device, hold_s=hold_s)
    board.derive(NODE_STATUS, "node's status", Own, status)


@dataclass(frozen=True)
class Kept:
    """The facts that :func:`running` depends on."""

    membership: Membership | None
    lease_in_use: Envelope | None
    kept_secret: HeldSecret | None


def running(now: Kept) -> Membership | None:
    """The membership that the daemon runs with: the one on disk, but for what comes into use later."""
    membership = now.membership
    if membership is not None and now.lease_in_use is not None and now.lease_in_use != membership.lease_envelope:
        membership = membership.with_lease(now.lease_in_use)
    if membership is not None and now.kept_secret is not None:
        membership = membership.with_secret(now.kept_secret)
    return membership


@dataclass(frozen=True)
class Permission:
    """The facts that :func:`easytier_may_start` depends on."""

    admission: Admission


def easytier_may_start(now: Permission) -> bool:
    """Whether EasyTier may be started on this machine. One that runs goes on."""
    return now.admission.may_start


@dataclass(frozen=True)
class Told:
    """The facts that :func:`overlay_is_up` and :func:`nobody_answers` depend on."""

    conditions: Conditions


def overlay_is_up(now: Told) -> bool:
    """Whether the overlay's device is confirmed: the same as the condition says, always."""
    return any(told.type == OVERLAY_UP.name and told.status is Status.TRUE for told in now.conditions)


def nobody_answers(now: Told) -> bool:
    """Whether this node is cut off: the same as the reason of the condition says, always."""
    return any(told.type == PEERS_REACHABLE.name and told.reason in CUT_OFF for told in now.conditions)


@dataclass(frozen=True)
class Confirmed:
    """The facts that :func:`easytier_as_wanted` depends on."""

    overlay_spec: OverlaySpec | None
    confirmed_config: str | None


def easytier_as_wanted(now: Confirmed) -> bool | None:
    """Whether EasyTier is confirmed to run as its specification says. None: another daemon of this machine knows."""
    if now.overlay_spec is None:
        return False
    return None if now.confirmed_config is None else now.confirmed_config == now.overlay_spec.config_hash


@dataclass(frozen=True)
class Existing:
    """The facts that :func:`existing_as_wanted` depends on."""

    overlay_spec: OverlaySpec | None
    overlay_is_up: bool


def existing_as_wanted(now: Existing) -> bool:
    """The same of an overlay that something else made. It knows no secret of ours: nothing follows a change of it."""
    return now.overlay_spec is not None and now.overlay_is_up


@dataclass(frozen=True)
class Run:
    """What EasyTier's specification depends on, besides the configuration."""

    running: Membership | None
    tries_next_secret: bool


def applied(now: Run) -> Membership | None:
    """The membership that EasyTier runs on: with the next secret while that one is tried."""
    membership = now.running
    upcoming = None if membership is None or not now.tries_next_secret else membership.held.upcoming
    return membership if membership is None or upcoming is None else membership.with_secret(upcoming)


def overlay_spec(membership: Membership, config: Config) -> OverlaySpec:
    """What EasyTier has to be on this node."""
    lease, secrets = membership.lease, membership.secrets
    return OverlaySpec(
        hostname=lease.hostname,
        network_name=secrets.network_name,
        network_secret=membership.held.secret,
        overlay_ip=IPv4Interface(f"{lease.overlay_ip}/{lease.cidr.prefixlen}"),
        peers=secrets.overlay_peers,
        listeners=config.relay.easytier_listeners if lease.is_relay else config.overlay.listeners,
        device=config.overlay.device,
        mtu=config.overlay.mtu,
        rpc_port=config.overlay.rpc_port,
        p2p=config.overlay.p2p,
        # Everybody reaches a relay at its public address: there is nothing to punch.
        stun_servers=() if lease.is_relay else secrets.stun_servers,
        is_relay=lease.is_relay,
        # Fixed for the node's life, so that the same node is the same instance to its peers.
        instance_id=instance_of(lease.network_id, lease.node_id),
    )


@dataclass(frozen=True)
class Patience:
    """The facts that :func:`ride_through_s` depends on, besides the configuration."""

    cluster_spec: ClusterSpec | None
    run: HeldRun | None


def ride_through_s(now: Patience, *, configured: int, place: Place) -> int:
    """Return how long an outage may be without costing a node.

    An edge follows its head. The head's own value comes after the granted run, whose Ray was started with another one.
    """
    follows = place is Place.EDGE or (place is Place.HEAD and now.run is not None and now.run.is_granted)
    return now.cluster_spec.ride_through_s if follows and now.cluster_spec is not None else configured


@dataclass(frozen=True)
class Network:
    """The facts that :func:`targets` depends on, besides the configuration."""

    running: Membership | None
    directory: Directory | None
    cluster_spec: ClusterSpec | None
    online: frozenset[str]
    metered: frozenset[str]
    run: HeldRun | None
    without_ray: frozenset[str]
    ray_members: tuple[RayMember, ...]


def targets(now: Network, *, relays_carry: bool) -> Targets | None:
    """The nodes that this one asks: the head and a relay are needed, and the head counts the members of its cluster.

    Those are the members that are online, and those that a run relies on: a robot that was switched off is neither.
    Nodes without Ray count like members: they run apps, and the silence of one is told as soon.
    In a network of more than 50 nodes a node asks only those that it needs, and the members of the cluster where they
    are no more than that, or that Ray lists.

    Args:
        relays_carry: the overlay's traffic needs a relay. An existing overlay needs none.

    Returns:
        None while this node does not know who is in the network.
    """
    if now.running is None or now.directory is None:
        return None
    lease = now.running.lease
    spec = now.cluster_spec
    members = {member.node_id for member in spec.members} if spec else set()
    relied_on = now.run.node_ids if now.run is not None else frozenset()
    counted = (members | now.without_ray) & (now.online | relied_on) if lease.role is Role.HEAD else set()
    entries = [entry for entry in now.directory.entries if entry.node_id != lease.node_id]
    needed = {entry.hostname: entry.overlay_ip for entry in entries if entry.role is Role.HEAD}
    relays = {entry.hostname: entry.overlay_ip for entry in entries if entry.is_relay and relays_carry}
    missed = {entry.hostname: entry.overlay_ip for entry in entries if entry.node_id in counted}
    others = [entry for entry in entries if entry.hostname not in {*needed, *relays, *missed}]
    if len(now.directory.entries) > MOST_PAIRS:
        others = [entry for entry in others if entry.node_id in members]
    in_ray = alive_with_rank(now.ray_members)
    alive = frozenset(entry.hostname for entry in entries if str(entry.overlay_ip) in in_ray)
    few = others if len(others) <= MOST_PAIRS else [entry for entry in others if entry.hostname in alive]
    metered = frozenset(entry.hostname for entry in entries if entry.node_id in now.metered)
    identities = {
        entry.hostname: Identity(entry.verify_key, instance_of(lease.network_id, entry.node_id)) for entry in entries
    }
    provers = frozenset(entry.hostname for entry in entries if entry.role is Role.HEAD and spec is not None)
    asked = {entry.hostname: entry.overlay_ip for entry in few}
    return Targets(needed, relays, missed, asked, metered, alive, identities, provers)


@dataclass(frozen=True)
class Answers:
    """The facts that :func:`peers_connected` depends on."""

    overlay_is_up: bool
    targets: Targets | None
    answering: Mapping[str, float]
    proven: frozenset[str]


def peers_connected(now: Answers) -> bool:
    """Whether all nodes answer that have to before Ray may start here: the head, which proves itself, and one relay."""
    return now.overlay_is_up and now.targets is not None and now.targets.are_enough(now.answering, now.proven)


@dataclass(frozen=True)
class Observed:
    """The facts that :func:`phase` depends on."""

    conditions: Conditions
    is_stopping: bool


def phase(now: Observed) -> Phase:
    """The phase of this node."""
    return derive_phase(now.conditions, is_stopping=now.is_stopping)


@dataclass(frozen=True)
class Broker:
    """The facts that :func:`broker_away` depends on."""

    session: Session


def broker_away(now: Broker) -> str | None:
    """Return what answers in the broker's place, "" where nothing does, None where nothing is wrong."""
    error = now.session.error
    if error is None:
        return None
    return f"{error.message}; {error.hint}" if isinstance(error, NoRelayError | UntrustedError) else ""


@dataclass(frozen=True)
class Own:
    """The facts that :func:`node_status` depends on, besides the node's key and configuration."""

    running: Membership | None
    conditions: Conditions
    phase: Phase
    is_stopping: bool
    versions: Versions
    dead_ray: str | None
    easytier_version: str | None
    is_metered: bool
    openings: frozenset[Opening]
    follows_spec: int | None
    paused: Mapping[str, Pause]
    network: NetworkTold
    hook_answered: int | None
    tries_next_secret: bool
    easytier_as_wanted: bool | None


def node_status(now: Own, *, key: NodeKey, device: str, hold_s: float) -> NodeStatus:
    """Return what the network is told of this node.

    An edge states the end of its Ray, signed by itself: it commands the head.

    Args:
        hold_s: how long its robot may hold a change of the secret up. One that has answered does not hold that change.
    """
    lease, versions = now.running.lease if now.running else None, now.versions
    rotation = now.network.rotation
    is_confirmed = now.easytier_as_wanted and not now.tries_next_secret
    ray_death = None
    if lease is not None and lease.role is Role.EDGE and now.dead_ray is not None:
        ray_death = key.sign(Kind.RAY_DEATH, RayDeath(network_id=lease.network_id, ray_node_id=now.dead_ray))
    return NodeStatus(
        node_id=key.node_id,
        online=not now.is_stopping,
        phase=now.phase.value,
        conditions=tuple(ConditionReport.of(condition) for condition in now.conditions),
        edgelink_version=__version__,
        ray_version=versions.ray,
        python_version=versions.python or platform.python_version(),
        packages=None if versions.packages is None else dict(versions.packages),
        easytier_version=now.easytier_version,
        device=device,
        labels=lease.labels if lease else {},
        ray_death=ray_death,
        metered=now.is_metered,
        open_ports=told(now.openings, MAX_OPEN_PORTS),
        follows_spec=now.follows_spec,
        paused=tuple(sorted(now.paused)[:MAX_PAUSED]),
        secret_epoch=now.running.held.epoch if now.running and is_confirmed else 0,
        hold_s=0.0 if rotation is not None and rotation.to_epoch == now.hook_answered else hold_s,
        known_network=now.network.known,
    )
