"""What `edgelink revoke` and `edgelink rotate-secret` ask of the relay's daemon, and what they are told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from sim import BROKER_PORT, RELAY_ADDRESS, Box, Sim, ready, secret, story
from sim_machine import BROKER

from edgelink.api.server import Caller
from edgelink.config import Config, Paths
from edgelink.daemon.relay import Relay
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ExitCode, UsageError
from edgelink.overlay.link import LinkState
from edgelink.protocol.payloads import Role
from edgelink.protocol.statuses import SILENCE_S
from edgelink.relay.rotations import Revoked
from edgelink.testing import FakeClock
from edgelink.testing.facts import give


@dataclass
class Answer:
    """What came before the end, and the error that was it."""

    items: list[dict[str, Any]]
    error: dict[str, Any] | None

    @property
    def done(self) -> dict[str, Any]:
        assert self.error is None, self.error
        return self.items[-1]

    @property
    def behind(self) -> list[tuple[str, bool]]:
        """Who is not on the new secret at the end, and whether it is online."""
        return [(row["hostname"], row["online"]) for row in self.done["behind"]]

    def states_of(self, hostname: str) -> list[str]:
        """Each once, in the order they came."""
        rows = [row for item in self.items if item["event"] == "nodes" for row in item["nodes"]]
        return list(dict.fromkeys(row["state"] for row in rows if row["hostname"] == hostname))


async def ask(relay: Box, what: str, **body: Any) -> Answer:
    items = await relay.told("POST", f"/{what}", **body)
    return Answer(items[:-1], items[-1]) if "error" in items[-1] else Answer(items, None)


async def known(sim: Sim, *names: str) -> list[Box]:
    """A network that works, and a relay that takes whoever has not spoken for away."""
    boxes = await ready(sim, *names)
    await sim.passes(SILENCE_S)
    return boxes


@story
async def test_a_node_is_put_out_and_each_other_is_followed(sim: Sim) -> None:
    """Live, to the end: nobody is behind, and the relay says so of the whole network."""
    relay, *others = await known(sim, "cloud", "edge-1")
    stolen = await sim.join("edge-2", Role.EDGE, relay)
    answer = await ask(relay, "revoke", node="edge-2")
    assert answer.items[0] == {
        "event": "revoked",
        "hostname": "edge-2",
        "node_id": stolen.node_id,
        "off_broker": True,
    }
    assert answer.behind == []
    for name in ("relay", "cloud", "edge-1"):
        assert answer.states_of(name)[-1] == "runs on secret 2"
    assert answer.states_of("edge-2") == []
    assert [box.membership.held for box in others] == [secret(relay)] * 2
    await sim.until(relay.has("SecretCurrent", "Current"), within_s=1)
    again = await ask(relay, "revoke", node="edge-2")
    assert again.error is not None
    assert again.error["reason"] == "NodeRevoked"


@story
async def test_an_existing_overlay_waits_for_no_easytier(sim: Sim) -> None:
    """The relay is on the new secret as soon as it counts: nothing is started anew for it, and nobody else says so."""
    relay = sim.box("relay", Role.RELAY, overlay={"kind": "existing", "device": "wg0"})
    address = IPv4Interface("10.144.0.1/16")
    relay.machine.device.state = LinkState(True, True, (address,), 1420, index=3, routes=(address.network,))
    sim.world.brokers[f"{RELAY_ADDRESS}:{BROKER_PORT}"] = relay.machine.memory
    relay.start()
    await sim.until(relay.has("SecretCurrent", "Current"), within_s=5)
    begun_s = sim.clock.monotonic_s()
    assert (await ask(relay, "rotate-secret")).behind == []
    assert sim.clock.monotonic_s() < begun_s + 4
    await sim.until(relay.has("SecretCurrent", "Current"), within_s=1)


@story
async def test_who_is_away_is_named(sim: Sim) -> None:
    """It is out all the same; a relay that is behind comes first, because it would carry the old network on."""
    relay, *_ = await known(sim, "cloud")
    for name in ("edge-1", "edge-2"):
        await sim.join(name, Role.EDGE, relay)
    answer = await ask(relay, "revoke", node="edge-2")
    assert answer.behind == [("edge-1", False)]
    assert any("offline" in state for state in answer.states_of("edge-1"))
    await sim.until(relay.has("SecretCurrent", "OldSecretInUse"), within_s=1)
    assert "edge-1" in relay.condition("SecretCurrent").message


@story
async def test_who_does_not_follow_in_time_is_named(sim: Sim) -> None:
    """It is online, and its daemon stands still: nobody waits for it, and it follows when it goes on."""
    relay, _, deaf = await known(sim, "cloud", "edge-1")
    begun_s = sim.clock.monotonic_s()
    deaf.machine.is_stopped = True
    asking = asyncio.create_task(ask(relay, "rotate-secret"))
    await sim.until(lambda: secret(relay).epoch == 2, within_s=5)
    await sim.until(relay.has("SecretCurrent", "Changing"), within_s=5)
    answer = await asking
    assert answer.behind == [("edge-1", True)]
    await sim.until(relay.has("SecretCurrent", "OldSecretInUse"), within_s=60)
    assert sim.clock.monotonic_s() < begun_s + 120
    deaf.machine.is_stopped = False
    await sim.until(relay.has("SecretCurrent", "Current"), within_s=60)
    assert deaf.membership.held == secret(relay)


@story
async def test_only_root_and_only_other_nodes(sim: Sim) -> None:
    """A local user cannot put anybody out; nor can the relay put itself out."""
    relay = await sim.relay()
    await sim.join("edge-1", Role.EDGE, relay)
    nobody, secrets = Caller(1, 65534, 65534), relay.relay.secrets
    for asked in (secrets.revoke, secrets.rotate):
        with pytest.raises(UsageError) as caught:
            await anext(asked(nobody, {"node": "edge-1"}))
        assert caught.value.condition_reason == "PermissionDenied"
    for name in ("relay", "nobody"):
        assert (await ask(relay, "revoke", node=name)).error is not None
    assert relay.relay.authority.rotations.record is None
    assert relay.relay.store.find_lease("edge-1") is not None


@story
async def test_a_relay_that_has_just_started_waits_for_who_has_not_spoken_yet(sim: Sim) -> None:
    """A revocation takes the node away at once; who may be online may have a robot, and is told in time."""
    relay = await sim.relay()
    late, _ = [await sim.join(name, Role.EDGE, relay) for name in ("edge-1", "edge-2")]
    asking = asyncio.create_task(ask(relay, "revoke", node="edge-2"))
    await sim.until(lambda: relay.relay.store.find_lease("edge-2") is None, within_s=1)
    await sim.passes(5)
    assert secret(relay).epoch == 1
    late.start()
    answer = await asking
    assert answer.behind == []
    assert "heard" in answer.states_of("edge-1")[0]
    assert late.membership.held.epoch == 2
    assert sim.clock.monotonic_s() < SILENCE_S


@story
async def test_for_a_stolen_robot_nobody_is_waited_for(sim: Sim) -> None:
    """Nobody's patience is no patience: 0 is not the default."""
    relay = await sim.relay()
    for name in ("edge-1", "edge-2"):
        await sim.join(name, Role.EDGE, relay)
    begun_s = sim.clock.monotonic_s()
    assert (await ask(relay, "revoke", node="edge-2", hold_s=0)).behind == [("edge-1", False)]
    assert sim.clock.monotonic_s() < begun_s + 5


