"""Which kind of relay runs here: the one with the registry, or an additional one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgelink.clock import Clock
from edgelink.config import Config, Paths
from edgelink.daemon.additional_relay import AdditionalRelay
from edgelink.daemon.relay import Relay
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ConfigError
from edgelink.member.enrolment import Enrolment
from edgelink.protocol.membership import Membership
from edgelink.relay.backup import has_registry
from edgelink.relay.relay_addresses import guessed_address, relay_addresses


def is_additional_relay(paths: Paths) -> bool:
    """Return whether this machine was enrolled as a relay by a registry elsewhere."""
    if has_registry(paths):
        return False
    membership = Membership.load(paths)
    return membership is not None and membership.lease.is_relay


async def run_relay(
    config: Config, paths: Paths, clock: Clock, import_secret: Path | None, enrolment: Enrolment | None = None
) -> None:
    """Run the relay daemon until it is stopped; with ``enrolment``, as an additional relay of that network.

    Raises:
        ConfigError: unusable settings, or an imported secret for a network that has another one.
        OverlayAddressError: on first start, a CIDR that this machine already uses for something else.
        RegistryError: the state directory is damaged.
        UsageError: another relay daemon runs here.
    """
    if enrolment is None and not is_additional_relay(paths):
        await Relay(config, paths, clock, ThisMachine(), import_secret).run()
        return
    if has_registry(paths):
        raise ConfigError(
            f"this machine holds the registry of a network ({paths.registry_database})",
            hint="leave --join out; to make it an additional relay of another network, use an empty state directory",
        )
    addresses = relay_addresses(config, config.relay.advertise or (guessed_address(),))
    if enrolment is not None:
        enrolment = replace(enrolment, relay=addresses)
    await AdditionalRelay(config, paths, clock, ThisMachine(), addresses, enrolment).run()
