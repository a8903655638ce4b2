"""Topic names and access rules: pure."""

from __future__ import annotations

import json

import pytest

from edgelink.registry.dynamic_security import ADMIN, access_of, document, fingerprint
from edgelink.registry.passwords import broker_password_hash
from edgelink.registry.payloads import Role
from edgelink.registry.records import BrokerUser
from edgelink.registry.topics import ANY, Topics

TOPICS = Topics("net")


def user(kind: str = "node", role: Role = Role.EDGE, password: str = "secret of a user") -> BrokerUser:
    return BrokerUser(f"{kind}-abc", kind, "abc", role, broker_password_hash(password))  # type: ignore[arg-type]


def test_topics_round_trip() -> None:
    """What is written into a topic is read out of it again, and nothing else is taken for it."""
    assert TOPICS.parse_enrol_request(TOPICS.enrol_request("tok", "node")) == ("tok", "node")
    assert TOPICS.parse_status(TOPICS.status("node")) == "node"
    for topic in (TOPICS.directory, TOPICS.lease("node"), TOPICS.enrol_reply("tok", "node"), "", "a/b"):
        assert TOPICS.parse_enrol_request(topic) is None
        assert TOPICS.parse_status(topic) is None


@pytest.mark.parametrize("level", ["", "a/b", "#", "a+", "a b", "../x", "a\0"])
def test_topic_levels_are_checked(level: str) -> None:
    """An id cannot reach into another level of the tree."""
    with pytest.raises(ValueError, match="level"):
        TOPICS.status(level)
    with pytest.raises(ValueError, match="level"):
        Topics(level)


@pytest.mark.parametrize(
    ("role", "writes_cluster", "reads_statuses"),
    [(Role.EDGE, False, False), (Role.HEAD, True, True), (Role.RELAY, False, True)],
)
def test_access_by_role(role: Role, writes_cluster: bool, reads_statuses: bool) -> None:
    """Every node writes its own status; only the head the cluster spec; head and relay read all statuses.

    The head alone asks for reports and reads them.
    """
    access = access_of(user(role=role), TOPICS)
    assert (TOPICS.cluster in access.writes) == writes_cluster
    assert (TOPICS.status(ANY) in access.reads) == reads_statuses
    assert TOPICS.status("abc") in access.writes
    assert (TOPICS.report_request in access.writes) == (TOPICS.report(ANY) in access.reads) == writes_cluster
    own = {TOPICS.status("abc"), TOPICS.report("abc"), TOPICS.answer("abc")}
    assert own <= set(access.writes) <= {*own, TOPICS.cluster, TOPICS.report_request}
    assert {TOPICS.network, TOPICS.secrets("abc")} <= set(access.reads)
    assert {TOPICS.lease("abc"), TOPICS.directory, TOPICS.cluster} <= set(access.reads)


def test_access_of_a_token() -> None:
    """A token's user enrols and does nothing else, whatever the token's role."""
    access = access_of(user("token", Role.HEAD), TOPICS)
    assert access.writes == (TOPICS.enrol_request("abc", ANY),)
    assert access.reads == (TOPICS.enrol_reply("abc", ANY),)


def test_fingerprint_tells_password_and_rights() -> None:
    """The fingerprint changes with the password and with the rights, and with nothing else."""
    one = user()
    assert fingerprint(one, TOPICS) == fingerprint(one, TOPICS)
    assert fingerprint(one, TOPICS) != fingerprint(user(), TOPICS)  # another salt
    head = BrokerUser(one.username, one.kind, one.subject, Role.HEAD, one.password)
    assert fingerprint(one, TOPICS) != fingerprint(head, TOPICS)


def test_document() -> None:
    """The plugin's file denies by default, holds no password, and each client has exactly its own role."""
    text = document(broker_password_hash("admin's password"), [user(), user("token")], TOPICS)
    content = json.loads(text)
    assert not any(content["defaultACLAccess"].values())
    assert set(content["defaultACLAccess"]) == {
        "publishClientSend",
        "publishClientReceive",
        "subscribe",
        "unsubscribe",
    }
    assert {client["username"] for client in content["clients"]} == {ADMIN, "node-abc", "token-abc"}
    for client in content["clients"]:
        assert client["roles"] == [{"rolename": client["username"]}]
    assert {role["rolename"] for role in content["roles"]} == {ADMIN, "node-abc", "token-abc"}
    assert "password of" not in text
    assert "secret of" not in text
