"""What a node keeps of its enrolment: the signed lease, whom to trust, and its secrets. One file, 0600.

It is on disk before any of it is used. Everything in it that a node obeys is signed by the registry's key, which the
token brought; that is checked when a reply is accepted and again whenever the file is read.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from edgelink.config.paths import Paths
from edgelink.errors import (
    AddressPoolExhaustedError,
    LeaseConflictError,
    NotCommittedError,
    RegistryError,
    RenewedJustNowError,
    TokenError,
    UntrustedError,
)
from edgelink.files import not_recorded, private_directory, write_atomic
from edgelink.log import hide
from edgelink.protocol.held_secret import HeldSecret
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import Directory, EnrolReply, Envelope, Lease, NodeSecrets
from edgelink.protocol.token import Token

Write = Callable[[Path, str], None]

_FORMAT: Literal[1] = 1
HOW_TO_JOIN = "get a token from the operator and run `edgelink up TOKEN`, or without systemd `edgelink join TOKEN`"
_ENROL_AGAIN = "enrol again: `edgelink join` with a new token gives this node the same lease"
_REFUSALS: tuple[type[RegistryError], ...] = (
    AddressPoolExhaustedError,
    LeaseConflictError,
    NotCommittedError,
    RenewedJustNowError,
    UntrustedError,
)


class Membership(BaseModel):
    """This node's place in one network. ``addresses`` are the broker's, ``host:port``.

    The network's secret is spread over several fields here, as it is on disk: read and change it by ``held`` and
    :meth:`with_secret`.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: Literal[1] = _FORMAT
    network_id: str
    addresses: tuple[str, ...]
    ca_pem: str
    registry_verify_key: str
    lease_envelope: Envelope
    secrets: NodeSecrets = Field(repr=False)
    next_epoch: int | None = None  # a secret that the network is to change to (ADR 0050)
    next_secret: str | None = Field(None, repr=False)
    next_broker_password: str | None = Field(None, repr=False)  # that the registry was, or is to be, asked to take

    @property
    def held(self) -> HeldSecret:
        """The network's secret and the one that may come after it."""
        secrets = self.secrets
        return HeldSecret(secrets.secret_epoch, secrets.network_secret, self.next_epoch, self.next_secret)

    def with_lease(self, envelope: Envelope) -> Self:
        """Itself with this lease. UntrustedError when it is not one of this network."""
        values = {name: getattr(self, name) for name in type(self).model_fields}  # a copy would keep the former lease
        changed = type(self)(**values | {"lease_envelope": envelope})
        _ = changed.lease
        return changed

    @property
    def broker_passwords(self) -> tuple[str, ...]:
        """One of them opens the broker; the next one, where there is one, comes first."""
        upcoming = () if self.next_broker_password is None else (self.next_broker_password,)
        return (*upcoming, self.secrets.broker_password)

    def holding(self, held: HeldSecret) -> Self:
        """Itself with these secrets, unless its own are newer: none is ever gone back to."""
        if self.held.epoch > held.epoch:
            return self
        if held.next_epoch is not None and held.next_epoch <= held.epoch:
            held = replace(held, next_epoch=None, next_secret=None)
        return self.with_secret(held)

    def with_secret(self, held: HeldSecret) -> Self:
        """Itself with exactly these secrets."""
        secrets = self.secrets.model_copy(update={"secret_epoch": held.epoch, "network_secret": held.secret})
        return self.model_copy(
            update={"secrets": secrets, "next_epoch": held.next_epoch, "next_secret": held.next_secret}
        )

    @cached_property
    def lease(self) -> Lease:
        """The lease, its signature and network checked."""
        lease = open_envelope(self.lease_envelope, Kind.LEASE, Lease, self.registry_verify_key)
        if lease.network_id != self.network_id:
            raise UntrustedError(f"the lease is of network {lease.network_id}, not of {self.network_id}")
        return lease

    @classmethod
    def from_reply(cls, reply: EnrolReply, *, token: Token, key: NodeKey, ca_pem: str) -> Self:
        """Accept a reply to our request: the registry's signatures checked, the secrets opened.

        Raises:
            RegistryError: the registry's refusal, as the class it was there; UntrustedError for a forged reply.
        """
        if reply.error is not None:
            raise refusal(reply)
        if reply.lease is None or reply.sealed_secrets is None:
            raise RegistryError("the registry's reply holds neither a lease nor a refusal")
        membership = cls(
            network_id=token.network_id,
            addresses=token.addresses,
            ca_pem=ca_pem,
            registry_verify_key=token.registry_verify_key,
            lease_envelope=reply.lease,
            secrets=open_secrets(reply.sealed_secrets, key, token.registry_verify_key),
        )
        hide(membership.secrets.network_secret, membership.secrets.broker_password)
        return membership.belonging_to(key)

    def belonging_to(self, key: NodeKey) -> Self:
        """Itself, when it is the membership of the node with this key; else UntrustedError."""
        if self.lease.node_id != key.node_id or self.lease.verify_key != key.verify_key_b64:
            raise UntrustedError(
                f"the lease is node {self.lease.node_id}'s, not ours ({key.node_id})", hint=_ENROL_AGAIN
            )
        if self.secrets.broker_username != key.node_id:
            raise UntrustedError(
                f"the secrets were made for {self.secrets.broker_username}, not for {key.node_id}",
                hint="the relay may run another version of EdgeLink: compare `edgelink version` there",
            )
        return self

    def following(self, directory: Directory, *, in_use: str) -> Self:
        """Itself, with the relays where the registry's ``directory`` says they are; pure.

        The broker's address ``in_use``, and EasyTier's at the same host, are kept whatever it says: they are proven,
        and a relay that advertises a wrong address must not cut off those who know a right one.
        """
        if not directory.relays:
            return self
        others = [relay for node_id, relay in directory.relays.items() if node_id != self.lease.node_id]
        host = urlsplit(f"//{in_use}").hostname
        behind = next((e.node_id for e in directory.relay_entries if str(e.overlay_ip) == host), None)
        relays = sorted(directory.relays.items(), key=lambda item: item[0] != behind)  # that one first
        brokers = [address for _, relay in relays for address in relay.broker_addresses]
        if in_use in (*self.addresses, *brokers):
            brokers.insert(0, in_use)
        peers = [url for url in self.secrets.overlay_peers if urlsplit(url).hostname == host]
        for relay in others:
            peers += relay.overlay_peers
        secrets = self.secrets.model_copy(
            update={
                "overlay_peers": tuple(dict.fromkeys(peers)),
                "stun_servers": tuple(server for relay in others for server in relay.stun_servers),
            }
        )
        return self.model_copy(update={"addresses": tuple(dict.fromkeys(brokers)), "secrets": secrets})

    def save(self, paths: Paths, write: Write = write_atomic) -> None:
        """On disk (fsync), readable to root only, when this returns. Raises NotRecordedError."""
        path = paths.membership
        private_directory(path.parent)
        write(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, paths: Paths) -> Self | None:
        """The membership on disk, its lease verified; None when this node never enrolled.

        Raises:
            RegistryError: the file is damaged. UntrustedError: its lease was altered.
        """
        path = paths.membership
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise RegistryError(f"{path} cannot be read", hint="use sudo", reason="NotPrivileged") from error
        except (OSError, UnicodeDecodeError) as error:
            raise RegistryError(f"{path}: cannot be read: {error}", reason="MembershipDamaged") from error
        try:
            membership = cls.model_validate_json(text)
        except ValidationError as error:
            if newer := _newer_format(text):
                raise RegistryError(
                    f"{path}: was written by a newer EdgeLink (format {newer}, this one knows {_FORMAT})",
                    hint="install that version again; nothing was changed",
                    reason="MembershipNewer",
                ) from None
            fields = ", ".join(sorted({".".join(map(str, item["loc"])) or "JSON" for item in error.errors()}))
            raise RegistryError(  # without the values: they are secrets
                f"{path}: is damaged ({fields})", hint=_ENROL_AGAIN, reason="MembershipDamaged"
            ) from None
        secrets = membership.secrets
        hide(secrets.network_secret, secrets.broker_password)
        hide(membership.next_secret or "", membership.next_broker_password or "")
        try:
            _ = membership.lease
        except UntrustedError as error:
            raise UntrustedError(f"{path}: {error.message}", hint=_ENROL_AGAIN) from error
        return membership


