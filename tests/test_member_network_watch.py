"""A node whose disk is full keeps what it runs, hears on, and goes by the newest state as soon as that is on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from session_world import Network
from telling import refuses

from edgelink.errors import NotRecordedError, UntrustedError
from edgelink.files import Files
from edgelink.member.network_watch import NetworkWatch
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.transport import Message
from edgelink.testing import FakeClock


class Disk(Files):
    """Full or not."""

    is_full = False

    def require(self, path: Path, content: bytes | str) -> None:
        if self.is_full:
            raise NotRecordedError(f"{path}: cannot be written: No space left on device")
        super().require(path, content)


@dataclass
class Member:
    """A node that is nothing but what it holds."""

    key: NodeKey
    membership: Membership
    state: Path


@pytest.fixture
def network(tmp_path: Path) -> Network:
    made = Network(tmp_path)
    made.world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    return made


def join(network: Network, name: str) -> Member:
    state = network.world.directory / name
    state.mkdir()
    return Member(*network.member(name), state)


@pytest.fixture
def disk() -> Disk:
    return Disk()


def watch(member: Member, disk: Disk, clock: FakeClock | None = None) -> NetworkWatch:
    return NetworkWatch(member.membership, member.key, clock or FakeClock(), member.state, disk)


def told(network: Network, watch: NetworkWatch) -> None:
    """What the registry says now."""
    payload = network.world.authority.rotations.state().model_dump_json().encode()
    assert watch.take(Message(network.topics.network, payload))


def test_what_is_on_disk_is_read_without_writing(network: Network, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that starts on a full disk knows what it knew, and writes nothing for it."""
    member = join(network, "edge-1")
    first = watch(member, disk)
    told(network, first)

    def full(*_: object, **__: object) -> None:
        raise NotRecordedError("No space left on device")

    monkeypatch.setattr("edgelink.files.write_atomic", full)
    disk.is_full = True
    again = watch(member, disk)
    assert again.state == first.state
    assert again.state is not None


def test_a_newer_state_waits_for_room(network: Network, disk: Disk) -> None:
    """It is not gone by before it is on disk, an older one does not take its place, and none has to be said again."""
    member = join(network, "edge-1")
    heard = watch(member, disk)
    told(network, heard)
    before, old = heard.state, network.world.authority.rotations.state()
    disk.is_full = True
    network.world.authority.rotations.rotate()
    told(network, heard)
    assert heard.state == before
    assert not heard.settle()
    with refuses(UntrustedError, "0.0", "0.1", reason="Outdated"):
        heard.take(Message(network.topics.network, old.model_dump_json().encode()))
    disk.is_full = False
    assert heard.settle()
    assert heard.state is not None
    assert heard.state.rotation is not None
    assert watch(member, disk).state == heard.state


def test_the_hour_of_a_change_is_the_earliest_that_was_told(network: Network, disk: Disk) -> None:
    """A word that comes late, or is played again, says a later one: it moves nothing. The next daemon counts anew."""
    member, clock, rotations = join(network, "edge-1"), FakeClock(), network.world.authority.rotations
    heard = watch(member, disk, clock)
    rotations.rotate(60.0)
    early = Message(network.topics.network, rotations.state().model_dump_json().encode())
    heard.take(early)
    assert heard.told.hours == {1: 0.0, 2: 60.0}
    network.world.clock.block(30)
    clock.block(20)  # ten seconds of the first word's way
    told(network, heard)
    assert heard.told.hours == {1: 0.0, 2: 50.0}
    clock.block(5)
    heard.take(early)
    assert heard.told.hours == {1: 0.0, 2: 50.0}
    assert watch(member, disk, clock).told.hours == {1: 25.0, 2: 85.0}
    network.world.clock.block(30)
    assert rotations.advance(is_held=True)
    told(network, heard)
    assert heard.told.hours == {2: 25.0}


def test_secrets_that_were_given_before_are_refused(network: Network, disk: Disk) -> None:
    """An older secret, and one of an older state, in this life of the daemon and in the next one."""
    member, rotations = join(network, "edge-1"), network.world.authority.rotations
    heard, node_id = watch(member, disk), member.key.node_id

    def given(watch: NetworkWatch, sealed: bytes) -> None:
        assert watch.take(Message(network.topics.secrets(node_id), sealed))

    words = [rotations.sealed_secrets()[node_id]]
    rotations.rotate(60.0)
    words.append(rotations.sealed_secrets()[node_id])
    rotations.revoke("relay", own_node_id="")  # another change takes the place of this one
    words.append(rotations.sealed_secrets()[node_id])
    network.world.clock.block(60)
    assert rotations.advance(is_held=True)
    words.append(rotations.sealed_secrets()[node_id])
    for word in words:
        given(heard, word)
    newest = heard.given
    assert newest is not None
    assert newest.epoch == 3
    given(heard, words[-1])
    for word in words[:-1]:
        with refuses(UntrustedError, "secret 1", "secret 3", reason="Outdated"):
            given(heard, word)
    assert heard.given == newest
    changed = member.membership.holding(member.membership.held.given(newest))
    again = NetworkWatch(changed, member.key, FakeClock(), member.state, disk)
    for word in words[:-1]:
        with refuses(UntrustedError, reason="Outdated"):
            given(again, word)


def test_who_is_put_out_is_out_on_a_full_disk_too(network: Network, disk: Disk) -> None:
    """That needs nothing written down."""
    member = join(network, "edge-1")
    heard = watch(member, disk)
    told(network, heard)
    disk.is_full = True
    rotations = network.world.authority.rotations
    rotations.revoke("edge-1", own_node_id="")
    told(network, heard)
    assert heard.is_revoked


def test_what_a_revoked_node_held_is_dropped_on_a_full_disk_too(network: Network, disk: Disk) -> None:
    """A node that cannot follow the secret is the one that needs it most; the next daemon knows it from the disk."""
    member, other = join(network, "edge-1"), join(network, "edge-2")
    heard = watch(member, disk)
    told(network, heard)
    assert heard.revoked_ips == ()
    disk.is_full = True
    rotations = network.world.authority.rotations
    rotations.revoke("edge-2", own_node_id="")
    told(network, heard)
    assert heard.revoked_ips == (other.membership.lease.overlay_ip,)
    assert heard.state is not None
    assert heard.state.revoked == ()
    disk.is_full = False
    assert heard.settle()
    assert watch(member, disk).revoked_ips == heard.revoked_ips
