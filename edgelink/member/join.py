"""Enrol this machine, once, without running anything."""

from __future__ import annotations

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.errors import ConfigError
from edgelink.files import private_directory
from edgelink.member.enrol_request import ANY_MACHINE, Machine
from edgelink.member.enrolment import Enrolment, enrol
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import Lease
from edgelink.protocol.token import Token


async def join(
    enrolment: Enrolment, config: Config, paths: Paths, clock: Clock, machine: Machine = ANY_MACHINE
) -> Lease:
    """Get this machine's lease and write it down; the same token again gives the same lease.

    Raises:
        ConfigError: this machine is a member of another network.
        RegistryUnavailableError: the relay does not answer.
        TokenError, LeaseConflictError, AddressPoolExhaustedError, UntrustedError: refused.
    """
    private_directory(paths.state)
    refuse_other_network(Membership.load(paths), enrolment.token, paths)
    key = NodeKey.load_or_create(paths.node_key)
    membership = await enrol(enrolment, None, key, paths, config, clock, machine)
    return membership.lease


def refuse_other_network(present: Membership | None, token: Token, paths: Paths) -> None:
    """Raises ConfigError where this machine is a member of another network than the token's."""
    if present is not None and present.network_id != token.network_id:
        raise ConfigError(
            f"this machine already belongs to network {present.network_id} as {present.lease.hostname}; "
            f"the token is for network {token.network_id}",
            hint=f"stop its daemon and move {paths.state} away before joining another network",
            reason="OtherNetwork",
        )
