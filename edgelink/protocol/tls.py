"""TLS to the relay's broker: the network's own CA, pinned by hash, and nothing else is trusted.

Time is not checked: boards without a battery boot in 1970, and a certificate that "expired" there would keep a robot
out for ever. The name that is checked is the network's, whatever address or DNS name was dialled.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
import ssl
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509 import Certificate
from OpenSSL import SSL

from edgelink.errors import NoRelayError, RegistryError, RegistryUnavailableError, UntrustedError
from edgelink.protocol.dial import dial
from edgelink.timeouts import timeout

_NO_CHECK_TIME = 0x200000  # X509_V_FLAG_NO_CHECK_TIME; Python's ssl.VerifyFlags has no name for it
_READ_BYTES = 16384
_PROXY_HINT = "a proxy or captive portal may sit between, or the token is of another network"


async def fetch_pinned_ca(host: str, port: int, ca_sha256: bytes, timeout_s: float) -> str:
    """The PEM of the one certificate in the presented chain whose DER has this hash.

    Only a handshake takes place: nothing is sent over the connection, which is closed afterwards. The chain itself is
    checked by :func:`client_context` when the real connection is made.

    Raises:
        UntrustedError: the chain does not hold that certificate.
        RegistryUnavailableError: nobody answers, or not with TLS.
    """
    where = f"{host}:{port}"
    try:
        async with timeout(timeout_s):
            return await pinned_ca(await dial(host, port), where, ca_sha256)
    except TimeoutError as error:
        raise RegistryUnavailableError(
            f"the relay's broker at {where} did not answer within {timeout_s:g} s",
            hint="check that the relay runs and that its firewall lets this port in",
        ) from error
    except OSError as error:
        raise RegistryUnavailableError(
            f"the relay's broker at {where} cannot be reached: {reason_of(error)}",
            hint="check the address, that the relay runs, and that its firewall lets this port in",
        ) from error


async def pinned_ca(connection: socket.socket, where: str, ca_sha256: bytes) -> str:
    """The same over a connection that is there, which is closed afterwards. Raises OSError as well."""
    try:
        chain = await _presented_chain(connection)
    except SSL.Error as error:
        raise NoRelayError(
            f"what answers at {where} does not speak TLS as the relay's broker does", hint=_PROXY_HINT
        ) from error
    for certificate in chain:
        if hmac.compare_digest(certificate.fingerprint(hashes.SHA256()), ca_sha256):
            return certificate.public_bytes(serialization.Encoding.PEM).decode()
    raise UntrustedError(f"{where} is not the relay that the token was made for", hint=_PROXY_HINT)


def reason_of(error: OSError) -> str:
    """Why a connection failed, in the system's words: asyncio puts the address in their place."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return error.strerror or str(error)  # gaierror has numbers of its own


async def _presented_chain(connection: socket.socket) -> list[Certificate]:
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    # Nothing is trusted here: the caller compares hashes, and no byte of ours goes over this connection.
    context.set_verify(SSL.VERIFY_NONE)
    tls = SSL.Connection(context, None)
    tls.set_connect_state()
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        while not _handshake_step(tls):
            await _flush(tls, writer)
            data = await reader.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError(None, "closed during the TLS handshake")
            tls.bio_write(data)
        return tls.get_peer_cert_chain(as_cryptography=True) or []
    finally:
        writer.transport.abort()


def _handshake_step(tls: SSL.Connection) -> bool:
    try:
        tls.do_handshake()
    except SSL.WantReadError:
        return False
    return True


async def _flush(tls: SSL.Connection, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            writer.write(tls.bio_read(_READ_BYTES))
    except SSL.WantReadError:
        await writer.drain()


class _PinnedContext(ssl.SSLContext):
    """Checks the network's name, whatever name the caller passes."""

    edgelink_server_name: str

    def wrap_socket(self, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        kwargs["server_hostname"] = self.edgelink_server_name
        return super().wrap_socket(*args, **kwargs)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        kwargs["server_hostname"] = self.edgelink_server_name
        return super().wrap_bio(*args, **kwargs)


def client_context(ca_pem: str, network_id: str) -> ssl.SSLContext:
    """A context that trusts this CA only and wants the broker of this network."""
    context = _PinnedContext(ssl.PROTOCOL_TLS_CLIENT)  # chain and name are checked
    context.edgelink_server_name = server_name(network_id)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= _NO_CHECK_TIME
    context.load_verify_locations(cadata=ca_pem)
    return context


def explain_tls_error(error: ssl.SSLError, where: str) -> RegistryError:
    """What a failed handshake through :func:`client_context` means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedError(f"{where} is not this network's relay: {error.verify_message}", hint=_PROXY_HINT)
    if isinstance(error, ssl.SSLEOFError):  # a broker that ends does so as well
        return RegistryUnavailableError(f"no TLS connection to {where}: closed in the handshake", hint=_PROXY_HINT)
    return NoRelayError(f"no TLS connection to {where}: {error.reason or error}", hint=_PROXY_HINT)


def server_name(network_id: str) -> str:
    """The name in the broker's certificate, whatever address it is reached by."""
    return f"{network_id}.edgelink"
