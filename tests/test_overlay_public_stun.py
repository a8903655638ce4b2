"""EasyTier and public STUN servers: it is kept from them by a hosts file of its own, or it is told."""

from __future__ import annotations

import tomllib
from dataclasses import replace

from overlay_world import SPEC, UP, FakePrivateHosts, World, paths, running, world  # noqa: F401

from edgelink.conditions import Status
from edgelink.config import Paths
from edgelink.errors import (
    PrivateFilesError,
)


async def test_easytier_is_kept_from_public_stun_servers(world: World) -> None:
    """It gets a hosts file of its own, which is kept up while it runs."""
    await world.up()
    assert world.process.started[0].private_files == (FakePrivateHosts.FILE,)
    assert world.hosts.renewed == [world.process.identity]
    assert "STUN" not in world.condition.message


async def test_where_files_cannot_be_mounted_holes_are_punched_all_the_same(world: World) -> None:
    """The relay's servers are in EasyTier's configuration."""
    world.given(overlay_spec=replace(SPEC, stun_servers=("203.0.113.10:3478",)))
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted")
    await world.up()
    toml = tomllib.loads(world.paths.easytier_config.read_text())
    assert (toml["stun_servers"], toml["flags"]["disable_udp_hole_punching"]) == (["203.0.113.10:3478"], False)
    assert "STUN" in world.condition.message


async def test_a_container_with_a_hosts_file_of_its_own_is_not_warned_of(world: World) -> None:
    """All names lead nowhere there."""
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted")
    world.hosts.is_enough_alone = True
    world.hosts.renew = lambda *_: None  # type: ignore[method-assign]  # nothing to renew
    await world.up()
    assert "STUN" not in world.condition.message


async def test_where_easytier_cannot_be_kept_from_stun_it_runs_and_the_condition_says_so(world: World) -> None:
    """In a container without SYS_ADMIN the overlay works all the same, once started, and nothing is hidden."""
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted", hint="it takes CAP_SYS_ADMIN")
    await world.up()
    assert [spec.private_files for spec in world.process.started] == [()]
    assert "STUN" in world.condition.message
    assert "CAP_SYS_ADMIN" in world.condition.message
    world.hosts.refusal = PrivateFilesError("without files")
    await world.look()
    assert "CAP_SYS_ADMIN" in world.condition.message, "the reason that can be acted on stays"


async def test_an_adopted_easytier_that_was_started_without_is_left_alone_and_told_of(paths: Paths) -> None:
    """It is no reason to cut an overlay that works."""
    world = World(paths, adoptable=running())
    world.hosts.refusal = PrivateFilesError("pid 77: without files")
    world.links.state = UP
    await world.look()
    assert world.condition.status is Status.TRUE
    assert "pid 77" in world.condition.message
    assert world.process.stops == 0
