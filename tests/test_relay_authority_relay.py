"""The relay's own lease, which it has like any node."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest
from authority_world import new_authority, world  # noqa: F401
from registry_world import World
from telling import refuses

from edgelink.errors import ConfigError, LeaseConflictError
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import Role
from edgelink.relay.founding import NetworkRequest


def test_the_relay_has_a_lease_like_anyone(world: World) -> None:
    """First host, no rank, is_relay; a restart changes nothing, the broker password included."""
    key = NodeKey.generate()
    membership = world.authority.relay_membership(key, "relay")
    lease = membership.belonging_to(key).lease
    assert (lease.overlay_ip, lease.preferred_rank, lease.is_relay) == (world.network.relay_ip, None, True)
    world.reopen()
    again = world.authority.relay_membership(key, "renamed", previous=membership)
    assert again == membership
    changed = world.authority.relay_membership(key, "relay", addresses=("127.0.0.1:8883",))
    assert changed.secrets.broker_password != membership.secrets.broker_password
    assert changed.addresses == ("127.0.0.1:8883",)
    assert world.join("edge-1").overlay_ip != lease.overlay_ip


def test_another_key_does_not_become_the_relay(world: World) -> None:
    """A relay whose node key was lost is told how to free its lease; an edge's lease is not turned into the relay's."""
    world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    with refuses(LeaseConflictError, "edgelink registry release relay"):
        world.authority.ensure_relay_lease(NodeKey.generate(), "relay")
    edge = NodeKey.generate()
    lease = world.lease(world.enrol(edge, world.token()))
    with refuses(LeaseConflictError, lease.hostname, lease.overlay_ip):
        world.authority.ensure_relay_lease(edge, "relay")
    assert world.store.lease(edge.node_id) == lease


def test_the_relay_may_be_the_head_too(world: World) -> None:
    """With a head token the relay keeps address and hostname and gets rank 0; other machines then cannot be head."""
    key = NodeKey.generate()
    relay = world.authority.ensure_relay_lease(key, "relay")
    token = world.token(Role.HEAD)
    head = world.lease(world.enrol(key, token, "cloud", role=Role.HEAD))
    assert head == relay.model_copy(update={"role": Role.HEAD, "preferred_rank": 0, "lease_epoch": 1})
    assert world.lease(world.enrol(key, token, "cloud", role=Role.HEAD)) == head
    assert world.authority.ensure_relay_lease(key, "relay") == head
    result = world.enrol(NodeKey.generate(), world.token(Role.HEAD), "cloud", role=Role.HEAD)
    assert result.reply.error_reason == "LeaseConflict"


def test_the_relay_of_an_existing_overlay_may_be_elsewhere(world: World) -> None:
    """Its address is what its device has; heads and edges still have to be inside of the network."""
    outside = IPv4Address("203.0.113.10")
    authority = new_authority(world.directory / "other", world)
    for address in ("10.10.0.0", "10.10.0.255"):
        with pytest.raises(ConfigError, match="host address"):
            authority.create_network(NetworkRequest("lab", world.cidr, IPv4Address(address), relay_may_be_outside=True))
    made = authority.create_network(NetworkRequest("lab", world.cidr, outside, relay_may_be_outside=True))
    assert made.relay_ip == outside
    assert authority.ensure_relay_lease(NodeKey.generate(), "relay").overlay_ip == outside


def test_a_machine_whose_own_address_is_elsewhere_is_refused(world: World) -> None:
    """It is told which address does not fit into which network, and which key names the device."""
    result = world.enrol(NodeKey.generate(), world.token(), overlay_ip=IPv4Address("192.168.7.2"))
    assert result.reply.error is not None
    assert "192.168.7.2" in result.reply.error
    assert str(world.cidr) in result.reply.error
    assert "overlay.device" in result.reply.error_hint
