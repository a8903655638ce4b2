"""Topic names and access rules: pure."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from edgelink.protocol.payloads import Role
from edgelink.protocol.topics import ANY, Topics
from edgelink.relay.dynamic_security import (
    ADMIN,
    NOTHING_ELSE,
    access_of,
    acl_file,
    create_commands,
    delete_commands,
    document,
    fingerprint,
)
from edgelink.relay.passwords import broker_password_hash
from edgelink.relay.records import BrokerUser

TOPICS = Topics("net")
OWN_WRITES = (TOPICS.status, TOPICS.report, TOPICS.easytier, TOPICS.silence, TOPICS.node_request)
OWN_READS = (TOPICS.lease, TOPICS.access, TOPICS.secrets, TOPICS.node_reply)


def user(kind: str = "node", role: Role = Role.EDGE, password: str = "secret of a user") -> BrokerUser:
    return BrokerUser(kind, "abc", role, broker_password_hash(password))  # type: ignore[arg-type]


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
    own = {topic("abc") for topic in OWN_WRITES}
    assert own <= set(access.writes) <= own | {TOPICS.cluster, TOPICS.report_request}
    assert {topic("abc") for topic in OWN_READS} <= set(access.reads)
    assert {TOPICS.directory, TOPICS.cluster} <= set(access.reads)
    assert {TOPICS.network, TOPICS.easytier(ANY), TOPICS.silence(ANY)} <= set(access.reads)


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
    head = replace(one, role=Role.HEAD)
    assert fingerprint(one, TOPICS) != fingerprint(head, TOPICS)


def test_document() -> None:
    """The plugin's file denies by default, holds no password, and a client has its own role or that of its kind."""
    text = document(broker_password_hash("admin's password"), [user(role=Role.HEAD), user("token")], TOPICS)
    content = json.loads(text)
    assert not any(content["defaultACLAccess"].values())
    assert set(content["defaultACLAccess"]) == {
        "publishClientSend",
        "publishClientReceive",
        "subscribe",
        "unsubscribe",
    }
    roles = {client["username"]: [role["rolename"] for role in client["roles"]] for client in content["clients"]}
    own = {name: [name, NOTHING_ELSE] for name in (ADMIN, "token-abc")}
    assert roles == own | {"abc": ["heads"]}
    defined = {role["rolename"]: role["acls"] for role in content["roles"]}
    assert defined.keys() == {*own, NOTHING_ELSE, "edges", "heads", "relays"}
    assert "password of" not in text
    assert "secret of" not in text
    for acls in (defined[name] for name in (NOTHING_ELSE, "edges", "heads", "relays")):
        refused = [acl for acl in acls if not acl["allow"]]
        assert {"subscribePattern"} <= {acl["acltype"] for acl in refused}
        assert all((acl["topic"], acl["priority"]) == ("#", -1) for acl in refused)


def test_a_node_costs_the_plugin_little() -> None:
    """What 1,000 nodes add to the file that the plugin writes at every command: below 480 bytes each."""
    plain = [replace(user(), subject=f"n{number}") for number in range(1000)]
    admin = broker_password_hash("admin's password")
    assert len(document(admin, plain, TOPICS)) - len(document(admin, [], TOPICS)) < 1000 * 480


def test_own_topics_follow_from_the_username() -> None:
    """The ACL file names each topic of a node's own once, by its username, and nothing else."""
    stated = {tuple(line.split()) for line in acl_file(TOPICS).splitlines()}
    writes = {("pattern", "write", topic) for topic in map(own_topic, OWN_WRITES)}
    assert stated == writes | {("pattern", "read", topic) for topic in map(own_topic, OWN_READS)}


def own_topic(named: Callable[[str], str]) -> str:
    return named("NAME").replace("NAME", "%u")


def test_commands_of_a_user() -> None:
    """A node is made and removed by one command each; a token, which has a role of its own, by two."""
    assert [command["command"] for command in create_commands(user(), "password", TOPICS)] == ["createClient"]
    assert [command["command"] for command in delete_commands("abc")] == ["deleteClient"]
    assert len(create_commands(user("token"), "secret", TOPICS)) == len(delete_commands("token-abc")) == 2
