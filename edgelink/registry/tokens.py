"""Making tokens: what may be asked for, and what is remembered. Their text is :mod:`edgelink.registry.token`'s."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Address

from pydantic import TypeAdapter, ValidationError

from edgelink.clock import Clock
from edgelink.config.models import Hostname
from edgelink.errors import ConfigError, LeaseConflictError, RegistryError
from edgelink.log import hide
from edgelink.registry.allocator import Claims, Reservation, at_rest, check_address_usable, check_rank_usable
from edgelink.registry.authority_keys import AuthorityKeys
from edgelink.registry.passwords import broker_password_hash
from edgelink.registry.payloads import Labels, Lease, Role
from edgelink.registry.records import TokenRecord
from edgelink.registry.store import RegistryStore
from edgelink.registry.token import Token, split_address

_SECRET_BYTES = 24
_ID_BYTES = 5  # 8 base32 characters: short enough to type into `token revoke`
_HOSTNAME = TypeAdapter[str](Hostname)
_LABELS = TypeAdapter[dict[str, str]](Labels)


@dataclass(frozen=True)
class TokenRequest:
    """A token to make. What it fixes (``hostname``, ``ip``, ``rank``) the machine that uses it gets, or nothing."""

    role: Role
    ttl_s: float = 3600.0
    uses: int = 1
    hostname: str | None = None
    ip: IPv4Address | None = None
    rank: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


class TokenIssuer:
    """Makes tokens that lead to the broker at ``addresses``."""

    def __init__(self, store: RegistryStore, keys: AuthorityKeys, clock: Clock, addresses: tuple[str, ...]) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._addresses = addresses

    def issue(self, request: TokenRequest) -> Token:
        """A new token; its secret is in the return value and nowhere else.

        Raises:
            ConfigError: it could never be used as asked. LeaseConflictError: what it fixes is another node's.
        """
        self._check_request(request)
        now = self._clock.now()
        token = Token(
            token_id=base64.b32encode(os.urandom(_ID_BYTES)).decode().lower(),
            secret=secrets.token_urlsafe(_SECRET_BYTES),
            ca_sha256=self._keys.ca_sha256,
            registry_verify_key=self._keys.verify_key_b64,
            network_id=self._keys.network_id,
            addresses=self._addresses,
        )
        hide(token.secret, token.encode())
        record = TokenRecord(
            token_id=token.token_id,
            role=request.role,
            hostname=request.hostname,
            overlay_ip=request.ip,
            rank=request.rank,
            labels=dict(request.labels),
            uses=request.uses,
            created_at=now,
            expires_at=now + timedelta(seconds=request.ttl_s),
            revoked_at=None,
            password=broker_password_hash(token.secret),
        )
        with self._store.transaction():
            self._check_fixed(record)
            self._store.add_token(record)
        return token

    def reservations(self, *, except_token: str) -> list[Reservation]:
        """What the live tokens promise to whoever brings them."""
        now = self._clock.now()
        return [
            Reservation(token.token_id, token.hostname, token.overlay_ip, token.rank)
            for token in self._store.tokens()
            if token.token_id != except_token and token.state(now) == "live"
        ]

    def claims(self, *, except_token: str) -> Claims:
        """What nobody holds and not everybody may have."""
        return Claims(self.reservations(except_token=except_token), self._store.quarantine.resting())

    def _check_request(self, request: TokenRequest) -> None:
        role, uses, ttl_s = request.role, request.uses, request.ttl_s
        fixed = (request.hostname, request.ip, request.rank)
        if not 0 < ttl_s <= timedelta(days=3650).total_seconds():
            raise ConfigError(f"a token cannot live for {ttl_s:g} s", hint="give a time to live of up to ten years")
        if uses < 1:
            raise ConfigError(f"a token for {uses} machines is of no use", hint="give --uses 1 or more")
        if uses > 1 and (role is Role.HEAD or any(value is not None for value in fixed)):
            raise ConfigError(
                "a token that fixes hostname, IP or rank, or is for the head, is for one machine",
                hint="make one token a machine, with --uses 1",
            )
        try:
            _LABELS.validate_python(dict(request.labels))
        except ValidationError as error:
            raise ConfigError(
                "the labels cannot be used", hint="at most 32, names of 1 to 64 characters, values of up to 256"
            ) from error
        if not self._addresses:
            raise ConfigError(
                "a token would not lead anywhere: the relay does not know its own address",
                hint="set relay.advertise to its public address or DNS name",
            )
        for address in self._addresses:
            try:
                split_address(address)
            except ValueError as error:
                raise ConfigError(f"relay.advertise: {error}", hint="give an IP address or a DNS name") from error

    def _check_fixed(self, token: TokenRecord) -> None:
        """Refuse now what every enrolment with this token would be refused for."""
        network = self._store.network()
        if network is None:
            raise RegistryError("there is no network on this relay yet", hint="start `edgelink bootstrap`")
        if token.hostname is not None:
            try:
                _HOSTNAME.validate_python(token.hostname)
            except ValidationError as error:
                raise ConfigError(
                    f"{token.hostname!r} cannot be a hostname",
                    hint="lower-case letters, digits and `-` inside, at most 32 characters",
                ) from error
        if token.overlay_ip is not None:
            check_address_usable(token.overlay_ip, network.cidr, network.relay_ip)
        if token.rank is not None:
            check_rank_usable(token.role, token.rank)
        # A node that enrols again keeps its lease, so a token may fix what one node holds; not what two do.
        held: dict[str, Lease] = {}
        for lease in self._store.leases():
            if (
                lease.hostname == token.hostname
                or lease.overlay_ip == token.overlay_ip
                or (token.rank is not None and lease.preferred_rank == token.rank)
            ):
                held[lease.node_id] = lease
        if len(held) > 1:
            names = ", ".join(f"{lease.hostname} ({lease.overlay_ip}, {lease.node_id})" for lease in held.values())
            raise LeaseConflictError(
                f"what this token fixes is held by {len(held)} nodes: {names}",
                hint="`edgelink registry list` shows who holds what",
            )
        fixed = {"hostname": token.hostname, "overlay_ip": token.overlay_ip, "rank": token.rank}
        for rest in self._store.quarantine.resting():
            if fixed[rest.kind] is not None and str(fixed[rest.kind]) == rest.value:
                raise at_rest(f"the {rest.kind.replace('_ip', ' IP')} {rest.value}", rest)
        for item in self.reservations(except_token=token.token_id):
            for name in ("hostname", "overlay_ip", "rank"):
                if getattr(token, name) is not None and getattr(token, name) == getattr(item, name):
                    raise LeaseConflictError(
                        f"the {name} {getattr(token, name)} is promised by the token {item.token_id}",
                        hint=f"revoke that one first: `edgelink token revoke {item.token_id}`",
                    )
