"""Who may do what on the broker, in the terms of Mosquitto's dynamic security plugin; pure.

Everything is denied but what a role names. A token's user sees its own enrolment topics, a node's user writes its own
status and report and reads its own lease, the directory, the cluster spec and requests for reports; the head also
writes the cluster spec and such requests, and reads all reports; head and relay read all statuses. The registry's
admin serves enrolments and manages the users. Passwords appear as PBKDF2 hashes only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from edgelink.registry.passwords import BrokerPassword
from edgelink.registry.payloads import Role
from edgelink.registry.records import BrokerUser
from edgelink.registry.topics import ANY, Topics

ADMIN = "registry"
CONTROL_TOPIC = "$CONTROL/dynamic-security/v1"
RESPONSE_TOPIC = "$CONTROL/dynamic-security/v1/response"

# What is not named by a role is refused, in all four directions.
_DENY_ALL = {"publishClientSend": False, "publishClientReceive": False, "subscribe": False, "unsubscribe": False}


@dataclass(frozen=True)
class Access:
    """The topics (or filters) a user may publish to, and may subscribe to and receive from."""

    writes: tuple[str, ...]
    reads: tuple[str, ...]

    def acls(self) -> list[dict[str, Any]]:
        rules = [("publishClientSend", topic) for topic in self.writes]
        for topic in self.reads:
            rules += [("subscribePattern", topic), ("publishClientReceive", topic)]
        return [{"acltype": kind, "topic": topic, "priority": 0, "allow": True} for kind, topic in rules]


def access_of(user: BrokerUser, topics: Topics) -> Access:
    if user.kind == "token":
        return Access(writes=(topics.enrol_request(user.subject, ANY),), reads=(topics.enrol_reply(user.subject, ANY),))
    writes = [topics.status(user.subject), topics.report(user.subject), topics.answer(user.subject)]
    reads = [topics.lease(user.subject), topics.directory, topics.cluster, topics.report_request]
    reads += [topics.network, topics.secrets(user.subject)]
    if user.role is Role.HEAD:
        writes += [topics.cluster, topics.report_request]
        reads.append(topics.report(ANY))
    if user.role in (Role.HEAD, Role.RELAY):
        reads.append(topics.status(ANY))
    return Access(tuple(writes), tuple(reads))


def admin_access(topics: Topics) -> Access:
    return Access(
        writes=(
            CONTROL_TOPIC,
            topics.enrol_reply(ANY, ANY),
            topics.lease(ANY),
            topics.status(ANY),
            topics.directory,
            topics.report(ANY),
            topics.network,
            topics.secrets(ANY),
            topics.answer(ANY),
        ),
        reads=(
            RESPONSE_TOPIC,
            topics.enrol_request(ANY, ANY),
            topics.status(ANY),
            topics.answer(ANY),
            topics.report_request,
        ),
    )


def fingerprint(user: BrokerUser, topics: Topics) -> str:
    """Changes whenever the user's password or rights do; kept on the broker as the user's description, so that a
    registry that finds a running broker can tell whether it knows what the store says."""
    stated = [user.password.salt, user.password.hash, user.password.iterations, access_of(user, topics).acls()]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:32]


def document(admin_password: BrokerPassword, users: Iterable[BrokerUser], topics: Topics) -> str:
    """The plugin's configuration file."""
    users = list(users)
    clients = [_client(ADMIN, admin_password, "")]
    clients += [_client(user.username, user.password, fingerprint(user, topics)) for user in users]
    roles = [_role(ADMIN, admin_access(topics))]
    roles += [_role(user.username, access_of(user, topics)) for user in users]
    return json.dumps({"defaultACLAccess": _DENY_ALL, "clients": clients, "groups": [], "roles": roles}, indent=1)


def create_commands(user: BrokerUser, password: str, topics: Topics) -> list[dict[str, Any]]:
    """Make ``user``, whether or not it was there before."""
    return [
        *delete_commands(user.username),
        {"command": "createRole", **_role(user.username, access_of(user, topics))},
        {
            "command": "createClient",
            "username": user.username,
            "password": password,
            "textdescription": fingerprint(user, topics),
            "roles": [{"rolename": user.username}],
        },
    ]


def delete_commands(username: str) -> list[dict[str, Any]]:
    """Remove a user and its role; its connections are closed at once."""
    return [{"command": "deleteClient", "username": username}, {"command": "deleteRole", "rolename": username}]


def _client(username: str, password: BrokerPassword, description: str) -> dict[str, Any]:
    return {
        "username": username,
        "textdescription": description,
        "roles": [{"rolename": username}],
        "password": password.hash,
        "salt": password.salt,
        "iterations": password.iterations,
    }


def _role(name: str, access: Access) -> dict[str, Any]:
    return {"rolename": name, "acls": access.acls()}
