"""Making tokens: what may be asked for, and what is remembered. Their text is :mod:`edgelink.protocol.token`'s."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from ipaddress import IPv4Address
from itertools import chain

from pydantic import TypeAdapter, ValidationError

from edgelink.clock import Clock
from edgelink.config.models import Hostname
from edgelink.errors import ConfigError, LeaseConflictError, RegistryError
from edgelink.log import hide
from edgelink.protocol.payloads import Labels, Role
from edgelink.protocol.token import Token, split_address
from edgelink.relay.allocator import NotFree, at_rest, check_address_usable, check_rank_usable, conflict
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.passwords import broker_password_hash
from edgelink.relay.records import Reservation, TokenRecord
from edgelink.relay.store import RegistryStore

_SECRET_BYTES = 24
_ID_BYTES = 5  # 8 base32 characters: short enough to type into `token revoke`
_HOSTNAME = TypeAdapter[str](Hostname)
_LABELS = TypeAdapter[dict[str, str]](Labels)


@dataclass(frozen=True)
class TokenRequest:
    """A token to make. What it fixes (``hostname``, ``ip``, ``rank``) the machine that uses it gets, or nothing.

    ``replaces``: the node (hostname or node_id) whose place the machine takes, with all of its lease; that node's key
    is put out of the network. ``reissue``: for what a lost token promises, which becomes useless; what else that one
    was for counts, not what is asked for here.
    """

    role: Role
    ttl_s: float = 3600.0
    uses: int = 1
    hostname: str | None = None
    ip: IPv4Address | None = None
    rank: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    replaces: str | None = None
    reissue: bool = False


class TokenIssuer:
    """Makes tokens that lead to the broker at ``addresses``, then to wherever else the registry may be restored."""

    def __init__(self, store: RegistryStore, keys: AuthorityKeys, clock: Clock, addresses: tuple[str, ...]) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._addresses = addresses

    def issue(self, request: TokenRequest, not_free: NotFree | None = None) -> Token:
        """A new token; its secret is in the return value and nowhere else. ``not_free``: as they are known already.

        Raises:
            ConfigError: it could never be used as asked. LeaseConflictError: what it fixes is another node's.
            RegistryError: the node that it replaces, or the token that it is in place of, is not known.
        """
        self._check_request(request)
        if request.replaces is not None:
            request = self._in_its_place(request, request.replaces)
        lost = self._lost_token(request) if request.reissue else None
        if lost is not None:
            request = replace(
                request,
                role=lost.role,
                hostname=lost.hostname,
                ip=lost.overlay_ip,
                rank=lost.rank,
                labels={**lost.labels, **request.labels},
                replaces=lost.replaces,
            )
        _check_labels(request.labels)
        now = self._clock.now()
        token = Token(
            token_id=base64.b32encode(os.urandom(_ID_BYTES)).decode().lower(),
            secret=secrets.token_urlsafe(_SECRET_BYTES),
            ca_sha256=self._keys.ca_sha256,
            registry_verify_key=self._keys.verify_key_b64,
            network_id=self._keys.network_id,
            addresses=self._broker_addresses(),
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
            replaces=request.replaces,
        )
        with self._store.transaction():
            if lost is not None:
                self._store.tokens.revoke(lost.token_id)
            self._check_fixed(record, not_free or self.not_free())
            self._store.tokens.add(record)
        return token

    def _broker_addresses(self) -> tuple[str, ...]:
        """Here first; then at the other relays, because a token made now is good after the registry's move, too."""
        others = (relay.broker_addresses for relay in self._store.relay_addresses().values())
        return tuple(dict.fromkeys((*self._addresses, *chain.from_iterable(others))))

    def _lost_token(self, request: TokenRequest) -> TokenRecord:
        """Return the one live token that promises what ``request`` fixes."""
        fixed = {request.hostname, request.ip, request.rank} - {None}
        promising = [
            each.token_id
            for each in self._store.tokens.promises()
            if fixed & {each.hostname, each.overlay_ip, each.rank}
        ]
        token = self._store.tokens.get(promising[0]) if len(promising) == 1 else None
        if token is None:
            what = (
                f"several unused tokens promise it: {', '.join(promising)}"
                if promising
                else "no unused token promises it"
            )
            raise RegistryError(
                f"there is not one token to make again: {what}",
                hint="name what the lost token promises: --hostname, --ip or --rank, as `edgelink token list` shows",
                reason="TokenUnknown",
            )
        return token

    def _in_its_place(self, request: TokenRequest, node: str) -> TokenRequest:
        """Fixed to what the node holds, or held until it was released; ``replaces`` becomes its node_id."""
        lease = self._store.find_lease(node)
        if lease is not None:
            if lease.is_relay and lease.role is Role.HEAD:
                raise ConfigError(
                    f"{lease.hostname} is relay and head, for which no one token is",
                    hint=f"free its lease with `edgelink registry release {lease.hostname} --now`, and join it anew",
                )
            return replace(
                request,
                role=lease.role,
                hostname=lease.hostname,
                ip=lease.overlay_ip,
                rank=lease.preferred_rank,
                labels={**lease.labels, **request.labels},
                replaces=lease.node_id,
            )
        rests = [rest for rest in self._store.quarantine.resting() if node in (rest.node_id, rest.hostname)]
        if not rests:
            raise RegistryError(
                f"no node {node!r} holds a lease, and nothing rests of one",
                hint="`edgelink registry list` shows hostnames and node ids",
                reason="NodeUnknown",
            )
        node_id = rests[-1].node_id  # who had that hostname last, and what it held last
        held = {rest.kind: rest.value for rest in rests if rest.node_id == node_id}
        return replace(
            request,
            hostname=held.get("hostname"),
            ip=IPv4Address(held["overlay_ip"]) if "overlay_ip" in held else None,
            rank=int(held["rank"]) if "rank" in held and request.role is Role.EDGE else None,
            replaces=node_id,
        )

    def not_free(self, *, except_token: str | None = None) -> NotFree:
        """What nobody holds and not everybody may have."""
        promised = (item for item in self._store.tokens.promises() if item.token_id != except_token)
        return NotFree(promised, self._store.quarantine.resting())

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
        if request.replaces is not None and (uses > 1 or any(value is not None for value in fixed)):
            raise ConfigError(
                "a token that replaces a node is for one machine, and fixes all that the node held",
                hint="leave out --uses, --hostname, --ip and --rank",
            )
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

    def _check_fixed(self, token: TokenRecord, not_free: NotFree) -> None:
        """Refuse now what every enrolment with this token would be refused for."""
        network = self._store.require_network()
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
        # A node that enrols again keeps its lease, so a token may fix what one node holds; not what two do. A name is
        # refused all the same: nobody means the node that has it, which may use any token.
        holdings = self._store.holdings
        holders = [
            holdings.of_hostname(token.hostname) if token.hostname is not None else None,
            holdings.of_address(token.overlay_ip) if token.overlay_ip is not None else None,
            holdings.of_rank(token.rank) if token.rank is not None else None,
        ]
        named = holders[0]
        if named is not None and named.node_id != token.replaces and not (named.is_relay and token.role is Role.HEAD):
            raise conflict(f"a token for the hostname {token.hostname!r} would be of use to nobody", named)
        held = {lease.node_id: lease for lease in holders if lease is not None}
        if len(held) > 1:
            names = ", ".join(f"{lease.hostname} ({lease.overlay_ip}, {lease.node_id})" for lease in held.values())
            raise LeaseConflictError(
                f"what this token fixes is held by {len(held)} nodes: {names}",
                hint="`edgelink registry list` shows who holds what",
            )
        fixed = (
            (f"the hostname {token.hostname!r}", not_free.hostnames.get(token.hostname or "")),
            (f"the overlay IP {token.overlay_ip}", not_free.addresses.get(int(token.overlay_ip or 0))),
            (f"the rank {token.rank}", not_free.ranks.get(-1 if token.rank is None else token.rank)),
        )
        for what, claim in fixed:
            if isinstance(claim, Reservation):
                raise LeaseConflictError(
                    f"{what} is promised by the token {claim.token_id}",
                    hint=f"if that one was lost: --reissue makes it useless, and a new one in its place; "
                    f"`edgelink token revoke {claim.token_id}` takes the promise away",
                )
            if claim is not None and claim.node_id != token.replaces:
                raise at_rest(what, claim)


def _check_labels(labels: Mapping[str, str]) -> None:
    """Raises ConfigError where no lease can have them: with those of the node in whose place the machine comes."""
    try:
        _LABELS.validate_python(dict(labels))
    except ValidationError as error:
        raise ConfigError(
            "the labels cannot be used",
            hint="at most 32, with those of the node that is replaced; names of 1 to 64 characters, values of up to "
            "256",
        ) from error
