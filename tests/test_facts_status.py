"""What the network is told of a node follows from facts, and is told whenever it is something new."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from registry_world import World

from edgelink import __version__
from edgelink.conditions import Condition, Conditions, ConditionSet, Phase, Status
from edgelink.config import Config
from edgelink.errors import NoRelayError, RegistryAuthError, RegistryUnavailableError, UntrustedError
from edgelink.facts.derive import Broker, Own, broker_away, derive_status, node_status
from edgelink.member.registry_client import Session
from edgelink.member.session_parts import OwnStatus, StatusTeller, Tell
from edgelink.overlay.openings import Opening
from edgelink.protocol.held_secret import NetworkTold
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ConditionReport, NodeStatus, RayDeath, Role
from edgelink.ray_cluster.pause import Pause
from edgelink.ray_cluster.versions import Versions
from edgelink.relay.lease_changes import LeaseChange
from edgelink.testing import FakeClock
from edgelink.testing.facts import board_with, settle

KEY = NodeKey.generate()
UP = Condition("OverlayUp", Status.TRUE, "DeviceConfirmed", "et0 is up", FakeClock().now())
STARTS = Own(
    running=None,
    conditions=Conditions(),
    phase=Phase.STARTING,
    is_stopping=False,
    versions=Versions(),
    dead_ray=None,
    easytier_version=None,
    is_metered=False,
    openings=frozenset(),
    follows_spec=None,
    paused={},
    network=NetworkTold(),
    hook_answered=None,
    tries_next_secret=False,
    easytier_as_wanted=False,
)
BARE = NodeStatus(
    node_id=KEY.node_id,
    online=True,
    phase="Starting",
    edgelink_version=__version__,
    python_version=platform.python_version(),
    device="et7",
)


def told(now: Own) -> NodeStatus:
    return node_status(now, key=KEY, device="et7", hold_s=0.0)


@pytest.mark.parametrize(
    ("facts", "change"),
    [
        ({}, {}),
        ({"is_stopping": True, "phase": Phase.STOPPING}, {"online": False, "phase": "Stopping"}),
        ({"conditions": Conditions((UP,))}, {"conditions": (ConditionReport.of(UP),)}),
        ({"conditions": Conditions(informing=(UP,))}, {"conditions": (ConditionReport.of(UP),)}),
        (
            {"versions": Versions("2.60.0", "3.10.1", {"torch": "2.5.1"})},
            {"ray_version": "2.60.0", "python_version": "3.10.1", "packages": {"torch": "2.5.1"}},
        ),
        ({"easytier_version": "2.6.4"}, {"easytier_version": "2.6.4"}),
        ({"is_metered": True}, {"metered": True}),
        ({"openings": frozenset({Opening("tcp", 22, 22)})}, {"open_ports": ("tcp/22 from all",)}),
        ({"follows_spec": 7}, {"follows_spec": 7}),
        (
            {"paused": {node_id: Pause(0.0, "echo") for node_id in ("b" * 26, "a" * 26)}},
            {"paused": ("a" * 26, "b" * 26)},
        ),
        ({"dead_ray": "f00d"}, {}),
    ],
)
def test_a_status_says_what_the_facts_say(facts: dict[str, Any], change: dict[str, Any]) -> None:
    """Who holds no lease has nobody to state a death to."""
    assert told(replace(STARTS, **facts)) == BARE.model_copy(update=change)


def member(world: World, role: Role) -> Membership:
    token = world.token(role)
    return world.membership(KEY, token, world.enrol(KEY, token, role=role))


def test_an_edge_states_the_end_of_its_ray_and_a_head_does_not(tmp_path: Path) -> None:
    """A head tells nobody: its Ray is the cluster."""
    edge = member(World(tmp_path / "edge"), Role.EDGE)
    death = told(replace(STARTS, running=edge, dead_ray="f00d")).ray_death
    assert death is not None
    stated = open_envelope(death, Kind.RAY_DEATH, RayDeath, KEY.verify_key_b64)
    assert stated == RayDeath(network_id=edge.network_id, ray_node_id="f00d")
    assert told(replace(STARTS, running=edge)).ray_death is None
    head = member(World(tmp_path / "head"), Role.HEAD)
    assert told(replace(STARTS, running=head, dead_ray="f00d")).ray_death is None


async def test_each_change_is_told_once_with_the_time(tmp_path: Path) -> None:
    """Labels, too: no condition changes by them, and the head chooses the nodes of a run by them."""
    clock, board, published = FakeClock(), board_with(), list[NodeStatus]()
    derive_status(board, Config(), KEY)
    teller = StatusTeller(board, published.append, clock)
    conditions, world = ConditionSet(clock, [StatusTeller.condition]), World(tmp_path)
    membership = member(world, Role.EDGE)
    board.given(membership=membership)
    await settle(teller, board, conditions, clock)
    world.authority.change_lease(KEY.node_id, LeaseChange(labels={"site": "lab-a"}))
    board.given(membership=membership.with_lease(world.store.lease_envelopes()[KEY.node_id]))
    await settle(teller, board, conditions, clock)
    board.given(is_metered=True)
    await settle(teller, board, conditions, clock)
    assert [(status.labels, status.metered) for status in published] == [
        ({}, False),
        ({"site": "lab-a"}, False),
        ({"site": "lab-a"}, True),
    ]
    assert {status.reported_at for status in published} == {clock.now()}


def test_what_was_told_is_not_told_again() -> None:
    teller = StatusTeller(board_with(), list[NodeStatus]().append, FakeClock())
    assert teller.plan(OwnStatus(None, None), 0).does is None
    assert teller.plan(OwnStatus(BARE, None), 0).does == Tell(BARE)
    assert teller.plan(OwnStatus(BARE, BARE), 0).does is None


@pytest.mark.parametrize(
    ("session", "says"),
    [
        (Session(), None),
        (Session(1, is_connected=True), None),
        (Session(error=RegistryUnavailableError("no answer within 10 s")), ""),
        (Session(error=NoRelayError("WRONG_VERSION_NUMBER", hint="a portal")), "WRONG_VERSION_NUMBER; a portal"),
        (Session(error=UntrustedError("another certificate", hint="a proxy")), "another certificate; a proxy"),
        (Session(error=RegistryAuthError("revoked")), ""),
    ],
)
def test_who_answers_in_the_brokers_place_is_told_from_nobody(session: Session, says: str | None) -> None:
    assert broker_away(Broker(session)) == says
