"""The page of topics is what the code says, and the table of topics is all that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reference_pages.mqtt import models, render

from edgelink.protocol.payloads import Payload
from edgelink.protocol.topic_table import LEASE, STATUS, TOPICS
from edgelink.protocol.topics import ANY, Topics, topic_of
from edgelink.protocol.transport import Login, Message
from edgelink.relay.dynamic_security import CONTROL_TOPIC
from edgelink.testing.memory_transport import MemoryBroker, MemorySession

_ROOT = Path(__file__).parent.parent
_NETWORK = Topics("N")


def test_every_key_on_the_page_has_a_meaning() -> None:
    """A field that comes without a description is found here."""
    assert [line for line in render().splitlines() if re.search(r"\|\s*\|$", line)] == []


def test_every_name_of_a_topic_is_one_of_the_table() -> None:
    """Each maker of a name makes that of one topic, no two of the same, and none is left over."""
    token, node, page = "t" * 8, "n" * 26, 7
    names = [
        _NETWORK.directory,
        _NETWORK.network,
        _NETWORK.cluster,
        _NETWORK.roster(page),
        _NETWORK.report_request,
        _NETWORK.enrol_request(token, node),
        _NETWORK.enrol_reply(token, node),
        _NETWORK.status(node),
        _NETWORK.lease(node),
        _NETWORK.access(node),
        _NETWORK.secrets(node),
        _NETWORK.node_request(node),
        _NETWORK.node_reply(node),
        _NETWORK.easytier(node),
        _NETWORK.silence(node),
        _NETWORK.report(node),
    ]
    found = [topic_of(name) for name in names]
    assert None not in found
    assert {topic.path for topic in found if topic} == {topic.path for topic in TOPICS}
    page_text = render().replace("<token id>", token).replace("<node id>", node).replace("<page>", str(page))
    assert [name for name in names if f"| `{name.removeprefix('edgelink/1/N/')}` |" not in page_text] == []


@pytest.mark.parametrize("name", [CONTROL_TOPIC, "edgelink/1/N/other", "edgelink/2/N/directory", "edgelink/1/N", "x"])
def test_other_topics_are_none_of_ours(name: str) -> None:
    assert topic_of(name) is None


def test_ids_are_read_back_of_this_network_alone() -> None:
    """What is filled in comes out again; the name of another topic or network has none."""
    assert _NETWORK.ids(LEASE, _NETWORK.lease("abc")) == ("abc",)
    assert _NETWORK.ids(STATUS, _NETWORK.lease("abc")) is None
    assert _NETWORK.ids(LEASE, Topics("M").lease("abc")) is None
    assert _NETWORK.name(LEASE) == _NETWORK.lease(ANY)


def test_every_payload_that_there_is_is_told_of() -> None:
    """Those of :mod:`edgelink.protocol`; what goes over other ways than MQTT is not on this page."""
    ours = {kind for kind in Payload.__subclasses__() if kind.__module__.startswith("edgelink.protocol.")}
    assert len(ours) > 15
    assert ours - {*models()} == set()


async def test_what_is_published_otherwise_than_the_table_says_fails_a_test() -> None:
    """The broker in memory, which the tests of nodes and registry speak to, looks at each message."""
    session = MemorySession(MemoryBroker(), Login("u", "p", "c"), None)
    await session.publish(_NETWORK.lease("abc"), b"{}", retain=True)
    with pytest.raises(AssertionError, match="table of topics"):
        await session.publish(_NETWORK.lease("abc"), b"{}")
    with pytest.raises(AssertionError, match="table of topics"):
        await session.publish(_NETWORK.report("abc"), b"{}", retain=True)
    await session.publish(CONTROL_TOPIC, b'{"commands": []}')


def test_a_will_is_kept_like_the_status_that_it_is() -> None:
    """The will of a session is published by the broker, so that the session's own check does not see it."""
    will = Message(_NETWORK.status("abc"), b"{}", retain=True)
    with pytest.raises(AssertionError, match="table of topics"):
        MemorySession(MemoryBroker(), Login("u", "p", "c"), Message(will.topic, will.payload, retain=False))
    MemorySession(MemoryBroker(), Login("u", "p", "c"), will)
