"""What the roles decide: ranks, readiness, what is dialled; and what a daemon says and refuses from its start on."""

from __future__ import annotations

import os
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from registry_world import World
from telling import Words

from edgelink.conditions import Status
from edgelink.config import Config, Paths
from edgelink.daemon.head import Head
from edgelink.daemon.this_machine import ThisMachine
from edgelink.errors import ConfigError
from edgelink.member.enrolment import require_role
from edgelink.overlay.rpc_guard import rpc_guard
from edgelink.protocol.held_secret import NetworkTold
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.payloads import ConditionReport, Directory, DirectoryEntry, NodeStatus, Role
from edgelink.ray_cluster.pause import Pause
from edgelink.ray_cluster.ray_members import RayMember
from edgelink.ray_cluster.versions import Versions
from edgelink.relay.relay_addresses import overlay_peers, stun_servers
from edgelink.runs.progress import missing_in_words
from edgelink.runs.ranks import could_take_part, rank_map
from edgelink.runs.readiness import NodeFacts, NodeReadiness, readiness, unclaimed
from edgelink.runs.run_requests import node_count
from edgelink.testing import FakeClock
from edgelink.testing.facts import give, settle
from edgelink.testing.payloads import entry


def directory(*entries: DirectoryEntry) -> Directory:
    return Directory(network_id="n", epoch=1, entries=entries)


def test_ranks_are_dense_in_the_order_of_the_preferred_ones() -> None:
    """RLinf wants no gaps; the relay takes no part."""
    everybody = directory(
        entry("edge-b", "10.10.0.5", 4),
        entry("relay", "10.10.0.1", role=Role.RELAY),
        entry("cloud", "10.10.0.2", 0),
        entry("edge-a", "10.10.0.4", 2),
    )
    found = rank_map(could_take_part(everybody))
    assert [(e.hostname, rank) for e, rank in found] == [("cloud", 0), ("edge-a", 1), ("edge-b", 2)]


def status(**conditions: Status) -> NodeStatus:
    return NodeStatus(
        node_id="a" * 26,
        online=True,
        conditions=tuple(
            ConditionReport(type=kind, status=value, reason="Because", message="of this")
            for kind, value in conditions.items()
        ),
    )


EDGE = entry("edge-1", "10.10.0.3", 1)
ALL_TRUE = dict.fromkeys(("Leased", "RegistryConnected", "OverlayUp", "PeersReachable", "RayJoined"), Status.TRUE)
IN_RAY = RayMember("r", "10.10.0.3", 1, True, "edge-1")


def edge_is(status: NodeStatus | None, **known: Any) -> NodeReadiness:
    return readiness(NodeFacts(1, EDGE, status, **known))


@pytest.mark.parametrize(
    ("found", "step", "said"),
    [
        (unclaimed(1), "Enrolled", "token create"),
        (edge_is(None), "Started", "never seen"),
        (edge_is(NodeStatus(node_id="a" * 26, online=False)), "Started", "offline"),
        (edge_is(status(**{**ALL_TRUE, "OverlayUp": Status.FALSE})), "OverlayUp", "of this"),
        (edge_is(status(**ALL_TRUE)), "RayJoined", "waiting for Ray"),
        (edge_is(None, member=IN_RAY), "RayJoined", "alive in Ray"),
    ],
)
def test_a_missing_node_is_named_with_the_step_it_stands_at(found: NodeReadiness, step: str, said: str) -> None:
    """Whoever waits is told which machine to look at, and for what."""
    assert (found.step, found.ready) == (step, said == "alive in Ray")
    assert said in found.message


IN_TOUCH = status(**ALL_TRUE)
STARTING = status(**{**ALL_TRUE, "RayJoined": Status.FALSE})
CUT_OFF = status(**{**ALL_TRUE, "PeersReachable": Status.FALSE})
LOST = NodeStatus(node_id="a" * 26, online=False)
STOPPED = NodeStatus(node_id="a" * 26, online=False, phase="Stopping")


@pytest.mark.parametrize(
    ("told", "states"),
    [
        # that Ray lists as alive, paused or not; that it does not list, silent or not
        (None, ("ready", "paused", "silent", "silent")),
        (IN_TOUCH, ("ready", "paused", "coming", "silent")),
        (CUT_OFF, ("ready", "paused", "coming", "coming")),
        (STARTING, ("ready", "paused", "coming", "coming")),
        (LOST, ("ready", "paused", "silent", "silent")),
        (STOPPED, ("off", "off", "off", "off")),
    ],
)
def test_every_cell_of_status_ray_and_echo_is_decided(told: NodeStatus | None, states: tuple[str, ...]) -> None:
    """Only a node that Ray lists and nobody misses is ready. Whose daemon is away is told so all the same."""
    cells = [
        edge_is(told, member=IN_RAY),
        edge_is(told, member=IN_RAY, pause=Pause(0.0, "echo"), is_silent=True),
        edge_is(told),
        edge_is(told, is_silent=True),
    ]
    assert tuple(cell.state for cell in cells) == states
    assert [cell.ready for cell in cells] == [state == "ready" for state in states]
    assert [cell.told_by for cell in cells] == ["echo" if state == "paused" else None for state in states]
    assert bool(cells[0].warnings) is (told is LOST)


