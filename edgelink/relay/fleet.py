"""Preparing for many machines at once: a file says what each is to be, and each gets a token that fixes just that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgelink.config.mistakes import describe, key_of
from edgelink.config.models import Hostname
from edgelink.errors import ConfigError, EdgelinkError, LeaseConflictError
from edgelink.protocol.payloads import Labels, Role
from edgelink.protocol.token import Token
from edgelink.relay.allocator import NotFree
from edgelink.relay.records import Reservation
from edgelink.relay.store import RegistryStore
from edgelink.relay.tokens import TokenIssuer, TokenRequest
from edgelink.wording import json_mistake

_MAX_NAMED = 20


class FleetEntry(BaseModel):
    """One machine, as `edgelink registry export` writes a lease; only its hostname is needed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    hostname: Hostname
    role: Role = Role.EDGE
    is_relay: bool = False
    overlay_ip: IPv4Address | None = None
    preferred_rank: int | None = Field(None, ge=0)
    labels: Labels = {}
    node_id: str | None = None


class Fleet(BaseModel):
    """The file: at most as many machines as the largest network has addresses."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1]
    leases: tuple[FleetEntry, ...] = Field(max_length=65534)


@dataclass(frozen=True)
class Imported:
    """``token`` None: the machine needs none, because it holds that lease, or is a relay."""

    entry: FleetEntry
    state: Literal["token", "held", "relay"]
    token: Token | None


class _DryRunError(Exception): ...


def read_fleet(text: str | bytes) -> Fleet:
    """The file's content. Raises ConfigError, naming what cannot be used."""
    try:
        return Fleet.model_validate_json(text)
    except ValidationError as error:
        raise ConfigError(
            f"this is no list of leases: {_wrong(text, error)}",
            hint='it looks like what `edgelink registry export` writes: {"version": 1, "leases": [{"hostname": …}]}',
        ) from error


def _wrong(text: str | bytes, error: ValidationError) -> str:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as no_json:
        return json_mistake(no_json)
    return "; ".join(describe(item, key_of(item["loc"], values), Fleet) for item in error.errors()[:_MAX_NAMED])


def import_fleet(
    store: RegistryStore, issuer: TokenIssuer, entries: Sequence[FleetEntry], *, ttl_s: float, dry_run: bool
) -> list[Imported]:
    """A token for each machine that holds no lease yet: all of them, or none. ``dry_run``: none, but all is checked.

    Raises:
        LeaseConflictError, ConfigError: what some machines are to be they cannot be; names them and why.
    """
    imported: list[Imported] = []
    problems: list[tuple[str, EdgelinkError]] = []
    try:
        with store.transaction():
            not_free = issuer.not_free()
            for entry in entries:
                try:
                    done = _import(store, issuer, entry, ttl_s, not_free)
                except (ConfigError, LeaseConflictError) as error:
                    problems.append((entry.hostname, error))
                else:
                    imported.append(done)
            _refuse(problems, len(entries))
            if dry_run:
                raise _DryRunError
    except _DryRunError:
        return [Imported(item.entry, item.state, None) for item in imported]
    return imported


def _import(store: RegistryStore, issuer: TokenIssuer, entry: FleetEntry, ttl_s: float, not_free: NotFree) -> Imported:
    if entry.is_relay or entry.role is Role.RELAY:
        return Imported(entry, "relay", None)  # it says itself where it is dialled: `edgelink relay --join`
    lease = store.find_lease(entry.hostname)
    if lease is not None:
        same = {
            "role": lease.role is entry.role,
            "node id": entry.node_id in (None, lease.node_id),
            "overlay IP": entry.overlay_ip in (None, lease.overlay_ip),
            "rank": entry.preferred_rank in (None, lease.preferred_rank),
        }
        differs = [name for name, is_same in same.items() if not is_same]
        if differs:
            raise LeaseConflictError(
                f"{lease.node_id} holds that hostname, with another {', '.join(differs)} ({lease.role.value}, "
                f"{lease.overlay_ip}, rank {lease.preferred_rank})"
            )
        return Imported(entry, "held", None)
    request = TokenRequest(
        role=entry.role,
        ttl_s=ttl_s,
        hostname=entry.hostname,
        ip=entry.overlay_ip,
        rank=entry.preferred_rank if entry.role is Role.EDGE else None,
        labels=entry.labels,
    )
    token = issuer.issue(request, not_free)
    not_free.add(Reservation(token.token_id, request.hostname, request.ip, request.rank))
    return Imported(entry, "token", token)


def _refuse(problems: Sequence[tuple[str, EdgelinkError]], count: int) -> None:
    if not problems:
        return
    named = "; ".join(f"{hostname}: {error.message}" for hostname, error in problems[:_MAX_NAMED])
    more = f"; and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
    raise LeaseConflictError(
        f"{len(problems)} of {count} machines cannot be what the file says, so nothing was imported: {named}{more}",
        hint="change the file, or free what is taken: `edgelink registry release NODE --now`",
    )
