"""What is checked of an enrolment request before anything is granted: who signed it, and whether its token is good."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network

from pydantic import ValidationError

from edgelink.errors import ConfigError, LeaseConflictError, RegistryError, TokenError, UntrustedError
from edgelink.protocol.keys import Kind, node_id_of, open_envelope, seal
from edgelink.protocol.payloads import EnrolRequest, Envelope, Lease, Role, unusable_fields
from edgelink.relay.records import TokenRecord

_ASK_FOR_ANOTHER = "ask the operator for a new one: `edgelink token create --role {role}` on the relay"


def verified_request(envelope: Envelope, token_id: str) -> EnrolRequest:
    """The request, signed by the key it names, under the token whose topic it came by.

    Raises:
        ConfigError: it is not usable. UntrustedError, TokenError: it is not what it claims to be.
    """
    try:
        verify_key = EnrolRequest.model_validate_json(envelope.body).verify_key  # not trusted until checked below
    except ValidationError as error:
        raise ConfigError(
            f"the enrolment request is not usable: {unusable_fields(error, of_all='JSON')}",
            hint="check hostname (lower-case letters, digits and `-`, at most 32 characters) and labels (at most 32), "
            "and that node and relay run the same EdgeLink: `edgelink version`",
        ) from error
    if envelope.signer != node_id_of(verify_key):
        raise UntrustedError("the enrolment request is not signed by the node it is for")
    request = open_envelope(envelope, Kind.ENROL_REQUEST, EnrolRequest, verify_key)
    if request.token_id != token_id:
        raise TokenError(
            f"the request is for the token {request.token_id}, but came with {token_id}", reason="TokenMismatch"
        )
    seal(verify_key, b"")  # before anything is granted to a key that secrets cannot be sealed to
    return request


def refuse_outdated(request: EnrolRequest, newest: datetime | None, now: datetime) -> None:
    """``newest``: when the node made the newest request that was granted; the same one may come twice.

    Raises:
        RegistryError: an older one, played again or late, would bring back an old password and old addresses.
    """
    if newest is None or (request.asked_at is not None and request.asked_at >= newest):
        return
    made = "without a time" if request.asked_at is None else f"at {request.asked_at:%Y-%m-%d %H:%M:%S} UTC"
    raise RegistryError(
        f"the request was made {made}, and the node had asked at {newest:%Y-%m-%d %H:%M:%S} UTC before",
        hint=f"set the clock of this machine (the relay's says {now:%Y-%m-%d %H:%M} UTC) and compare `edgelink "
        "version`; if it was ahead when it joined, free its lease: `edgelink registry release NODE` on the relay",
        reason="RequestOutdated",
    )


def usable_token(
    token: TokenRecord | None,
    request: EnrolRequest,
    node_id: str,
    now: datetime,
    lease_of: Callable[[str], Lease | None],
) -> TokenRecord:
    """Return the token, if this node may enrol with it now.

    Args:
        lease_of: the lease of a node_id, None where it holds none.

    Raises:
        TokenError: unknown, revoked, expired, used up, or for another role.
    """
    role = request.role or (token.role if token is not None else Role.EDGE)
    hint = _ASK_FOR_ANOTHER.format(role=role.value)
    if token is None:
        raise TokenError(f"the token {request.token_id} is not known here", hint=hint, reason="TokenUnknown")
    state = token.state(now)
    if state == "revoked":
        raise TokenError(f"the token {token.token_id} was revoked", hint=hint, reason="TokenRevoked")
    if state == "expired":
        raise TokenError(
            f"the token {token.token_id} expired at {token.expires_at:%Y-%m-%d %H:%M} UTC by the relay's clock",
            hint=hint,
            reason="TokenExpired",
        )
    if state == "used" and not (lease_of(node_id) and node_id in token.used_by):
        leases = {each: lease_of(each) for each in token.used_by}
        users = ", ".join(lease.hostname if lease else f"{each}, which has left" for each, lease in leases.items())
        raise TokenError(
            f"the token {token.token_id} was used already, by {users}",
            hint=hint,
            reason="TokenUsedUp",
        )
    if role is not token.role:
        raise TokenError(
            f"the token {token.token_id} is for a node of role {token.role.value}, not {role.value}",
            hint=hint,
            reason="TokenRoleMismatch",
        )
    return token


def check_same(lease: Lease, request: EnrolRequest, token: TokenRecord) -> None:
    """A node that has a lease keeps it: a token that says otherwise is refused. Raises LeaseConflictError.

    Not what a token for a node's place says to who has this place, the node or its successor: that is as old as the
    token, and the lease may have been changed since.
    """
    is_in_its_place = token.replaces is not None and lease.node_id in (token.replaces, *token.used_by)
    fixed_ip = None if is_in_its_place else token.overlay_ip
    becomes_head = lease.role is Role.RELAY and token.role is Role.HEAD
    stays_relay = lease.is_relay and token.role is Role.RELAY
    differs = {
        "role": not (becomes_head or stays_relay) and token.role is not lease.role,
        "hostname": not is_in_its_place and token.hostname not in (None, lease.hostname),
        "overlay IP": (fixed_ip or request.overlay_ip) not in (None, lease.overlay_ip),
        "rank": not (becomes_head or is_in_its_place) and token.rank not in (None, lease.preferred_rank),
    }
    wrong = [name for name, is_different in differs.items() if is_different]
    if wrong:
        raise LeaseConflictError(
            f"this node holds a lease already ({lease.hostname}, {lease.role.value}, {lease.overlay_ip}, rank "
            f"{lease.preferred_rank}) and asks for another {', '.join(wrong)}",
            hint=f"free the old lease first: `edgelink registry release {lease.hostname}` on the relay",
        )


def check_address(request: EnrolRequest, fixed: IPv4Address | None, cidr: IPv4Network) -> None:
    """Of a device that is there already; ``fixed``: by the token. Raises ConfigError where it carries an address that
    it cannot have."""
    if fixed and request.overlay_ip and fixed != request.overlay_ip:
        raise ConfigError(
            f"the node's device carries {request.overlay_ip}, but the token fixes {fixed}",
            hint=f"give the device that address, or make a token with --ip {request.overlay_ip}",
        )
    if request.overlay_ip is not None and request.overlay_ip not in cidr:
        raise ConfigError(
            f"the address of this machine's device, {request.overlay_ip}, lies outside of {cidr}",
            hint="name the device by which the others reach this machine in overlay.device; which network that is "
            "was settled on the relay (relay.cidr) before its first start",
        )
