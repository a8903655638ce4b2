"""What a node remembers of what was said, so that nothing old counts again, also for its next daemon."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import ADDRESSES
from session_world import Follower, Network, network  # noqa: F401

from edgelink.registry.payloads import ClusterSpec, Role


async def test_refuses_older_epochs(network: Network) -> None:
    """A replayed older directory or cluster spec is ignored."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    old = network.world.authority.directory()
    network.member("edge-2")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=5))
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        directory, spec = client.directory, client.cluster_spec
        network.say(network.topics.directory, old)
        network.say(network.topics.cluster, network.spec(head_key, head, epoch=4))
        await follower.clock.advance(0)
        assert client.ignored_messages == 2
        assert client.directory == directory
        assert client.cluster_spec == spec
        network.say(network.topics.cluster, network.spec(head_key, head, epoch=6))
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.epoch == 6


async def test_another_head(network: Network) -> None:
    """When the directory names another head, the former one's cluster spec is not followed any more."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=9))
    follower = Follower(network, key, membership)
    async with follower.running() as client:
        assert client.cluster_spec is not None
        network.world.authority.release("cloud")
        network.say_directory()
        await follower.clock.advance(0)
        assert client.cluster_spec is None
        new_key, new_head = network.member("cloud-2", Role.HEAD)
        network.say(network.topics.cluster, network.spec(new_key, new_head, epoch=1))
        network.say_directory()
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.head_node_id == new_key.node_id


async def test_cache_outlives_the_daemon(network: Network, tmp_path: Path) -> None:
    """A daemon that starts while the relay is away knows what its predecessor knew, verified; junk is ignored."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=3))
    cache = tmp_path / "cache"
    cache.mkdir()
    async with Follower(network, key, membership, cache).running() as client:
        directory, spec = client.directory, client.cluster_spec
    network.broker.stop()
    async with Follower(network, key, membership, cache).running() as client:
        assert not client.is_connected
        assert client.directory == directory
        assert client.cluster_spec == spec
    assert all(path.stat().st_mode & 0o077 == 0 for path in cache.iterdir())
    for path in cache.iterdir():
        path.write_text("{}")
    junk = Follower(network, key, membership, cache).client
    assert junk.directory is None
    assert junk.cluster_spec is None


async def test_a_full_disk_does_not_end_the_daemon(network: Network, tmp_path: Path) -> None:
    """What cannot be kept for the next start is followed all the same."""
    key, membership = network.member("edge-1")
    follower = Follower(network, key, membership, cache=tmp_path / "cannot" / "be-written")
    network.say_directory()
    async with follower.running() as client:
        await follower.clock.advance(1)
        assert client.directory is not None
        assert client.is_connected
    (tmp_path / "cannot" / "be-written").mkdir(parents=True)
    await follower.files.reconcile()
    assert Follower(network, key, membership, tmp_path / "cannot" / "be-written").client.directory == client.directory


async def test_a_registry_that_was_replaced_is_left(network: Network, tmp_path: Path) -> None:
    """Of two, the one that was restored later counts, whatever their epochs; also after a restart of the daemon."""
    key, membership = network.member("edge-1")
    old = network.world.authority.directory()
    lease = network.world.store.find_lease("edge-1")
    assert lease is not None
    network.world.store.note_restoration(lease.node_id, keep_addresses=True)
    network.say_directory()
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        assert client.is_connected
        assert client.directory is not None
        assert client.directory.generation == network.world.store.generation() > 0
    network.say(network.topics.directory, old)
    again = Follower(network, key, membership, tmp_path)
    async with again.running() as client:
        assert not client.is_connected
        assert client.facts.session.error is not None
        assert client.facts.session.error.condition_reason == "RegistryReplaced"
        assert client.directory is not None
        assert client.directory.generation == network.world.store.generation() > 0
        tries = len(network.transport.dialled)
        await again.clock.advance(5)
        assert ADDRESSES[0] in network.transport.dialled[tries:], "the other addresses are tried"
        network.say_directory()
        await again.clock.advance(5)
        assert client.is_connected


async def test_a_restart_does_not_open_the_door_to_replays(network: Network, tmp_path: Path) -> None:
    """A broker that plays back a directory from before the head's time cannot make an old cluster spec count again."""
    key, membership = network.member("edge-1")
    before_head = network.world.authority.directory()
    head_key, head = network.member("cloud", Role.HEAD)
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=9))
    async with Follower(network, key, membership, tmp_path).running() as client:
        directory, spec = client.directory, client.cluster_spec
        assert spec is not None
    network.say(network.topics.directory, before_head)
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=4))
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        assert client.is_connected
        network.say_directory()
        await follower.clock.advance(0)
        assert client.ignored_messages == 2
        assert client.directory == client.facts.session.directory == directory, "the very same one again is no replay"
        assert client.cluster_spec == spec


async def test_a_heads_specs_go_on_counting_after_another_was_head(network: Network, tmp_path: Path) -> None:
    """What a former head said last is remembered, also by the next daemon: as head again, it goes on from there."""
    head_key, head = network.member("cloud", Role.HEAD)
    key, membership = network.member("edge-1")
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=9))
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        network.world.authority.release("cloud")
        other_key, other = network.member("cloud-2", Role.HEAD)
        network.say_directory()
        network.say(network.topics.cluster, network.spec(other_key, other, epoch=1))
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.head_node_id == other_key.node_id
    network.world.authority.release("cloud-2")
    network.world.enrol(head_key, network.world.token(Role.HEAD), "cloud", role=Role.HEAD)
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=8))
    follower = Follower(network, key, membership, tmp_path)
    async with follower.running() as client:
        assert client.cluster_spec is None
        assert client.ignored_messages == 1
        network.say(network.topics.cluster, network.spec(head_key, head, epoch=10))
        await follower.clock.advance(0)
        assert client.cluster_spec is not None
        assert client.cluster_spec.epoch == 10


@pytest.mark.parametrize("said_before", [9, 5])
async def test_a_head_hears_which_epochs_it_has_used(network: Network, tmp_path: Path, said_before: int) -> None:
    """Its disk may be an older copy: what it said before has then a number as high as its own, and another content."""
    head_key, head = network.member("cloud", Role.HEAD)
    network.say_directory()
    network.say(network.topics.cluster, network.spec(head_key, head, epoch=said_before, incarnation="before"))
    now = network.spec(head_key, head, epoch=5)
    spec = ClusterSpec.model_validate_json(now.body)
    follower = Follower(network, head_key, head, tmp_path)
    assert follower.client.epoch_taken(spec) == 0
    follower.client.publish_cluster(now)
    assert follower.client.epoch_taken(spec) == 0
    async with follower.running() as client:
        assert client.epoch_taken(spec) == said_before
        above = network.spec(head_key, head, epoch=said_before + 1)
        client.publish_cluster(above)
        await follower.clock.advance(1)
        assert network.broker.retained[network.topics.cluster] == above.model_dump_json().encode()
        assert client.epoch_taken(ClusterSpec.model_validate_json(above.body)) == 0, "its own echo takes no number"
    successor = Follower(network, head_key, head, tmp_path).client
    assert successor.epoch_taken(spec) == successor.epoch_taken(None) == said_before + 1
