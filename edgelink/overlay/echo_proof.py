"""Prove by an echo who answers: packets' extensions, the responder's keys and the asker's sessions.

The responder has an X25519 key for its one life, and a certificate of it by the node's own key. Asker and responder
derive a session key, and each answer carries a MAC under it of all that it says and of both addresses. So the asker
checks one signature a session, the responder keeps no state that it cannot make anew, and a recorded answer or
certificate helps nobody who lacks the responder's key. The question is padded: no answer is longer than its question.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum
from ipaddress import IPv4Address
from uuid import UUID

from nacl.bindings import (
    crypto_kx_client_session_keys,
    crypto_kx_keypair,
    crypto_kx_server_session_keys,
    crypto_sign,
    crypto_sign_open,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import CryptoError

from edgelink.overlay.echo_wire import Answer
from edgelink.rate import RateLimit

PROOF_VERSION = 1  # a responder of another one is replaced
# The first byte of an extension. A responder before there were proofs returns the question's as it came.
_ASKS, _ASKS_FOR_CERTIFICATE, _PROVES, _INTRODUCES, _BUSY = b"\x01", b"\x02", b"\x81", b"\x82", b"\x83"
_KEY_BYTES, _SIGNATURE_BYTES, _MAC_BYTES = 32, 64, 16
_QUESTION_BYTES = 1 + _KEY_BYTES
_INTRODUCTION_BYTES = 1 + _MAC_BYTES + _KEY_BYTES + _SIGNATURE_BYTES
# A new session costs 0.1 ms. Each address has a share of its own, so that a member that draws a key for each question
# keeps nobody else from a proof; without one, a node would take the head for somebody else after a minute. Beyond their
# shares all have these together. A node's daemon draws one key at its start.
_NEW_SESSIONS = 50.0, 50  # a second, and at once
_SHARE = 1.0, 5
_MOST_SESSIONS = 4096  # more than a forger displaces in the minute in which a metered node asks once


class Proof(Enum):
    """The verdict on one answer. ``UNPROVEN`` includes silence and a refusal."""

    PROVEN = "proven"
    UNPROVEN = "unproven"
    WRONG = "wrong"
    STALE = "stale"  # of another session than ours: the responder may have been restarted, and is to introduce itself


@dataclass(frozen=True)
class Identity:
    """The node that has to answer: its public key (base64), and its name in its network."""

    verify_key: str
    instance: UUID


def draw_keys() -> tuple[bytes, bytes]:
    """Return a responder's key, its public half and its private one."""
    return crypto_kx_keypair()


def certified(public: bytes, instance: UUID, address: IPv4Address) -> bytes:
    """Return the text that a node signs to introduce its responder. ``instance`` stands for network and node."""
    return b"edgelink/1/echo-key\0" + instance.bytes + address.packed + public


def sign(key_file: bytes, text: bytes) -> bytes:
    """Return the signature by the node whose key file has this content. Raises ValueError where it is no key."""
    _, private = crypto_sign_seed_keypair(b64decode(key_file.strip(), validate=True))
    return crypto_sign(text, private)[:_SIGNATURE_BYTES]


def _mac(session: bytes, kind: bytes, answer: Answer, asker: IPv4Address, responder: IPv4Address) -> bytes:
    said = replace(answer, question=replace(answer.question, extension=b"")).pack(0)
    text = kind + asker.packed + responder.packed + said
    return hashlib.blake2b(text, key=session, digest_size=_MAC_BYTES).digest()


class Prover:
    """The responder's side, for one life of it."""

    def __init__(self, keys: tuple[bytes, bytes], signature: bytes) -> None:
        """Prove by ``keys``, public and private. ``signature``: the node's, of what :func:`certified` returns."""
        self._public, self._private = keys
        self._signature = signature
        self._sessions: OrderedDict[bytes, bytes] = OrderedDict()  # by the asker's key, the least used first
        self._shares = RateLimit(*_SHARE, most_keys=_MOST_SESSIONS)
        self._common = RateLimit(*_NEW_SESSIONS)

    def extension(self, answer: Answer, asker: IPv4Address, responder: IPv4Address, at_s: float) -> bytes:
        """Return the extension that proves ``answer``, which still has the question's. At ``at_s``, monotonic."""
        asked = answer.question.extension
        kind, least = asked[:1], {_ASKS: _QUESTION_BYTES, _ASKS_FOR_CERTIFICATE: _INTRODUCTION_BYTES}
        if kind not in least or len(asked) < least[kind]:
            return asked
        session = self._session(asked[1:_QUESTION_BYTES], asker, at_s)
        if session is None:
            return _BUSY
        if kind == _ASKS:
            return _PROVES + _mac(session, _PROVES, answer, asker, responder)
        return _INTRODUCES + _mac(session, _INTRODUCES, answer, asker, responder) + self._public + self._signature

    def _session(self, asker_key: bytes, asker: IPv4Address, at_s: float) -> bytes | None:
        """Return the key of the session with this asker. None: too many new askers, or no usable key."""
        if asker_key in self._sessions:
            self._sessions.move_to_end(asker_key)
            return self._sessions[asker_key]
        if not self._shares.passes(asker, at_s) and not self._common.passes("all", at_s):
            return None
        try:
            _, session = crypto_kx_server_session_keys(self._public, self._private, asker_key)
        except CryptoError:
            return None
        self._sessions[asker_key] = session
        if len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return bytes(session)


class Asker:
    """The asker's side, for one life of a daemon."""

    def __init__(self) -> None:
        self._public, self._private = draw_keys()
        self._sessions: dict[tuple[Identity, IPv4Address], bytes] = {}

    def extension(self, identity: Identity, target: IPv4Address) -> bytes:
        """Return the extension of a question to ``target``, the shorter one within a session."""
        if (identity, target) in self._sessions:
            return _ASKS + self._public
        return (_ASKS_FOR_CERTIFICATE + self._public).ljust(_INTRODUCTION_BYTES, b"\0")

    def judge(self, answer: Answer, identity: Identity, asker: IPv4Address, target: IPv4Address) -> Proof:
        """Return whether ``identity`` gave this answer. After ``STALE`` the next question asks for the certificate."""
        said = answer.question.extension
        kind, mac = said[:1], said[1 : 1 + _MAC_BYTES]
        if kind not in (_PROVES, _INTRODUCES):
            return Proof.UNPROVEN
        session = self._sessions.get((identity, target))
        if kind == _INTRODUCES:
            session = self._introduced(said[1 + _MAC_BYTES :], identity, target)
        if session is None or not hmac.compare_digest(mac, _mac(session, kind, answer, asker, target)):
            self._sessions.pop((identity, target), None)
            return Proof.WRONG if kind == _INTRODUCES else Proof.STALE
        self._sessions[identity, target] = session
        return Proof.PROVEN

    def _introduced(self, certificate: bytes, identity: Identity, target: IPv4Address) -> bytes | None:
        public, signature = certificate[:_KEY_BYTES], certificate[_KEY_BYTES:]
        try:
            crypto_sign_open(signature + certified(public, identity.instance, target), b64decode(identity.verify_key))
            session, _ = crypto_kx_client_session_keys(self._public, self._private, public)
        except (CryptoError, ValueError, TypeError):
            return None
        return bytes(session)
