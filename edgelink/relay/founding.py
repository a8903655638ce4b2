"""The founding of a network: once, on the relay's first start. Later starts find what was settled then."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network

from edgelink.clock import Clock
from edgelink.errors import ConfigError, RegistryError
from edgelink.log import hide
from edgelink.relay.allocator import check_ranges
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.records import Network, Ranges
from edgelink.relay.store import RegistryStore

_SECRET_BYTES = 32  # 256 bits
# EasyTier substitutes $NAME in its configuration file, and control characters would break it.
_USABLE_SECRET = re.compile(r"[^$\x00-\x1f\x7f]{1,256}")
_OWN_SECRET = re.compile(r"[\w-]{43}", re.ASCII)


@dataclass(frozen=True)
class NetworkRequest:
    """What a relay asks for. ``secret`` takes over a network that was set up by hand.

    The relay's IP defaults to the first host; ``relay_may_be_outside`` of the CIDR where the network's addresses are
    not ours to choose.
    """

    name: str
    cidr: IPv4Network
    relay_ip: IPv4Address | None = None
    secret: str | None = field(default=None, repr=False)
    relay_may_be_outside: bool = False
    ranges: Ranges | None = None  # from where each role's addresses are dealt; None: as recorded


def settle_network(store: RegistryStore, keys: AuthorityKeys, clock: Clock, request: NetworkRequest) -> Network:
    """The network: made on first start, the recorded one ever after, whatever the request says then.

    A process killed in here leaves no network or a whole one.

    Raises:
        RegistryError: the database does not belong to the keys beside it, or is gone.
        ConfigError: an unusable request; an imported secret for a network that has another one.
    """
    existing = store.network()
    if existing is None and keys.is_in_use:
        raise RegistryError(
            f"{store.path}: the registry's database is gone; this network's leases were in it",
            hint="restore it from a backup; to give up this network and enrol every node anew, remove the whole "
            "state directory",
        )
    if existing is None:
        with store.transaction():
            existing = store.network()  # another process may have been first
            if existing is None:
                existing = _new_network(keys, clock, request)
                store.create_network(existing)
    if existing.network_id != keys.network_id:
        raise RegistryError(
            f"{store.path}: belongs to network {existing.network_id}, but the keys in "
            f"{keys.directory} to {keys.network_id}",
            hint="restore both from the same backup",
        )
    if request.secret not in (None, existing.secret):
        raise ConfigError(
            "this network has a secret already, another than the imported one",
            hint="leave --import-secret out; to take over the other network, use a new state directory",
        )
    if request.ranges not in (None, existing.ranges):
        check_ranges(request.ranges, existing.cidr)
        store.set_ranges(request.ranges)
        existing = replace(existing, ranges=request.ranges)
    keys.mark_in_use()
    hide(existing.secret)
    return existing


def is_own_secret(secret: str) -> bool:
    """Whether EdgeLink made the secret, so that nobody but enrolled nodes has it; pure."""
    return _OWN_SECRET.fullmatch(secret) is not None


def _new_network(keys: AuthorityKeys, clock: Clock, request: NetworkRequest) -> Network:
    cidr, secret = request.cidr, request.secret
    if not 16 <= cidr.prefixlen <= 28:
        raise ConfigError(f"the overlay network {cidr} is not between /16 and /28", hint="change relay.cidr")
    relay_ip = request.relay_ip or cidr[1]
    is_host = relay_ip in cidr and relay_ip not in (cidr.network_address, cidr.broadcast_address)
    if not is_host and not (request.relay_may_be_outside and relay_ip not in cidr):
        raise ConfigError(
            f"the relay's overlay IP {relay_ip} is not a host address of {cidr}", hint="change relay.overlay_ip"
        )
    check_ranges(request.ranges or {}, cidr)
    if secret is not None and not _USABLE_SECRET.fullmatch(secret):
        raise ConfigError(
            "the imported network secret is empty, longer than 256 characters, or holds `$` or a control character",
            hint="EasyTier cannot read such a secret from its configuration file: choose another one",
        )
    return Network(
        network_id=keys.network_id,
        name=request.name,
        secret=secret or secrets.token_urlsafe(_SECRET_BYTES),
        cidr=cidr,
        relay_ip=relay_ip,
        created_at=clock.now(),
    )
