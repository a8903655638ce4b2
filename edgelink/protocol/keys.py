"""Keys and envelopes: who signed what, and what only one node can read.

A node's key is made on the node and never leaves it; ``node_id`` is the fingerprint of its public half. The same
Ed25519 pair signs (requests, the head's cluster spec) and, turned into Curve25519, opens what was sealed to the node.
The registry's own key lives in :mod:`edgelink.relay.authority_keys`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import secrets
from enum import StrEnum
from pathlib import Path
from typing import Literal, TypeVar

from nacl.exceptions import CryptoError
from nacl.public import SealedBox
from nacl.signing import SigningKey, VerifyKey
from pydantic import ValidationError

from edgelink.errors import ConfigError, UntrustedError
from edgelink.files import fsync_directory, write_atomic
from edgelink.protocol.payloads import Envelope, Payload

PayloadT = TypeVar("PayloadT", bound=Payload)

_NODE_ID_BYTES = 16  # of SHA-256: 128 bits, as 26 base32 characters
_KEY_BYTES = 32


class Kind(StrEnum):
    """What an envelope carries; part of what is signed, so that a lease cannot be passed off as a directory."""

    ENROL_REQUEST = "enrol-request"
    LEASE = "lease"
    SECRETS = "secrets"
    DIRECTORY = "directory"
    ROSTER = "roster"
    CLUSTER_SPEC = "cluster-spec"
    REPORT_REQUEST = "report-request"
    REPORT = "report"
    RAY_DEATH = "ray-death"
    NETWORK = "network"
    NETWORK_SECRETS = "network-secrets"
    EASYTIER_DEATH = "easytier-death"
    PAIR_SILENCE = "pair-silence"
    NODE_REQUEST = "node-request"
    NODE_REPLY = "node-reply"
    ACCESS = "access"
    KNOCK = "knock"
    KNOCK_ANSWER = "knock-answer"
    EXEC_HELLO = "exec-hello"
    EXEC_REQUEST = "exec-request"


def node_id_of(verify_key_b64: str) -> str:
    """The fingerprint by which a node with this public key is known."""
    digest = hashlib.sha256(_decode_key(verify_key_b64)).digest()[:_NODE_ID_BYTES]
    return base64.b32encode(digest).decode().rstrip("=").lower()


def request_id_of(envelope: Envelope) -> str:
    """What ties a reply to its request: the same bytes sent twice are one request."""
    return hashlib.sha256(envelope.signature.encode()).hexdigest()[:32]


def sign_envelope(key: SigningKey, kind: str, payload: Payload, signer: str | Literal["registry"]) -> Envelope:
    body = payload.model_dump_json()
    signature = key.sign(_signed_bytes(kind, body)).signature
    return Envelope(kind=kind, body=body, signature=base64.b64encode(signature).decode(), signer=signer)


def open_envelope(envelope: Envelope, kind: str, model: type[PayloadT], verify_key_b64: str) -> PayloadT:
    """The payload, after its kind, signer and signature have been checked.

    Raises:
        UntrustedError: it is of another kind, not signed by this key, or not what it claims to be.
    """
    if envelope.kind != kind:
        raise UntrustedError(f"expected a signed {kind}, got a {envelope.kind!r}")
    if envelope.signer != "registry" and envelope.signer != node_id_of(verify_key_b64):
        raise UntrustedError(f"the {kind} names {envelope.signer} as its signer, whose key is another one")
    try:
        signature = base64.b64decode(envelope.signature, validate=True)
        VerifyKey(_decode_key(verify_key_b64)).verify(_signed_bytes(kind, envelope.body), signature)
    except (CryptoError, ValueError, TypeError) as error:
        raise UntrustedError(
            f"the signature of a {kind} by {envelope.signer} does not match",
            hint="it was altered on its way, or belongs to another network",
        ) from error
    try:
        return model.model_validate_json(envelope.body)
    except ValidationError as error:
        raise UntrustedError(
            f"the signed {kind} is not understood: {error.error_count()} unusable fields",
            hint="the other side may run a newer EdgeLink: compare `edgelink version`",
        ) from error


def seal(verify_key_b64: str, plaintext: bytes) -> str:
    """Encrypt for the one node that holds this key; base64. UntrustedError when nothing can be sealed to such a key."""
    try:
        box = SealedBox(VerifyKey(_decode_key(verify_key_b64)).to_curve25519_public_key())
    except (CryptoError, ValueError, TypeError) as error:
        raise UntrustedError("a public key is not one that secrets can be sealed to") from error
    return base64.b64encode(box.encrypt(plaintext)).decode()


def unseal(key: SigningKey, sealed_b64: str) -> bytes:
    """Open what :func:`seal` made for the holder of ``key``. Raises UntrustedError when it was not for it."""
    try:
        ciphertext = base64.b64decode(sealed_b64, validate=True)
        return bytes(SealedBox(key.to_curve25519_private_key()).decrypt(ciphertext))
    except (CryptoError, ValueError, TypeError) as error:
        raise UntrustedError("what was sent here cannot be opened with the key of this place") from error


class NodeKey:
    """This node's Ed25519 pair."""

    def __init__(self, signing_key: SigningKey) -> None:
        self._signing_key = signing_key
        self.verify_key_b64 = base64.b64encode(bytes(signing_key.verify_key)).decode()
        self.node_id = node_id_of(self.verify_key_b64)

    def __repr__(self) -> str:
        return f"NodeKey(node_id={self.node_id!r})"

    @classmethod
    def generate(cls) -> NodeKey:
        return cls(SigningKey.generate())

    @classmethod
    def load(cls, path: Path) -> NodeKey:
        """Raises FileNotFoundError when there is none, ConfigError when it is unusable."""
        return cls(read_signing_key(path))

    @classmethod
    def load_or_create(cls, path: Path) -> NodeKey:
        """The key at ``path``; a new one is on disk before it is returned. Safe against two creators at once."""
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary = path.with_name(f".{path.name}.new-{secrets.token_hex(4)}")
            write_signing_key(temporary, SigningKey.generate())
            try:
                os.link(temporary, path)  # unlike rename, it does not replace another creator's key
            except FileExistsError:
                pass
            finally:
                temporary.unlink()
            fsync_directory(path.parent)
        return cls.load(path)

    def sign(self, kind: str, payload: Payload) -> Envelope:
        return sign_envelope(self._signing_key, kind, payload, self.node_id)

    def unseal(self, sealed_b64: str) -> bytes:
        """Open what :func:`seal` made for this node. Raises UntrustedError when it was not for us."""
        try:
            return unseal(self._signing_key, sealed_b64)
        except UntrustedError as error:
            raise UntrustedError(f"what was sent to {self.node_id} cannot be opened with its key") from error


def write_signing_key(path: Path, key: SigningKey) -> None:
    write_atomic(path, base64.b64encode(bytes(key)) + b"\n")


def read_signing_key(path: Path) -> SigningKey:
    """Refuses a key that others can read: it may be theirs already."""
    mode = path.stat().st_mode
    if mode & 0o077:
        raise ConfigError(
            f"{path}: the private key has mode {mode & 0o777:o}, others can read it",
            hint=f"if nobody did, `chmod 600 {path}`; else remove it and enrol again",
        )
    try:
        return SigningKey(base64.b64decode(path.read_bytes().strip(), validate=True))
    except (CryptoError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path}: is not a private key of EdgeLink", hint="restore it from a backup, or remove it and enrol again"
        ) from error


def _signed_bytes(kind: str, body: str) -> bytes:
    return b"edgelink/1/" + kind.encode() + b"\0" + body.encode()


def _decode_key(verify_key_b64: str) -> bytes:
    try:
        key = base64.b64decode(verify_key_b64, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UntrustedError("a public key is not base64") from error
    if len(key) != _KEY_BYTES:
        raise UntrustedError(f"a public key has {len(key)} bytes instead of {_KEY_BYTES}")
    return key
