"""What the roles give the overlay: the EasyTier that is on this machine now."""

from __future__ import annotations

import tomllib
from pathlib import Path

import easytier_stand_in
import pytest
from overlay_world import SPEC
from registry_world import World
from telling import refuses

from edgelink.conditions import ConditionSet
from edgelink.config import Config, Paths
from edgelink.daemon.overlay_parts import OverlayParts
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import EasyTierNotFoundError
from edgelink.facts.derive import overlay_spec
from edgelink.process import Identity, Launcher, ProcessSpec
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import open_secrets
from edgelink.protocol.payloads import Role
from edgelink.testing import FakeClock
from edgelink.testing.facts import GivenBoard, board_with


class Started(Launcher):
    """Remembers what it was to start."""

    def __init__(self) -> None:
        self.specs: list[ProcessSpec] = []

    async def launch(self, spec: ProcessSpec) -> Identity:
        self.specs.append(spec)
        return Identity(pid=0, start_ticks=1, boot_id="another boot", config_hash=spec.config_hash)


@pytest.fixture
def started() -> Started:
    return Started()


@pytest.fixture
def board() -> GivenBoard:
    return board_with()


@pytest.fixture
def parts(tmp_path: Path, started: Started, board: GivenBoard) -> OverlayParts:
    clock = FakeClock()
    return OverlayParts(
        config=Config.model_validate({"overlay": {"easytier_core": str(tmp_path / "easytier-core")}}),
        paths=Paths(tmp_path / "state", tmp_path / "run"),
        conditions=ConditionSet(clock, ("OverlayUp",), ("OverlayCpuNormal", "RelaysDialled", "AddressesUnique")),
        clock=clock,
        machine=ThisMachine(),
        board=board,
        launcher=started,
    )


@pytest.mark.parametrize(("before", "now"), [("2.6.0", "2.6.4"), ("2.6.4", "2.6.0")])
async def test_an_easytier_that_was_exchanged_is_started_as_what_it_is(
    tmp_path: Path, parts: OverlayParts, board: GivenBoard, started: Started, before: str, now: str
) -> None:
    """The daemon goes on meanwhile. By another version's rules it might open ports on the router, or not start."""
    easytier_stand_in.install(tmp_path, before)
    assert parts.binary().version == before
    easytier_stand_in.install(tmp_path, now)
    core = parts.overlay._core
    await core.prepare(SPEC)
    await core.start(SPEC)
    assert board.facts.easytier_version == now
    assert len(started.specs) == 1
    flags = tomllib.loads((tmp_path / "state" / "easytier.toml").read_text())["flags"]
    assert ("disable_upnp" in flags) is (now == "2.6.4")


def test_the_relays_machine_as_head_too_shares_its_easytier(tmp_path: Path) -> None:
    """Two daemons that wanted different ones would restart it in turn."""
    world, key = World(tmp_path), NodeKey.generate()
    world.authority.ensure_relay_lease(key, "relay")
    result = world.enrol(key, world.token(Role.HEAD), "relay", role=Role.HEAD)
    assert result.reply.sealed_secrets is not None
    secrets = open_secrets(result.reply.sealed_secrets, key, world.keys.verify_key_b64)
    relay = world.authority.relay_membership(key, "relay")
    head = relay.model_copy(update={"secrets": secrets})
    assert overlay_spec(head, Config()).config_hash == overlay_spec(relay, Config()).config_hash


async def test_one_that_was_exchanged_may_be_too_old(tmp_path: Path, parts: OverlayParts) -> None:
    """Before what runs is stopped for it."""
    easytier_stand_in.install(tmp_path, "2.6.4")
    await parts.overlay._core.prepare(SPEC)
    easytier_stand_in.install(tmp_path, "2.5.0")
    with refuses(EasyTierNotFoundError, "2.5.0", reason="EasyTierTooOld"):
        await parts.overlay._core.prepare(SPEC)


def test_one_that_is_still_there_is_not_asked_again(tmp_path: Path, parts: OverlayParts) -> None:
    """Of each question to EasyTier this costs a stat, not a process; one that is gone is not there."""
    core = easytier_stand_in.install(tmp_path, "2.6.4")
    known = parts.binary()
    assert parts.binary() is known
    core.rename(tmp_path / "away")
    with pytest.raises(EasyTierNotFoundError):
        parts.binary()
    (tmp_path / "away").rename(core)
    assert parts.binary() is known
