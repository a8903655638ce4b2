"""The keys of a network, made once on the relay: registry signing key, network CA, and the broker's TLS certificate.

The network's id is the fingerprint of the registry's key. Losing these files means enrolling every node anew, so they
are never made again in place of ones that are missing in part: that is an error for a person.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from nacl.signing import SigningKey

from edgelink.clock import Clock
from edgelink.errors import RegistryError
from edgelink.files import fsync_directory, write_atomic
from edgelink.protocol.keys import read_signing_key, sign_envelope, unseal, write_signing_key
from edgelink.protocol.payloads import Envelope, Payload
from edgelink.protocol.tls import server_name

_REGISTRY_KEY = "registry.key"
_CA_CERTIFICATE = "ca.pem"
_CA_KEY = "ca.key"
_TLS_CERTIFICATE = "tls.pem"
_TLS_KEY = "tls.key"
_FILES = (_REGISTRY_KEY, _CA_CERTIFICATE, _CA_KEY, _TLS_CERTIFICATE, _TLS_KEY)
_IN_USE = "in-use"

_VALIDITY = timedelta(days=20 * 365)
_BACKDATING = timedelta(days=1)


@dataclass(frozen=True)
class AuthorityKeys:
    """What only the relay holds. ``tls_certificate_path`` is the chain that the broker presents: leaf, then CA."""

    directory: Path
    network_id: str
    verify_key_b64: str
    ca_pem: str
    ca_sha256: bytes  # of the DER
    _signing_key: SigningKey = field(repr=False)

    @property
    def tls_certificate_path(self) -> Path:
        return self.directory / _TLS_CERTIFICATE

    @property
    def tls_key_path(self) -> Path:
        return self.directory / _TLS_KEY

    @property
    def server_name(self) -> str:
        return server_name(self.network_id)

    def sign(self, kind: str, payload: Payload) -> Envelope:
        return sign_envelope(self._signing_key, kind, payload, "registry")

    def unseal(self, sealed_b64: str) -> bytes:
        """Open what a node has sealed to the registry. Raises UntrustedError."""
        return unseal(self._signing_key, sealed_b64)

    def derive_password(self, seed: bytes) -> str:
        """A password (192 bits) that is the same for the same ``seed`` and that only the registry can make."""
        digest = hashlib.blake2b(seed, key=bytes(self._signing_key), person=b"edgelink broker", digest_size=24)
        return base64.urlsafe_b64encode(digest.digest()).decode()

    @property
    def is_in_use(self) -> bool:
        """Whether a registry database has been made for these keys: one that is gone then must not be made anew."""
        return (self.directory / _IN_USE).exists()

    def mark_in_use(self) -> None:
        if not self.is_in_use:
            write_atomic(self.directory / _IN_USE, "a registry database belongs to these keys\n")

    @classmethod
    def load_or_create(cls, directory: Path, clock: Clock) -> AuthorityKeys:
        """The keys in ``directory``; new ones appear there all at once, complete and on disk, or not at all."""
        if not directory.exists() or not any(directory.iterdir()):
            _create(directory, clock.now())
        return cls.load(directory)

    @classmethod
    def load(cls, directory: Path) -> AuthorityKeys:
        missing = [name for name in _FILES if not (directory / name).is_file()]
        if missing:
            raise RegistryError(
                f"{directory}: {', '.join(missing)} missing; without it this network's nodes do not know their relay",
                hint="restore the directory from a backup; to give up this network and all its leases, remove the "
                "whole state directory",
            )
        signing_key = read_signing_key(directory / _REGISTRY_KEY)
        ca_pem = (directory / _CA_CERTIFICATE).read_text()
        try:
            certificate = x509.load_pem_x509_certificate(ca_pem.encode())
        except ValueError as error:
            raise RegistryError(
                f"{directory / _CA_CERTIFICATE}: is not a certificate", hint="restore it from a backup"
            ) from error
        verify_key = bytes(signing_key.verify_key)
        return cls(
            directory=directory,
            network_id=_network_id(verify_key),
            verify_key_b64=base64.b64encode(verify_key).decode(),
            ca_pem=ca_pem,
            ca_sha256=certificate.fingerprint(hashes.SHA256()),
            _signing_key=signing_key,
        )


def _create(directory: Path, now: datetime) -> None:
    """Make the keys in a directory beside the final one and rename it: a crash leaves all or nothing."""
    directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for leftover in directory.parent.glob(f".{directory.name}.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)  # of a predecessor that was killed
    temporary = directory.with_name(f".{directory.name}.new-{secrets.token_hex(4)}")
    temporary.mkdir(mode=0o700)
    signing_key = SigningKey.generate()
    write_signing_key(temporary / _REGISTRY_KEY, signing_key)
    for name, data in issue_certificates(_network_id(bytes(signing_key.verify_key)), now).items():
        write_atomic(temporary / name, data)
    fsync_directory(temporary)
    try:
        os.rename(temporary, directory)  # noqa: PTH104 - Path.rename is the same; os says that it never merges
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(temporary)
        if not directory.exists():
            raise
    fsync_directory(directory.parent)


def _network_id(verify_key: bytes) -> str:
    return base64.b32encode(hashlib.sha256(b"network" + verify_key).digest()[:10]).decode().lower()


def issue_certificates(network_id: str, now: datetime) -> Mapping[str, bytes]:
    """A CA and one server certificate, by file name. EC P-256: every TLS library of the last decade has it."""
    ca_key, tls_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"EdgeLink network {network_id}")])
    ca_identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .add_extension(ca_identifier, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    name = server_name(network_id)
    leaf = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), ca_name, tls_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(tls_key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_identifier), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    ca_pem = ca.public_bytes(serialization.Encoding.PEM)
    return {
        _CA_CERTIFICATE: ca_pem,
        _CA_KEY: _private_pem(ca_key),
        _TLS_CERTIFICATE: leaf.public_bytes(serialization.Encoding.PEM) + ca_pem,
        _TLS_KEY: _private_pem(tls_key),
    }


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATING)
        .not_valid_after(now + _VALIDITY)
    )


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_ca,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
