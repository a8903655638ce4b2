"""Where a relay is dialled, and the STUN server that it offers there: the same for every relay."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from pydantic import ValidationError

from edgelink.clock import Clock
from edgelink.conditions import ConditionSet
from edgelink.config import Config
from edgelink.errors import ConfigError
from edgelink.log import get_logger
from edgelink.overlay.stun_server import Others, StunServer
from edgelink.protocol.payloads import RelayAddresses

log = get_logger("bootstrap")


def require_own_overlay(config: Config) -> None:
    """Raises ConfigError where an additional relay would have no overlay of EdgeLink's to relay."""
    if config.overlay.kind == "existing":
        raise ConfigError(
            "an overlay that is there already needs no second relay",
            hint="set overlay.kind to easytier, or leave this machine out",
        )


def overlay_peers(listeners: tuple[str, ...], hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The URLs that nodes dial: each listener's scheme and port at each advertised host; pure."""
    return tuple(f"{url.scheme}://{host}:{url.port}" for url in map(urlsplit, listeners) for host in hosts if url.port)


def stun_servers(ports: tuple[int, ...], hosts: tuple[str, ...]) -> tuple[str, ...]:
    """What nodes are told to ask: each port at each advertised host; pure. The server has no IPv6."""
    return tuple(f"{host}:{port}" for host in hosts if not host.startswith("[") for port in ports)


def relay_addresses(config: Config, hosts: tuple[str, ...]) -> RelayAddresses:
    """Where a relay with this configuration is dialled, at each of ``hosts``; pure.

    Raises:
        ConfigError: more addresses than every node could be told of.
    """
    try:
        return RelayAddresses(
            overlay_peers=overlay_peers(config.relay.easytier_listeners, hosts),
            broker_addresses=tuple(f"{host}:{config.relay.broker_port}" for host in hosts),
            stun_servers=stun_servers(_stun_ports(config), hosts),
        )
    except ValidationError as error:
        raise ConfigError(
            f"the relay cannot be dialled at {', '.join(hosts)}: too many addresses, or one that is too long",
            hint="check relay.advertise and relay.easytier_listeners: 16 URLs in all at most",
        ) from error


def guessed_address() -> str:
    """As :func:`outgoing_address`, and warn that it may be another one that nodes dial."""
    address = outgoing_address()
    log.warning("bootstrap.address_guessed", address=address, hint="give --advertise if nodes dial another one")
    return address


def outgoing_address() -> str:
    """The address of the interface that leads out of this machine.

    Raises:
        ConfigError: nothing leads out; the address has to be given.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # TEST-NET-1; connecting a datagram socket sends nothing
        except OSError as error:
            raise ConfigError(
                "the relay's public address cannot be guessed: this machine has no default route",
                hint="give it with --advertise ADDRESS (or relay.advertise)",
            ) from error
        return str(probe.getsockname()[0])


def stun_server(config: Config, conditions: ConditionSet, clock: Clock, others: Others) -> StunServer | None:
    """The relay's own STUN server. None where it is switched off, or there is no EasyTier to ask it.

    ``others`` takes what comes to its ports and is no STUN.
    """
    ports = _stun_ports(config)
    return StunServer(ports, conditions, clock, others=others) if ports else None


def _stun_ports(config: Config) -> tuple[int, ...]:
    return config.relay.stun_ports if config.overlay.kind == "easytier" else ()
