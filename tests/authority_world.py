"""A network's authority on a temporary directory, and what its tests ask of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from registry_world import World

from edgelink.protocol.payloads import Envelope, Role
from edgelink.relay.authority import Authority
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.store import RegistryStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state")


def users(world: World) -> dict[str, Role]:
    return {user.username: user.role for user in world.store.broker_users()}


def new_authority(directory: Path, world: World) -> Authority:
    keys = AuthorityKeys.load_or_create(directory / "authority", world.clock)
    return Authority(RegistryStore(directory / "registry.sqlite3", world.clock), keys, world.clock)


def refused(world: World, envelope: Envelope, token_id: str) -> tuple[str | None, str]:
    """Reason and text of a refusal, which must leave no trace."""
    before = (world.store.leases(), world.store.tokens.all(), users(world), world.store.epoch())
    result = world.authority.enrol(envelope, token_id)
    assert result.broker_password is None
    assert result.reply.lease is None
    assert result.reply.sealed_secrets is None
    assert (world.store.leases(), world.store.tokens.all(), users(world), world.store.epoch()) == before
    return result.reply.error_reason, f"{result.reply.error} {result.reply.error_hint}"
