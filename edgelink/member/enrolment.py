"""How this machine becomes a member of a network, by a token."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.errors import ConfigError
from edgelink.log import get_logger
from edgelink.member.enrol_request import Machine, request_membership
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership, put_membership
from edgelink.protocol.payloads import RelayAddresses, Role
from edgelink.protocol.token import Token

log = get_logger("node")


@dataclass(frozen=True)
class Enrolment:
    """How this machine becomes a member, when it is not one yet. ``relay``: where it is dialled, if it is a relay."""

    token: Token
    hostname: str
    labels: dict[str, str] = field(default_factory=dict)
    relay: RelayAddresses | None = None


async def enrol(
    enrolment: Enrolment,
    role: Role | None,
    key: NodeKey,
    paths: Paths,
    config: Config,
    clock: Clock,
    machine: Machine,
) -> Membership:
    """Ask the relay for this machine's lease and write it down before anything uses it.

    Raises:
        RegistryUnavailableError: no address in the token answers.
        TokenError, LeaseConflictError, AddressPoolExhaustedError, UntrustedError: refused.
    """
    overlay_ip = None
    if config.overlay.kind == "existing":
        # Here, as `edgelink join` would wait for half a second for what looks at devices, and needs it nowhere else.
        from edgelink.overlay.link import existing_address

        overlay_ip = await existing_address(config.overlay.device)
    membership = await request_membership(
        enrolment.token,
        key,
        machine=machine,
        hostname=enrolment.hostname,
        role=role,
        labels=enrolment.labels,
        overlay_ip=overlay_ip,
        relay=enrolment.relay,
        clock=clock,
    )
    membership = put_membership(paths, membership)
    lease = membership.lease
    log.info(
        "node.enrolled",
        hostname=lease.hostname,
        overlay_ip=str(lease.overlay_ip),
        preferred_rank=lease.preferred_rank,
    )
    return membership


def require_role(membership: Membership, role: Role) -> None:
    """Refuse to run as what the lease does not say."""
    lease = membership.lease
    if lease.role is not role and not (role is Role.RELAY and lease.is_relay):
        raise ConfigError(
            f"this machine is enrolled as {lease.role.value}, not as {role.value}",
            hint=f"run `edgelink {lease.role.value}` here, or join with a token of --role {role.value}",
            reason="WrongRole",
        )
