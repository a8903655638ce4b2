"""EasyTier and public STUN servers: it is kept from them, by a hosts file of its own or a switch, or it is told."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace

import pytest
from overlay_world import SPEC, UP, FakePrivateHosts, World, paths, running, world  # noqa: F401

from edgelink.conditions import Status
from edgelink.config import Paths
from edgelink.errors import (
    PrivateFilesError,
)
from edgelink.overlay import stun
from edgelink.overlay.stun import UNANSWERED


@pytest.mark.parametrize("version, is_private", [("2.0.3", True), ("2.4.5", False), ("2.6.4", True)])
async def test_easytier_is_kept_from_public_stun_servers(world: World, version: str, is_private: bool) -> None:
    """A version without a switch for them gets a hosts file of its own, which is kept up while it runs."""
    world.version = version
    await world.up()
    assert world.process.started[0].private_files == ((FakePrivateHosts.FILE,) if is_private else ())
    assert world.hosts.renewed == ([world.process.identity] if is_private else [])
    assert "STUN" not in world.condition.message


async def test_an_old_version_is_led_to_the_relay_by_its_hosts_file(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It punches holes then; a relay whose name does not resolve yet is looked up again, without a restart."""
    known: dict[str, str] = {}

    async def addresses_of(servers: Sequence[str]) -> tuple[str, ...]:
        return tuple(known.get(server, UNANSWERED) for server in servers)

    monkeypatch.setattr(stun, "addresses_of", addresses_of)
    world.version = "2.0.3"
    world.spec = replace(SPEC, stun_servers=("relay.example:3478", "relay.example:3479"))
    await world.up()
    assert world.hosts.servers == (UNANSWERED,)
    flags = tomllib.loads(world.paths.easytier_config.read_text())["flags"]
    assert flags["disable_udp_hole_punching"] is False

    known["relay.example:3478"] = "203.0.113.10"
    await world.reconciler.reconcile()
    assert world.hosts.servers == ("203.0.113.10",)
    assert len(world.process.started) == 1


async def test_without_a_hosts_file_of_its_own_an_old_version_punches_nothing(world: World) -> None:
    """Its attempts would fail at once, and it would spin over them."""
    world.version = "2.0.3"
    world.spec = replace(SPEC, stun_servers=("203.0.113.10:3478",))
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted")
    await world.up()
    flags = tomllib.loads(world.paths.easytier_config.read_text())["flags"]
    assert flags["disable_udp_hole_punching"] is True
    assert "EasyTier may ask public STUN servers" in world.condition.message


async def test_a_container_with_a_hosts_file_of_its_own_is_not_warned_of(world: World) -> None:
    """All names lead nowhere there; only, nothing can lead them to the relay."""
    world.version = "2.0.3"
    world.spec = replace(SPEC, stun_servers=("203.0.113.10:3478",))
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted")
    world.hosts.is_enough_alone = True
    world.hosts.renew = lambda *_: None  # type: ignore[method-assign]  # nothing to renew
    await world.up()
    assert "STUN" not in world.condition.message
    flags = tomllib.loads(world.paths.easytier_config.read_text())["flags"]
    assert flags["disable_udp_hole_punching"] is True


async def test_where_easytier_cannot_be_kept_from_stun_it_runs_and_the_condition_says_so(world: World) -> None:
    """In a container without SYS_ADMIN the overlay works all the same, once started, and nothing is hidden."""
    world.hosts.refusal = PrivateFilesError("unshare: Operation not permitted", hint="it takes CAP_SYS_ADMIN")
    await world.up()
    assert [spec.private_files for spec in world.process.started] == [()]
    assert "EasyTier may ask public STUN servers" in world.condition.message
    assert "CAP_SYS_ADMIN" in world.condition.message
    world.hosts.refusal = PrivateFilesError("was started without files of its own")
    await world.reconciler.reconcile()
    assert "CAP_SYS_ADMIN" in world.condition.message, "the reason that can be acted on stays"


async def test_a_version_with_a_dns_record_of_stun_servers_is_told_of(world: World) -> None:
    """2.2.3 to 2.4.4 take servers from a TXT record, which no hosts file holds back."""
    world.version = "2.3.2"
    await world.up()
    assert "DNS record" in world.condition.message
    assert world.process.started[0].private_files


async def test_an_adopted_easytier_that_was_started_without_is_left_alone_and_told_of(paths: Paths) -> None:
    """It is no reason to cut an overlay that works."""
    world = World(paths, adoptable=running())
    world.hosts.refusal = PrivateFilesError("pid 77: was started without files of its own")
    world.links.state = UP
    await world.reconciler.reconcile()
    assert world.condition.status is Status.TRUE
    assert "pid 77" in world.condition.message
    assert world.process.stops == 0
