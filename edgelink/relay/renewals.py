"""A node's new password at the broker: what the registry decides, and has on disk before anybody hears of it.

The node makes the password and has it on its own disk before it asks (:mod:`edgelink.member.renewal`), so that at any
moment it has the one that counts. The broker is told of each new one, and all its users are looked through for that:
one node does not get to have it done again and again.
"""

from __future__ import annotations

import re
from datetime import timedelta

from edgelink.clock import Clock
from edgelink.errors import ConfigError, RegistryError, RenewedJustNowError
from edgelink.fault_points import reached
from edgelink.protocol.requests import NodeRequest, Renew
from edgelink.rate import RateLimit
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.passwords import broker_password_hash
from edgelink.relay.store import RegistryStore

EVERY_S = 60.0  # a node has a new one at most
_PASSWORD = re.compile(r"[A-Za-z0-9_-]{32,64}")
_MOMENT = timedelta(microseconds=1)


class Renewals:
    """Of the passwords of ``store``'s nodes; nothing of what these are is logged."""

    def __init__(self, store: RegistryStore, keys: AuthorityKeys, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._limit = RateLimit(1 / EVERY_S, 1)

    def renew(self, request: NodeRequest, renew: Renew) -> str | None:
        """Have the password that ``request`` of a node brings count from now on; None: it does already.

        A request to enrol that was made before does not count any more: it would bring an old password back.

        Raises:
            ConfigError: it is no password. UntrustedError: it was not sealed to this registry.
            RenewedJustNowError: the node had a new one a moment ago.
            RegistryError: the node holds no lease any more, or the database fails.
        """
        password = self._keys.unseal(renew.sealed_password).decode("ascii", "replace")
        if not _PASSWORD.fullmatch(password):
            raise ConfigError(
                "a password for the broker has 32 to 64 letters, digits, `-` and `_`", hint="compare `edgelink version`"
            )
        node_id = request.node_id
        with self._store.transaction():
            if self._store.lease(node_id) is None:
                raise RegistryError(f"{node_id} holds no lease any more", hint="join again", reason="NodeUnknown")
            recorded = self._store.node_password(node_id)
            if recorded is not None and recorded.matches(password):
                return None
            if self._limit.wait_s(node_id, self._clock.monotonic_s()):
                raise RenewedJustNowError(
                    "the password was renewed a moment ago",
                    hint=f"a node gets a new one each {EVERY_S:.0f} s at most; its daemon asks again by itself",
                )
            self._store.set_node_password(node_id, broker_password_hash(password))
            newest = self._store.asked_at(node_id)
            made_at = request.made_at if newest is None else max(request.made_at, newest + _MOMENT)
            self._store.note_asked(node_id, made_at)
            reached("renew.written")
        self._limit.take(node_id, self._clock.monotonic_s())
        reached("renew.committed")
        return password
