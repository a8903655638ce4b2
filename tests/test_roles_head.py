"""Whose Ray the head buries under a run in progress."""

from __future__ import annotations

from edgelink.registry.keys import NodeKey
from edgelink.registry.payloads import NetworkState
from edgelink.roles.head import put_out


def test_only_who_was_put_out_is_buried() -> None:
    """By the registry's signed word. Who is in no directory may be healthy: a registry that was restored from an older
    backup has never heard of it."""
    healthy, stolen, earlier = (NodeKey.generate().node_id for _ in range(3))
    state = NetworkState(network_id="n", generation=0, number=1, secret_epoch=2, revoked=(stolen, earlier))
    assert put_out([healthy, stolen], state) == {stolen}
    assert put_out([healthy, stolen], None) == set()