def update_membership(
    paths: Paths, change: Callable[[Membership], Membership], write: Write = write_atomic
) -> Membership | None:
    """Read, change and write the membership while no other daemon or command does; None where there is none.

    A secret that the network has left behind never comes back. What is returned is on disk.

    Raises:
        RegistryError: the file is damaged. UntrustedError: its lease was altered. NotRecordedError: no room for it.
    """
    with _writing(paths):
        present = Membership.load(paths)
        if present is None:
            return None
        changed = change(present)
        if changed.network_id == present.network_id and changed.held.epoch < present.held.epoch:
            changed = changed.holding(present.held)
        if changed != present:
            changed.save(paths, write)
        return changed


def put_membership(paths: Paths, membership: Membership, write: Write = write_atomic) -> Membership:
    """Write down what the registry has just granted; secrets that this node has and that are as new or newer stay.

    Raises as :func:`update_membership`.
    """
    with _writing(paths):
        present = Membership.load(paths)
        if present is not None and present.network_id == membership.network_id:
            if present.held.epoch >= membership.held.epoch:
                membership = membership.holding(present.held)
            if membership.next_broker_password is None:  # one that was asked for may come to count at any time
                kept = present.next_broker_password
                membership = membership.model_copy(update={"next_broker_password": kept})
        if membership != present:
            membership.save(paths, write)
        return membership


@contextmanager
def _writing(paths: Paths) -> Iterator[None]:
    """One writer at a time, over all processes of this machine."""
    private_directory(paths.state)
    lock = paths.state / "membership.lock"
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise not_recorded(lock, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def open_secrets(sealed_b64: str, key: NodeKey, registry_verify_key: str) -> NodeSecrets:
    """The node's secrets. Anyone can seal to a node, so what is inside has to be signed by the registry."""
    try:
        envelope = Envelope.model_validate_json(key.unseal(sealed_b64))
    except ValidationError:
        raise UntrustedError("the sealed secrets hold no signed document") from None
    return open_envelope(envelope, Kind.SECRETS, NodeSecrets, registry_verify_key)


class Refusal(Protocol):
    """What a registry that refuses says."""

    @property
    def error(self) -> str | None: ...
    @property
    def error_reason(self) -> str | None: ...
    @property
    def error_hint(self) -> str: ...


def refusal(reply: Refusal) -> RegistryError:
    """The error that a refusing reply stands for."""
    reason = reply.error_reason or RegistryError.reason
    message = f"the registry refused: {reply.error}"
    for kind in _REFUSALS:
        if kind.reason == reason:
            return kind(message, hint=reply.error_hint)
    kind = TokenError if reason.startswith("Token") else RegistryError
    return kind(message, hint=reply.error_hint, reason=reason)


def _newer_format(text: str) -> int | None:
    """The format of a file that a later EdgeLink wrote; None: it is none."""
    try:
        version = json.loads(text)["version"]
    except (ValueError, TypeError, LookupError):
        return None
    return version if isinstance(version, int) and version > _FORMAT else None
