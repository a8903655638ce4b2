"""What a node believes of the documents that all nodes follow, so that nothing old counts again, also for its next
daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from session_world import Network, network  # noqa: F401
from telling import refuses

from edgelink.conditions import ConditionSet
from edgelink.errors import NotRecordedError, UntrustedError
from edgelink.files import AT_ONCE, Files
from edgelink.member.documents import Documents, ReplacedRegistryError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ClusterSpec, Envelope, Role
from edgelink.protocol.refusals import OUTDATED, Refusals
from edgelink.protocol.transport import Message
from edgelink.ray_cluster.cluster_spec import FILE_NAME, Draft, OwnEpoch, SpecBook
from edgelink.state_files import StateFiles
from edgelink.testing import FakeClock


class Reader(Documents):
    """One life of a node's daemon, as far as it reads them. ``cache``: where it keeps them for the next one."""

    def __init__(
        self, network: Network, membership: Membership, cache: Path | None = None, files: Files = AT_ONCE
    ) -> None:
        hears_all = membership.lease.role is Role.HEAD
        self._topic_of = {"directory": network.topics.directory, "cluster-spec": network.topics.cluster}
        super().__init__(membership, hears_all=hears_all, refusals=Refusals("ignored"), cache=cache, files=files)

    def hears(self, *envelopes: Envelope) -> None:
        for each in envelopes:
            assert self.take(Message(self._topic_of[each.kind], each.model_dump_json().encode()), "203.0.113.5:8883")

    def ignores(self, envelope: Envelope) -> None:
        """It is older than what is known, and changes nothing."""
        before = self.directory, self.cluster_spec
        with refuses(UntrustedError, reason=OUTDATED):
            self.hears(envelope)
        assert (self.directory, self.cluster_spec) == before

    @property
    def spec_epoch(self) -> int | None:
        return None if self.cluster_spec is None else self.cluster_spec.epoch


def test_what_is_older_does_not_count(network: Network) -> None:
    """A directory or cluster spec that is played again."""
    head, (_, membership) = network.member("cloud", Role.HEAD), network.member("edge-1")
    old = network.directory
    network.member("edge-2")
    node = Reader(network, membership)
    node.hears(network.directory, network.spec(*head, epoch=5))
    node.ignores(old)
    node.ignores(network.spec(*head, epoch=4))
    node.hears(network.spec(*head, epoch=6))
    assert node.spec_epoch == 6


def test_another_head(network: Network) -> None:
    """When the directory names another head, the former one's cluster spec is not followed any more."""
    head, (_, membership) = network.member("cloud", Role.HEAD), network.member("edge-1")
    node = Reader(network, membership)
    node.hears(network.directory, network.spec(*head, epoch=9))
    assert node.spec_epoch == 9
    network.world.authority.release("cloud")
    node.hears(network.directory)
    assert node.cluster_spec is None
    other = network.member("cloud-2", Role.HEAD)
    node.hears(network.spec(*other, epoch=1), network.directory)
    assert node.cluster_spec is not None
    assert node.cluster_spec.head_node_id == other[0].node_id


def test_what_is_known_outlives_the_daemon(network: Network, tmp_path: Path) -> None:
    """A daemon that starts while the relay is away knows what its predecessor knew, verified; junk is ignored."""
    head, (_, membership) = network.member("cloud", Role.HEAD), network.member("edge-1")
    cache = tmp_path / "cache"
    cache.mkdir()
    node = Reader(network, membership, cache)
    node.hears(network.directory, network.spec(*head, epoch=3))
    again = Reader(network, membership, cache)
    assert again.directory == node.directory is not None
    assert again.cluster_spec == node.cluster_spec is not None
    assert all(path.stat().st_mode & 0o077 == 0 for path in cache.iterdir())
    for path in cache.iterdir():
        path.write_text("{}")
    junk = Reader(network, membership, cache)
    assert (junk.directory, junk.cluster_spec) == (None, None)


async def test_what_cannot_be_kept_is_followed_all_the_same(network: Network, tmp_path: Path) -> None:
    """The next daemon knows it as soon as there is room."""
    _, membership = network.member("edge-1")
    cache = tmp_path / "cannot" / "be-written"
    files = StateFiles(ConditionSet(FakeClock(), [], [StateFiles.condition]))
    node = Reader(network, membership, cache, files)
    node.hears(network.directory)
    assert node.directory is not None
    cache.mkdir(parents=True)
    await files.reconcile()
    assert Reader(network, membership, cache).directory == node.directory


def test_of_two_registries_the_one_that_was_restored_later_counts(network: Network, tmp_path: Path) -> None:
    """Whatever their epochs; also after a restart of the daemon."""
    _, membership = network.member("edge-1")
    old = network.directory
    network.restore()
    Reader(network, membership, tmp_path).hears(network.directory)
    again = Reader(network, membership, tmp_path)
    with refuses(ReplacedRegistryError):
        again.hears(old)
    assert again.directory is not None
    assert again.directory.generation == network.world.store.generation() > 0


