"""Facts that follow from other facts. Pure functions."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from ipaddress import IPv4Interface
from typing import Final

from edgelink.config import Config
from edgelink.facts.board import Board, Fact
from edgelink.facts.facts import Facts
from edgelink.overlay.config_file import OverlaySpec
from edgelink.registry.membership import Membership
from edgelink.registry.payloads import Envelope
from edgelink.registry.rotation import HeldSecret

RUNNING: Final[Fact[Membership | None]] = Fact("running")
OVERLAY_SPEC: Final[Fact[OverlaySpec | None]] = Fact("overlay_spec")


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
        # Fixed for the node's life, so that the same node is the same instance to its peers.
        instance_id=uuid.uuid5(uuid.NAMESPACE_OID, f"edgelink/{lease.network_id}/{lease.node_id}"),
    )