@story
async def test_who_stays_silent_holds_no_rotation_up(sim: Sim) -> None:
    """After some time it is away."""
    relay = await sim.relay()
    await sim.join("edge-1", Role.EDGE, relay)
    answer = await ask(relay, "rotate-secret")
    assert answer.behind == [("edge-1", False)]
    assert SILENCE_S <= sim.clock.monotonic_s() < SILENCE_S + 20


async def without_broker(sim: Sim) -> Box:
    """A relay whose broker is gone, and cannot be started; edge-1 has joined."""
    relay = await sim.relay()
    await sim.join("edge-1", Role.EDGE, relay)
    relay.machine.broken.add(BROKER)
    relay.machine.end(BROKER)
    await sim.passes(1)
    return relay


@story
async def test_without_the_broker_nothing_is_rotated(sim: Sim) -> None:
    """Nobody could be asked: 75, and the secret is what it was."""
    relay = await without_broker(sim)
    answer = await ask(relay, "rotate-secret")
    assert answer.error is not None
    assert answer.error["exit_code"] == ExitCode.TRY_AGAIN
    assert relay.relay.authority.rotations.record is None


@story
async def test_without_the_broker_a_revocation_is_not_followed_for_ever(sim: Sim) -> None:
    """It is recorded, and not said to be off the broker; the command ends with 75 and the reason."""
    relay = await without_broker(sim)
    answer = await ask(relay, "revoke", node="edge-1", hold_s=10)
    assert answer.items[0]["off_broker"] is False
    assert answer.error is not None
    assert answer.error["exit_code"] == ExitCode.TRY_AGAIN
    assert (answer.error["reason"], "broker" in answer.error["error"]) == ("RotationUnfinished", True)
    assert relay.relay.store.find_lease("edge-1") is None


@story
async def test_a_change_that_is_over_at_once_is_followed(sim: Sim) -> None:
    """The record may be gone before anybody looks at it."""
    relay = await sim.relay()
    await sim.join("edge-1", Role.EDGE, relay)
    registry, book = relay.relay.registry, relay.relay.store.rotations
    revoke = registry.revoke

    async def quickly(*args: Any, **options: Any) -> tuple[Revoked, bool]:
        outcome = await revoke(*args, **options)
        book.commit()
        registry.rotation.look()
        return outcome

    registry.revoke = quickly  # type: ignore[method-assign]
    answer = await ask(relay, "revoke", node="edge-1")
    assert answer.items[0]["off_broker"] is True
    assert answer.done["event"] == "done"


async def test_an_easytier_that_is_confirmed_only_wakes(tmp_path: Path) -> None:
    """A failing database is no reason for whoever confirms EasyTier to end."""
    config, paths = (
        Config.model_validate({"relay": {"advertise": ("relay.example",)}}),
        Paths(tmp_path / "s", tmp_path / "r"),
    )
    relay = Relay(config, paths, FakeClock(), ThisMachine(), None)
    relay.settle(LinkState())
    relay.own.store.close()  # whoever reads it fails
    wakeup = relay.own.registry.rotation.wakeup
    wakeup.clear()
    give(relay.base.board, easytier_as_wanted=True)
    assert wakeup.is_set