def test_a_restart_does_not_open_the_door_to_replays(network: Network, tmp_path: Path) -> None:
    """A broker that plays back a directory from before the head's time cannot make an old cluster spec count again."""
    _, membership = network.member("edge-1")
    before_head = network.directory
    head = network.member("cloud", Role.HEAD)
    Reader(network, membership, tmp_path).hears(network.directory, network.spec(*head, epoch=9))
    node = Reader(network, membership, tmp_path)
    node.ignores(before_head)
    node.ignores(network.spec(*head, epoch=4))
    known = node.directory
    node.hears(network.directory)
    assert node.directory == node.named == known, "the very same one again is no replay"
    assert node.spec_epoch == 9


def test_a_heads_specs_go_on_counting_after_another_was_head(network: Network, tmp_path: Path) -> None:
    """What a former head said last is remembered, also by the next daemon: as head again, it goes on from there."""
    head, (_, membership) = network.member("cloud", Role.HEAD), network.member("edge-1")
    node = Reader(network, membership, tmp_path)
    node.hears(network.directory, network.spec(*head, epoch=9))
    network.world.authority.release("cloud")
    other = network.member("cloud-2", Role.HEAD)
    node.hears(network.directory, network.spec(*other, epoch=1))
    assert node.cluster_spec is not None
    assert node.cluster_spec.head_node_id == other[0].node_id
    network.world.authority.release("cloud-2")
    network.world.enrol(head[0], network.world.token(Role.HEAD), "cloud", role=Role.HEAD)
    again = Reader(network, membership, tmp_path)
    again.hears(network.directory)
    again.ignores(network.spec(*head, epoch=8))
    assert again.cluster_spec is None
    again.hears(network.spec(*head, epoch=10))
    assert again.spec_epoch == 10


@pytest.mark.parametrize("said_before", [9, 5])
def test_a_head_hears_which_epochs_it_has_used(network: Network, tmp_path: Path, said_before: int) -> None:
    """Its disk may be an older copy: what it said before has then a number as high as its own, and another content."""
    head = network.member("cloud", Role.HEAD)
    now, above = network.spec(*head, epoch=5), network.spec(*head, epoch=said_before + 1)
    spec = ClusterSpec.model_validate_json(now.body)
    node = Reader(network, head[1], tmp_path)
    assert node.own_epoch.beside(spec) == 0
    node.state_cluster(now)
    assert node.own_epoch.beside(spec) == 0
    node.hears(network.directory, network.spec(*head, epoch=said_before, incarnation="before"))
    assert node.own_epoch.beside(spec) == said_before
    node.state_cluster(above)
    node.hears(above)
    assert node.own_epoch.beside(ClusterSpec.model_validate_json(above.body)) == 0, "its own echo takes no number"
    successor = Reader(network, head[1], tmp_path)
    assert successor.own_epoch.beside(spec) == successor.own_epoch.beside(None) == said_before + 1


def test_one_file_of_a_head_holds_what_it_states(network: Network, tmp_path: Path) -> None:
    """Its Ray writes the file, and the documents only read it: what they hear cannot take a number back."""
    key, membership = network.member("cloud", Role.HEAD)
    file, token = tmp_path / FILE_NAME, "0123456789abcdef" * 4
    said = ClusterSpec.model_validate_json(network.spec(key, membership).body)

    def draft(node: Reader, **change: object) -> Draft:
        return Draft(said.model_copy(update=change), {key.node_id: key.verify_key_b64}, token, node.own_epoch)

    node, book = Reader(network, membership, tmp_path), SpecBook(file, key)
    first = book.number(draft(node))
    node.hears(network.directory)
    node.state_cluster(first)
    assert Envelope.model_validate_json(file.read_bytes()) == first
    assert (node.spec_epoch, node.own_epoch.beside(book.newest)) == (1, 0)

    # The daemon is killed once the next one is on disk, and before anybody has heard of it.
    second = book.number(draft(node, ride_through_s=60))
    successor, book = Reader(network, membership, tmp_path), SpecBook(file, key)
    assert (successor.spec_epoch, successor.cluster_spec) == (2, book.newest)
    assert book.number(draft(successor, ride_through_s=60)) == second, "the same content keeps its number"

    # The disk is an older copy: what the network has heard since is followed, and no number of it is used again.
    heard = network.spec(key, membership, epoch=7)
    successor.hears(heard)
    assert successor.spec_epoch == 7
    assert Envelope.model_validate_json(file.read_bytes()) == second, "one writer"
    successor.state_cluster(book.number(draft(successor, ride_through_s=60)))
    assert successor.spec_epoch == 8
    assert SpecBook(file, NodeKey.generate()).newest is None, "it is another head's"


def test_a_spec_that_cannot_be_written_is_not_stated(network: Network, tmp_path: Path) -> None:
    key, membership = network.member("cloud", Role.HEAD)
    said = ClusterSpec.model_validate_json(network.spec(key, membership).body)
    book = SpecBook(tmp_path / "cannot" / FILE_NAME, key)
    with pytest.raises(NotRecordedError):
        book.number(Draft(said, {}, None, OwnEpoch()))
    assert book.newest is None
