"""Who may see the page: a link that works once, and the session that it is exchanged for.

A session is a signed date, so that it goes on after a restart of the daemon; the key is gone with the machine's next
boot, or when somebody asks for that. The key's file also has which sessions were ended before their date, so that a
copy of one opens nothing. What is kept of a link is a digest.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from edgelink.clock import Clock
from edgelink.files import private_directory, write_atomic
from edgelink.log import hide

LINK_LIVES_S = 300.0
SESSION_LIVES_S = 12 * 3600
_MOST_LINKS = 32
_MOST_ENDED = 1000
_KEY_BYTES = 32
_ENDED = struct.Struct(">Q8s")  # until when a session that was ended would have been valid, and its nonce
_SESSION = re.compile(r"(\d{1,12})\.([0-9a-f]{16})\.([0-9a-f]{64})")


class Logins:
    """Links that wait to be used, and the key that signs sessions."""

    def __init__(self, key_file: Path, clock: Clock) -> None:
        self._key_file = key_file
        self._clock = clock
        self._links: dict[str, float] = {}  # until when, on the monotonic clock, by digest
        self._key: bytes | None = None
        self._ended: dict[str, int] = {}  # by nonce: until when, in seconds since 1970

    def new_link(self) -> str:
        """A secret that :meth:`redeem` takes once, within five minutes. The oldest of too many is forgotten."""
        self._forget_old()
        while len(self._links) >= _MOST_LINKS:
            del self._links[next(iter(self._links))]
        secret = secrets.token_urlsafe(32)
        hide(secret)
        self._links[_digest(secret)] = self._clock.monotonic_s() + LINK_LIVES_S
        return secret

    def redeem(self, secret: str) -> str | None:
        """A session for the secret of a link; None for one that was used, is too old, or never was. Raises
        NotRecordedError when the key of sessions cannot be kept."""
        self._forget_old()
        if _digest(secret) not in self._links:
            return None
        until = f"{int(self._clock.now().timestamp()) + SESSION_LIVES_S}.{secrets.token_hex(8)}"
        session = f"{until}.{_signature(self._known_key() or self._new_key(), until)}"
        hide(session)
        del self._links[_digest(secret)]  # only now: without a key there would be neither
        return session

    def is_valid(self, session: str | None) -> bool:
        """Whether this is a session of ours that has not ended."""
        found = _SESSION.fullmatch(session or "")
        if found is None:
            return False
        if int(found[1]) < self._clock.now().timestamp():
            return False
        key = self._known_key()  # without one nobody was given a session
        if key is None or not hmac.compare_digest(_signature(key, f"{found[1]}.{found[2]}"), found[3]):
            return False
        return found[2] not in self._ended

    def end(self, session: str | None) -> None:
        """This session is valid no more, here and under the next daemon. Of too many that are to be remembered, all
        end. Raises NotRecordedError when that cannot be kept; for this daemon it has ended all the same."""
        if session is None or not self.is_valid(session):
            return
        now_s = self._clock.now().timestamp()
        until, nonce, _ = session.split(".")
        self._ended = {each: until_s for each, until_s in self._ended.items() if until_s >= now_s}
        self._ended[nonce] = int(until)
        if len(self._ended) > _MOST_ENDED:
            self._new_key()
        elif self._key is not None:
            self._record(self._key, self._ended)

    def end_all(self) -> None:
        """No session and no link is valid any more. Raises NotRecordedError."""
        self._links.clear()
        self._new_key()

    def _forget_old(self) -> None:
        now_s = self._clock.monotonic_s()
        self._links = {link: until_s for link, until_s in self._links.items() if until_s > now_s}

    def _known_key(self) -> bytes | None:
        if self._key is None:
            with suppress(OSError):
                found = self._key_file.read_bytes()
                key, ended = found[:_KEY_BYTES], found[_KEY_BYTES:]
                if len(key) == _KEY_BYTES and len(ended) % _ENDED.size == 0:
                    self._key = key
                    self._ended = {nonce.hex(): until for until, nonce in _ENDED.iter_unpack(ended)}
        return self._key

    def _new_key(self) -> bytes:
        key = secrets.token_bytes(_KEY_BYTES)
        self._record(key, {})
        self._key, self._ended = key, {}
        return key

    def _record(self, key: bytes, ended: Mapping[str, int]) -> None:
        private_directory(self._key_file.parent, mode=0o755)
        packed = (_ENDED.pack(until, bytes.fromhex(nonce)) for nonce, until in ended.items())
        write_atomic(self._key_file, key + b"".join(packed))


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