@pytest.mark.parametrize("told", [None, LOST, STOPPED])
def test_who_has_left_is_off_whatever_else_is_known_of_it(told: NodeStatus | None) -> None:
    left = edge_is(told, is_silent=True, has_left=True)
    assert (left.state, left.brief) == ("off", "left")


def test_who_says_that_it_has_left_has_also_where_the_registry_does_not_remember_it() -> None:
    """An older relay does not, nor one whose disk is full: `up` on that machine would not bring it back."""
    left = edge_is(STOPPED.model_copy(update={"phase": "Left"}))
    assert (left.state, left.brief) == ("off", "left")


def test_who_is_heard_again_has_not_left() -> None:
    assert edge_is(IN_TOUCH, has_left=True).state == "coming"


@pytest.mark.parametrize(
    ("reason", "versions", "why"),
    [
        ("VersionMismatch", ("2.60.0", "3.10.12"), "(Python 3.10.12, head has 3.11.7)"),
        ("Joining", ("2.60.0", "3.11.2"), "joining"),
        ("PortBusy", ("2.60.0", "3.11.2"), "(PortBusy)"),
        ("DependencyMissing", (None, "3.13.0"), "(DependencyMissing)"),
    ],
)
def test_why_ray_is_not_joined_is_said_in_some_words(
    reason: str, versions: tuple[str | None, str], why: str, words: Words
) -> None:
    """Of two versions both sides are named; the Python of a node without Ray is its daemon's, and no reason."""
    told = NodeStatus(
        node_id="a" * 26,
        online=True,
        ray_version=versions[0],
        python_version=versions[1],
        conditions=(
            *(ConditionReport(type=kind, status=Status.TRUE, reason="R", message="m") for kind in list(ALL_TRUE)[:-1]),
            ConditionReport(type="RayJoined", status=Status.FALSE, reason=reason, message="at length"),
        ),
    )
    found = edge_is(told, head=Versions("2.60.0", "3.11.7"))
    assert (found.step, found.brief.endswith(why)) == ("RayJoined", True)
    words.on("nodes", found.brief)


def test_an_overlay_on_its_way_is_not_blamed_on_its_peers(words: Words) -> None:
    """Its device is there, and nobody was asked yet."""
    told = status(**{**ALL_TRUE, "PeersReachable": Status.UNKNOWN})
    waiting = [
        condition.model_copy(update={"reason": "Connecting"}) if condition.type == "PeersReachable" else condition
        for condition in told.conditions
    ]
    assert edge_is(told.model_copy(update={"conditions": waiting})).brief == "overlay coming up"
    found = edge_is(told)
    assert (found.step, found.brief.endswith("(Because)")) == ("PeersReachable", True)
    words.on("nodes", found.brief)


def test_what_will_be_refused_is_said_before_the_overlay_is_up(words: Words) -> None:
    """It can be mended meanwhile; what differs without keeping the node out is told also when it has joined."""
    head = Versions("2.60.0", "3.11.7", {"torch": "2.5.1"})
    told = status(**{**ALL_TRUE, "OverlayUp": Status.FALSE}).model_copy(
        update={"ray_version": "2.59.0", "python_version": "3.11.7", "packages": {"torch": "2.4.0"}}
    )
    found = edge_is(told, head=head)
    assert found.step == "OverlayUp"
    assert all(part in found.brief for part in ("(Because)", "(Ray 2.59.0, head has 2.60.0)"))
    words.on("nodes", found.brief)
    joined = edge_is(told, member=IN_RAY, head=head)
    assert (joined.brief, joined.warnings) == ("ready", ("torch 2.4.0, head has 2.5.1",))


@pytest.mark.parametrize("wrong", [{}, {"num_nodes": 0}, {"num_nodes": "3"}, {"num_nodes": True}, []])
def test_num_nodes_has_to_be_a_count(wrong: object) -> None:
    """Refused before anyone waits."""
    with pytest.raises(ConfigError, match="num_nodes"):
        node_count(wrong)


def test_nodes_dial_every_listener_at_every_advertised_address() -> None:
    """Schemes and ports are the listeners', hosts are the advertised ones."""
    listeners = ("tcp://0.0.0.0:11010", "udp://0.0.0.0:11011")
    assert overlay_peers(listeners, ("203.0.113.10", "relay.example")) == (
        "tcp://203.0.113.10:11010",
        "tcp://relay.example:11010",
        "udp://203.0.113.10:11011",
        "udp://relay.example:11011",
    )


