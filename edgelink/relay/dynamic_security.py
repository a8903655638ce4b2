"""Who may do what on the broker, in the terms of Mosquitto's dynamic security plugin and its ACL file; pure.

Everything is denied but what the table of topics (:mod:`edgelink.protocol.topic_table`) names. The registry's admin
also manages the users. Passwords appear as PBKDF2 hashes only.

The plugin writes its whole file anew at each command, so that a user costs time in proportion to all that is in it
(ADR 0021). So what is the same for all nodes of a role stands there once, and what is a node's own not at all: the
ACL file names it by patterns of the username, which is the node_id. What the plugin names neither way the broker looks
up there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from edgelink.protocol.payloads import Role
from edgelink.protocol.topic_table import TOPICS, Party
from edgelink.protocol.topics import ANY, Topics
from edgelink.relay.passwords import BrokerPassword
from edgelink.relay.records import BrokerUser

ADMIN = "registry"
CONTROL_TOPIC = "$CONTROL/dynamic-security/v1"
RESPONSE_TOPIC = "$CONTROL/dynamic-security/v1/response"
NOTHING_ELSE = "nothing-else"  # the role of whom the ACL file has no word for

# What is not named by a role is refused, in all four directions, or left to the ACL file.
_DENY_ALL = {"publishClientSend": False, "publishClientReceive": False, "subscribe": False, "unsubscribe": False}
_PARTIES = {
    Role.RELAY: (Party.NODES, Party.OVERSEERS),
    Role.HEAD: (Party.NODES, Party.HEAD, Party.OVERSEERS),
    Role.EDGE: (Party.NODES,),
}
_LAST = -1  # of priorities: what is denied here is what no other rule allows


@dataclass(frozen=True)
class Access:
    """The topics (or filters) a user may publish to, and may subscribe to and receive from.

    ``follows`` may be subscribed to as well; what is received there the ACL file decides.
    """

    writes: tuple[str, ...]
    reads: tuple[str, ...]
    follows: tuple[str, ...] = ()

    def acls(self) -> list[dict[str, Any]]:
        rules = [("publishClientSend", topic) for topic in self.writes]
        for topic in self.reads:
            rules += [("subscribePattern", topic), ("publishClientReceive", topic)]
        rules += [("subscribePattern", topic) for topic in self.follows]
        return [_acl(kind, topic) for kind, topic in rules]


def access_of(user: BrokerUser, topics: Topics) -> Access:
    """All that a user may do, wherever that is written down."""
    if user.kind == "token":
        return _access(Party.TOKEN_HOLDER, topics, user.subject)
    own, shared = _access(Party.NODE, topics, user.subject), _shared_access(user.role, topics)
    return Access(own.writes + shared.writes, own.reads + shared.reads)


def _access(party: Party, topics: Topics, *ids: str) -> Access:
    """What the table gives to ``party``, on the topics of these ids."""
    return Access(
        writes=tuple(topics.name(topic, *ids) for topic in TOPICS if party in topic.writers),
        reads=tuple(topics.name(topic, *ids) for topic in TOPICS if party in topic.readers),
    )


def _shared_access(role: Role, topics: Topics) -> Access:
    """Of all nodes of a role."""
    found = [_access(party, topics) for party in _PARTIES[role]]
    return Access(
        writes=tuple(topic for access in found for topic in access.writes),
        reads=tuple(topic for access in found for topic in access.reads),
        follows=_access(Party.NODE, topics).reads,
    )


def admin_access(topics: Topics) -> Access:
    named = _access(Party.REGISTRY, topics)
    others = tuple(topics.name(topic) for topic in TOPICS if topic.of_registry)
    return Access(writes=(CONTROL_TOPIC, *named.writes, *others), reads=(RESPONSE_TOPIC, *named.reads))


def shared_roles(topics: Topics) -> list[dict[str, Any]]:
    """The roles that are there from the broker's start; who else makes one makes it for one user."""
    refused = [_acl("subscribePattern", "#", priority=_LAST, allow=False)]  # an ACL file grants every subscription
    roles = [{"rolename": _shared_role(role), "acls": _shared_access(role, topics).acls() + refused} for role in Role]
    nothing = [_acl(kind, "#", priority=_LAST, allow=False) for kind in ("publishClientSend", "publishClientReceive")]
    return [*roles, _role(ADMIN, admin_access(topics)), {"rolename": NOTHING_ELSE, "acls": refused + nothing}]


def acl_file(topics: Topics) -> str:
    """What each node's user may do below its own name: ``%u`` is the username."""
    own = _access(Party.NODE, topics)
    rules = [("write", topic) for topic in own.writes] + [("read", topic) for topic in own.reads]
    return "".join(f"pattern {what} {topic.replace(ANY, '%u')}\n" for what, topic in rules)


def fingerprint(user: BrokerUser, topics: Topics) -> str:
    """Changes whenever the user's password or rights do; kept on the broker as the user's description, so that a
    registry that finds a running broker can tell whether it knows what the store says."""
    rights: Any = user.role.value if user.kind == "node" else access_of(user, topics).acls()
    stated = [user.password.salt, user.password.hash, user.password.iterations, rights]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:32]


def document(admin_password: BrokerPassword, users: Iterable[BrokerUser], topics: Topics) -> str:
    """The plugin's configuration file."""
    users = list(users)
    clients = [_client(ADMIN, admin_password, "", _roles_of(ADMIN))]
    clients += [_client(u.username, u.password, fingerprint(u, topics), _user_roles(u)) for u in users]
    roles = shared_roles(topics)
    roles += [_role(user.username, access_of(user, topics)) for user in users if user.kind == "token"]
    return json.dumps({"defaultACLAccess": _DENY_ALL, "clients": clients, "groups": [], "roles": roles}, indent=1)


def create_commands(user: BrokerUser, password: str, topics: Topics) -> list[dict[str, Any]]:
    """Make ``user``, who is not there."""
    role = {"command": "createRole", **_role(user.username, access_of(user, topics))}
    return [
        *([role] if user.kind == "token" else []),
        {
            "command": "createClient",
            "username": user.username,
            "password": password,
            "textdescription": fingerprint(user, topics),
            "roles": _user_roles(user),
        },
    ]


def delete_commands(username: str) -> list[dict[str, Any]]:
    """Remove a user, and its role if it has one of its own; its connections are closed at once."""
    own_role = [{"command": "deleteRole", "rolename": username}] if "-" in username else []  # a token's
    return [{"command": "deleteClient", "username": username}, *own_role]


def _shared_role(role: Role) -> str:
    return f"{role.value}s"


def _user_roles(user: BrokerUser) -> list[dict[str, Any]]:
    return [{"rolename": _shared_role(user.role)}] if user.kind == "node" else _roles_of(user.username)


def _roles_of(username: str) -> list[dict[str, Any]]:
    # Both stated: the plugin takes a role without a priority for one of -1.
    return [{"rolename": username, "priority": 1}, {"rolename": NOTHING_ELSE, "priority": 0}]


def _client(username: str, password: BrokerPassword, description: str, roles: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "username": username,
        "textdescription": description,
        "roles": roles,
        "password": password.hash,
        "salt": password.salt,
        "iterations": password.iterations,
    }


def _role(name: str, access: Access) -> dict[str, Any]:
    return {"rolename": name, "acls": access.acls()}


def _acl(kind: str, topic: str, *, priority: int = 0, allow: bool = True) -> dict[str, Any]:
    return {"acltype": kind, "topic": topic, "priority": priority, "allow": allow}
