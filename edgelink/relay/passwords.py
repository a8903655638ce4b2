"""Broker passwords as Mosquitto's dynamic security plugin keeps them: salt and PBKDF2-SHA512 hash, never the text."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from dataclasses import dataclass

_SALT_BYTES = 12  # what Mosquitto 2.0 expects; it refuses other lengths
_HASH_BYTES = 64
# Mosquitto's own default. Our passwords are 192 random bits, which no number of guesses finds; the broker hashes in
# its only thread at each connect, so more iterations would only make it slow when a whole fleet comes back.
_ITERATIONS = 101


@dataclass(frozen=True)
class BrokerPassword:
    """``salt`` and ``hash`` in base64, as they stand in ``dynamic-security.json``."""

    salt: str
    hash: str
    iterations: int

    def matches(self, password: str) -> bool:
        digest = _digest(password, base64.b64decode(self.salt), self.iterations)
        return hmac.compare_digest(digest, base64.b64decode(self.hash))


def broker_password_hash(password: str) -> BrokerPassword:
    salt = os.urandom(_SALT_BYTES)
    digest = _digest(password, salt, _ITERATIONS)
    return BrokerPassword(base64.b64encode(salt).decode(), base64.b64encode(digest).decode(), _ITERATIONS)


def _digest(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations, _HASH_BYTES)