def test_nodes_ask_every_stun_port_at_every_advertised_address() -> None:
    """The two ports of one address come first: two servers tell the kind of NAT. IPv6 is not served."""
    assert stun_servers((3478, 3479), ("203.0.113.10", "[2001:db8::1]", "relay.example")) == (
        "203.0.113.10:3478",
        "203.0.113.10:3479",
        "relay.example:3478",
        "relay.example:3479",
    )


def head_in(directory: Path) -> Head:
    """A head with nothing around it."""
    return Head(Config(), Paths(directory / "state", directory / "run"), FakeClock(), ThisMachine(), None)


async def test_a_daemon_says_how_it_is_before_it_is_a_member(tmp_path: Path) -> None:
    """`status` works from the first moment: who this is, and what it waits for."""
    told = head_in(tmp_path).observation.status()
    assert (told["role"], told["hostname"], told["phase"], told["ready"]) == ("head", None, "Starting", False)
    assert [condition["type"] for condition in told["conditions"]][:2] == ["Leased", "RegistryConnected"]


def test_what_listens_on_the_overlay_looks_when_the_overlay_comes_and_goes(tmp_path: Path) -> None:
    """A scraper is not to wait for the next look."""
    member = head_in(tmp_path)
    wakeup = member.observation.metrics.server.wakeup
    wakeup._event.clear()
    member.base.conditions.set_true("OverlayUp", "DeviceConfirmed", "et0 is up")
    assert wakeup.is_set
    wakeup._event.clear()
    member.base.conditions.set_false("OverlayUp", "DeviceMissing", "et0 is gone")
    assert wakeup.is_set


async def test_what_revoked_nodes_held_is_dropped_from_then_on(tmp_path: Path) -> None:
    """Looked at at once, and until the registry says otherwise; the same again costs nothing; never its own address."""
    member, world = head_in(tmp_path), World(tmp_path / "relay")
    membership = world.authority.relay_membership(NodeKey.generate(), "relay")
    give(member.base.board, membership=membership)
    own, other = membership.lease.overlay_ip, IPv4Address("10.10.0.9")
    own_interface = IPv4Interface(f"{own}/{membership.lease.cidr.prefixlen}")
    guard, exposure = member.overlay.overlay.guard, member.node.host.exposure
    guard.doubts.clear()
    give(member.base.board, network=NetworkTold(revoked_ips=(other, own)))
    await settle(exposure, member.base.board, member.base.conditions, member.base.clock)
    assert guard.is_in_doubt
    rules = exposure.own.rules
    assert rules is not None
    assert (rules.overlay_ip, rules.revoked) == (own_interface, {other})
    assert guard.table == rpc_guard(15888, "et0", rules)
    guard.doubts.clear()
    give(member.base.board, network=NetworkTold(revoked_ips=(own, other)))
    await settle(exposure, member.base.board, member.base.conditions, member.base.clock)
    assert not guard.is_in_doubt
    give(member.base.board, network=NetworkTold(revoked_ips=()))
    await settle(exposure, member.base.board, member.base.conditions, member.base.clock)
    assert guard.table == rpc_guard(15888, "et0", replace(rules, revoked=frozenset()))


async def test_without_nf_tables_it_is_said_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Words
) -> None:
    """An EasyTier that runs already goes on: the routing rule needs no nf_tables."""
    nft = tmp_path / "nft"
    nft.write_text("#!/bin/sh\necho 'Could not process rule: Operation not supported' >&2\nexit 1\n")
    nft.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    member = head_in(tmp_path)
    await member.overlay.overlay.guard.keep()
    await settle(member.node.host.exposure, member.base.board, member.base.conditions, member.base.clock)
    shielded = member.base.conditions.get("Shielded")
    assert (shielded.status, shielded.reason) == (Status.FALSE, "FirewallFailed")
    for part in ("EasyTier's RPC", "routing rule", "Operation not supported"):
        assert part in shielded.message
    words(shielded.message)


async def test_whoever_runs_the_wrong_daemon_is_told_the_right_one(tmp_path: Path) -> None:
    """The hint names a command that exists: on a relay's machine, `edgelink relay`."""
    world = World(tmp_path)
    key = NodeKey.generate()
    membership = world.authority.relay_membership(key, "relay")
    with pytest.raises(ConfigError, match=r"enrolled as relay, not as edge.*`edgelink relay`"):
        require_role(membership, Role.EDGE)


def test_ranks_that_nobody_has_are_told_together() -> None:
    """With what to do said once, behind who is away."""
    away = NodeReadiness(1, "edge-1", "10.10.0.3", ready=False, step="Started", message="offline", state="silent")
    told = missing_in_words([away, unclaimed(2), unclaimed(3)])
    assert told.startswith("edge-1 at Started (offline); ranks 2, 3 at Enrolled")
    assert told.count("token create") == 1
    assert missing_in_words([unclaimed(2)]).startswith("rank 2 at Enrolled")
