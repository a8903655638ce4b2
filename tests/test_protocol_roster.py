"""A network of more nodes than one message holds: the pages of its roster, published and followed."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from registry_world import World

from edgelink.errors import UntrustedError
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import MAX_PAYLOAD_BYTES, Directory, DirectoryEntry, Envelope, Role, RosterPage
from edgelink.protocol.roster_pages import MAX_WHOLE, Pages, completed, digest, pages_of, shortened
from edgelink.protocol.topics import Topics
from edgelink.protocol.transport import Message
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.publications import Publications
from edgelink.testing import FakeClock
from edgelink.testing.payloads import entry
from edgelink.testing.registry_client import LoneClient

CIDR = IPv4Network("10.16.0.0/16")
NETWORK = "abcdefghijklmnop"
KEYS = NodeKey.generate()


def numbered(number: int, role: Role = Role.EDGE) -> DirectoryEntry:
    node_id = "".join("abcdefghijklmnop"[(number >> shift) & 15] for shift in range(0, 104, 4))
    rank = None if role is Role.RELAY else number
    address = IPv4Address(int(CIDR.network_address) + number)
    return entry(f"edge-{number}", address, rank, node_id=node_id, role=role, verify_key=KEYS.verify_key_b64)


def directory(numbers: list[int]) -> Directory:
    entries = (numbered(1, Role.RELAY), numbered(2, Role.HEAD), *(numbered(number) for number in numbers))
    return Directory(network_id=NETWORK, epoch=len(entries), entries=entries)


def signed(pages: dict[int, RosterPage]) -> dict[int, Envelope]:
    return {number: KEYS.sign(Kind.ROSTER, page) for number, page in pages.items()}


def test_a_small_network_has_no_pages() -> None:
    """Up to 256 nodes the directory is what it always was, so that an older node understands it."""
    whole = directory(list(range(3, MAX_WHOLE + 1)))
    assert len(whole.entries) == MAX_WHOLE
    assert pages_of(whole.entries, NETWORK, CIDR) == {}
    assert shortened(whole, {}) == whole == completed(whole, Pages())


@settings(max_examples=20 if os.environ.get("EDGELINK_SOAK") else 8, deadline=None)
@given(st.integers(300, 800), st.randoms(use_true_random=False))
def test_pages_hold_all(count: int, random: Random) -> None:
    """What was taken apart is put together again, each page fits into a message, relays and head stay in front."""
    whole = directory(sorted(random.sample(range(3, 65534), count)))
    pages = pages_of(whole.entries, NETWORK, CIDR)
    envelopes = signed(pages)
    short = shortened(whole, envelopes)
    assert [e.hostname for e in short.entries] == ["edge-1", "edge-2"]
    assert max(len(envelope.model_dump_json()) for envelope in envelopes.values()) < MAX_PAYLOAD_BYTES / 2
    assert len(short.model_dump_json()) < MAX_PAYLOAD_BYTES / 2
    known = Pages()
    for number, page in pages.items():
        assert completed(short, known) is None
        known.put(digest(envelopes[number]), page, short)
    again = completed(short, known)
    assert again is not None
    assert sorted(again.entries, key=lambda e: e.overlay_ip) == list(whole.entries)


def test_a_change_is_one_page() -> None:
    """A new node changes the page of its address and no other."""
    numbers = list(range(3, 1500))
    before = signed(pages_of(directory(numbers).entries, NETWORK, CIDR))
    after = signed(pages_of(directory([*numbers, 1500]).entries, NETWORK, CIDR))
    assert [number for number in after if before.get(number) != after[number]] == [1500 >> 8]


@dataclass
class Sent:
    """A session that keeps what is published."""

    messages: list[Message] = field(default_factory=list)

    async def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        self.messages.append(Message(topic, payload, retain))


@pytest.fixture(scope="module")
def large_on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large")
    world = World(directory, cidr=CIDR)
    world.authority.relay_membership(NodeKey.generate(), "relay")
    token = world.token(uses=300)
    for number in range(300):
        world.enrol(NodeKey.generate(), token, f"edge-{number}")
    world.store.close()
    return directory


@pytest.fixture
def large(large_on_disk: Path, tmp_path: Path) -> World:
    """A network of 300 edges and the relay, a copy for each test."""
    return World(Path(shutil.copytree(large_on_disk, tmp_path / "large")), cidr=CIDR)


def client(world: World, role: Role, cache: Path) -> tuple[LoneClient, NodeKey]:
    key = NodeKey.generate()
    token = world.token(role)
    membership = world.membership(key, token, world.enrol(key, token, f"{role.value}-x", role=role))
    return LoneClient(membership, key, world.clock, cache=cache), key


async def test_all_nodes_are_known_whatever_comes_first(large: World, tmp_path: Path) -> None:
    """The head knows every node once directory and pages are there, in any order, also after a restart alone."""
    found, key = client(large, Role.HEAD, tmp_path)
    topics = Topics(large.keys.network_id)
    directory_text, pages = large.authority.directory_and_roster()
    assert len(pages) == 2
    found._take(Message(topics.roster(0), pages[0].model_dump_json().encode()))
    found._take(Message(topics.directory, directory_text.model_dump_json().encode()))
    assert found.directory is None  # half of it
    found._take(Message(topics.roster(1), pages[1].model_dump_json().encode()))
    assert found.directory is not None
    assert len(found.directory.entries) == 302
    again = LoneClient(found._membership, key, large.clock, cache=tmp_path)
    assert again.directory == found.directory


async def test_an_edge_goes_by_relays_and_head(large: World, tmp_path: Path) -> None:
    """It waits for no page, and gets by with those it needs."""
    found, _ = client(large, Role.EDGE, tmp_path)
    envelope = large.authority.directory()
    found._take(Message(Topics(large.keys.network_id).directory, envelope.model_dump_json().encode()))
    assert found.directory is not None
    assert found.directory.relay_entries
    assert len(found.directory.entries) <= 2


async def test_forged_and_old_pages_do_not_count(large: World, tmp_path: Path) -> None:
    """A page that another key signed is refused; one from before is not what the directory names."""
    found, key = client(large, Role.HEAD, tmp_path)
    topics = Topics(large.keys.network_id)
    old = large.authority.directory_and_roster()[1]
    large.join("edge-new")
    new_directory, new = large.authority.directory_and_roster()
    page = open_envelope(new[0], Kind.ROSTER, RosterPage, large.keys.verify_key_b64)
    with pytest.raises(UntrustedError):
        found._take(Message(topics.roster(0), key.sign(Kind.ROSTER, page).model_dump_json().encode()))
    stranger = AuthorityKeys.load_or_create(tmp_path / "another", FakeClock())
    with pytest.raises(UntrustedError):
        found._take(Message(topics.roster(0), stranger.sign(Kind.ROSTER, page).model_dump_json().encode()))
    for envelope in new.values():
        found._take(Message(topics.roster(0), envelope.model_dump_json().encode()))
    found._take(Message(topics.directory, new_directory.model_dump_json().encode()))
    assert found.directory is not None
    everyone = found.directory
    changed = next(number for number in new if new[number] != old.get(number))
    found._take(Message(topics.roster(changed), old[changed].model_dump_json().encode()))
    assert found.directory == everyone
    large.join("edge-newer")  # on the other page
    newer_directory, newer = large.authority.directory_and_roster()
    assert newer[changed] != new[changed] or newer.keys() == new.keys()
    for envelope in (envelope for number, envelope in newer.items() if envelope != new.get(number)):
        found._take(Message(topics.roster(0), envelope.model_dump_json().encode()))
    found._take(Message(topics.directory, newer_directory.model_dump_json().encode()))
    assert found.directory.entry(large.store.find_lease("edge-newer").node_id) is not None  # type: ignore[union-attr]


async def test_a_burst_is_published_once_a_second(large: World) -> None:
    """Of changes within a second the first goes out at once, the others together."""
    clock = FakeClock()
    sent = Sent()
    publications = Publications(large.authority, Topics(large.keys.network_id), clock)
    await publications.publish_soon(sent)  # type: ignore[arg-type]
    first = len(sent.messages)
    for number in range(5):
        large.join(f"edge-burst-{number}")
        await publications.publish_soon(sent)  # type: ignore[arg-type]
    assert len(sent.messages) == first
    await clock.advance(1.0)
    await publications.publish_soon(sent)  # type: ignore[arg-type]
    topics = [message.topic.rsplit("/", 1)[-1] for message in sent.messages[first:]]
    assert topics.count("directory") == 1
    assert topics.count("lease") == 5
