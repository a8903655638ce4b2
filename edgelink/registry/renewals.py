"""A node's new password at the broker: what the registry decides, and has on disk before anybody hears of it.

The node makes the password and has it on its own disk before it asks (:mod:`edgelink.roles.renewal`), so that at any
moment it has the one that counts.
"""

from __future__ import annotations

import re
from datetime import timedelta

from edgelink.errors import ConfigError
from edgelink.log import hide
from edgelink.registry.authority_keys import AuthorityKeys
from edgelink.registry.fault_points import reached
from edgelink.registry.passwords import broker_password_hash
from edgelink.registry.requests import NodeRequest, Renew
from edgelink.registry.store import RegistryStore

_PASSWORD = re.compile(r"[A-Za-z0-9_-]{32,64}")
_MOMENT = timedelta(microseconds=1)


def renew_password(store: RegistryStore, keys: AuthorityKeys, request: NodeRequest, renew: Renew) -> str | None:
    """Have the password that ``request`` of a node brings count from now on; None: it does already.

    A request to enrol that was made before does not count any more: it would bring an old password back.

    Raises:
        ConfigError: it is no password. UntrustedError: it was not sealed to this registry.
        RegistryError: the database fails.
    """
    password = keys.unseal(renew.sealed_password).decode("ascii", "replace")
    if not _PASSWORD.fullmatch(password):
        raise ConfigError(
            "a password for the broker has 32 to 64 letters, digits, `-` and `_`", hint="compare `edgelink version`"
        )
    hide(password)
    node_id = request.node_id
    with store.transaction():
        recorded = store.node_password(node_id)
        if recorded is not None and recorded.matches(password):
            return None
        store.set_node_password(node_id, broker_password_hash(password), store.broker_username(node_id))
        newest = store.asked_at(node_id)
        store.note_asked(node_id, request.made_at if newest is None else max(request.made_at, newest + _MOMENT))
        reached("renew.written")
    reached("renew.committed")
    return password
