"""Whom a node asks over the overlay, and of whom it waits for an answer: facts in, targets out."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest
from head_world import member
from registry_world import World

from edgelink.config import Config
from edgelink.facts.derive import Answers, Network, derive_peers, peers_connected, targets
from edgelink.overlay.targets import Targets
from edgelink.protocol.keys import NodeKey
from edgelink.protocol.membership import Membership
from edgelink.protocol.payloads import ClusterSpec, Directory, DirectoryEntry, Role
from edgelink.ray_cluster.held_run import HeldRun
from edgelink.testing.facts import board_with
from edgelink.testing.payloads import cluster_spec, entry

KEYS = {name: NodeKey.generate() for name in ("cloud", "edge-1")}


def numbered(number: int, name: str, role: Role = Role.EDGE) -> DirectoryEntry:
    known = {"node_id": KEYS[name].node_id} if name in KEYS else {}
    return entry(name, IPv4Address("10.10.0.0") + number, role=role, **known)


RELAY, RELAY_2 = numbered(1, "relay", Role.RELAY), numbered(2, "relay-2", Role.RELAY)
CLOUD, EDGE_1, EDGE_2, EDGE_3 = numbered(3, "cloud", Role.HEAD), *(numbered(3 + n, f"edge-{n}") for n in (1, 2, 3))
EVERYBODY = (RELAY, RELAY_2, CLOUD, EDGE_1, EDGE_2, EDGE_3)


@pytest.fixture(scope="module")
def memberships(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Membership]:
    """The memberships of the head and of one edge."""
    world, found = World(tmp_path_factory.mktemp("registry")), {}
    for name, role in (("cloud", Role.HEAD), ("edge-1", Role.EDGE)):
        token = world.token(role)
        found[name] = world.membership(KEYS[name], token, world.enrol(KEYS[name], token, name, role=role))
    return found


def spec(*members: DirectoryEntry) -> ClusterSpec:
    return cluster_spec(CLOUD, *members)


def network(running: Membership | None, *entries: DirectoryEntry) -> Network:
    nobody = frozenset[str]()
    directory = Directory(network_id="n", epoch=1, entries=entries)
    return Network(running, directory, None, nobody, nobody, None, nobody, ())


def ips(*entries: DirectoryEntry) -> dict[str, IPv4Address]:
    return {entry.hostname: entry.overlay_ip for entry in entries}


def test_an_edge_needs_the_head_and_a_relay_and_asks_everybody_else(memberships: dict[str, Membership]) -> None:
    now = replace(network(memberships["edge-1"], *EVERYBODY), cluster_spec=spec(CLOUD, EDGE_1, EDGE_2))
    everybody = frozenset(one.node_id for one in EVERYBODY)
    now = replace(now, online=everybody, metered=frozenset({EDGE_1.node_id, EDGE_3.node_id}))
    found = targets(now, relays_carry=True)
    assert found is not None
    assert replace(found, identities={}) == Targets(
        needed=ips(CLOUD),
        relays=ips(RELAY, RELAY_2),
        others=ips(EDGE_2, EDGE_3),
        metered=frozenset({"edge-3"}),
        provers=frozenset({"cloud"}),
    )
    assert found.identities.keys() == found.all.keys()
    assert found.identities["edge-2"].verify_key == EDGE_2.verify_key


@pytest.mark.parametrize(("signed", "provers"), [(spec(CLOUD, EDGE_1), {"cloud"}), (None, set())])
def test_a_head_that_has_a_cluster_has_to_prove_itself(
    memberships: dict[str, Membership], signed: ClusterSpec | None, provers: set[str]
) -> None:
    found = targets(replace(network(memberships["edge-1"], *EVERYBODY), cluster_spec=signed), relays_carry=True)
    assert found is not None
    assert found.provers == provers


@pytest.mark.parametrize(
    ("online", "run_members", "counted"),
    [
        ([], [], []),
        ([EDGE_1, EDGE_3], [], [EDGE_1]),
        ([EDGE_1], [EDGE_2, CLOUD], [EDGE_1, EDGE_2]),
    ],
    ids=["all switched off", "edge-3 is no member", "a run relies on one gone"],
)
def test_the_head_counts_members_that_are_online_or_that_a_run_relies_on(
    memberships: dict[str, Membership],
    online: list[DirectoryEntry],
    run_members: list[DirectoryEntry],
    counted: list[DirectoryEntry],
) -> None:
    """A robot that was switched off is neither. None of them keeps Ray from its start."""
    now = replace(
        network(memberships["cloud"], *EVERYBODY),
        cluster_spec=spec(CLOUD, EDGE_1, EDGE_2),
        online=frozenset(one.node_id for one in online),
        run=HeldRun("pid 1", tuple((one, rank) for rank, one in enumerate(run_members))),
    )
    found = targets(now, relays_carry=True)
    assert found is not None
    assert (found.needed, found.relays, found.members) == ({}, ips(RELAY, RELAY_2), ips(*counted))
    assert found.others == ips(*(one for one in (EDGE_1, EDGE_2, EDGE_3) if one not in counted))


@pytest.mark.parametrize("members", [(), (CLOUD, EDGE_1)], ids=["a head without Ray", "a head with Ray"])
def test_the_silence_of_a_node_without_ray_is_told_as_soon_as_a_members(
    memberships: dict[str, Membership], members: tuple[DirectoryEntry, ...]
) -> None:
    """It is asked as often, as long as it is online; others, such as an edge, need not know."""
    now = replace(
        network(memberships["cloud"], *EVERYBODY),
        cluster_spec=spec(*members) if members else None,
        online=frozenset({EDGE_3.node_id}),
        without_ray=frozenset({EDGE_2.node_id, EDGE_3.node_id}),
    )
    found = targets(now, relays_carry=True)
    assert found is not None
    assert found.members == ips(EDGE_3)
    of_edge = targets(replace(now, running=memberships["edge-1"]), relays_carry=True)
    assert of_edge is not None
    assert not of_edge.members


def test_an_existing_overlay_needs_no_relay(memberships: dict[str, Membership]) -> None:
    """Its relays are nodes like any other."""
    found = targets(network(memberships["edge-1"], RELAY, CLOUD, EDGE_1), relays_carry=False)
    assert found is not None
    assert replace(found, identities={}) == Targets(needed=ips(CLOUD), others=ips(RELAY))


@pytest.mark.parametrize(("size", "members", "asked"), [(50, 2, 47), (51, 2, 2), (120, 50, 50), (120, 51, 0)])
def test_in_a_large_network_nobody_asks_everybody(
    memberships: dict[str, Membership], size: int, members: int, asked: int
) -> None:
    """Of more than 50 nodes those in the cluster are asked, and of a larger cluster nobody who is not needed."""
    others = [numbered(10 + number, f"robot-{number}") for number in range(size - 3)]
    now = network(memberships["edge-1"], RELAY, CLOUD, EDGE_1, *others)
    found = targets(replace(now, cluster_spec=spec(CLOUD, EDGE_1, *others[:members])), relays_carry=True)
    assert found is not None
    assert (found.needed, found.relays, len(found.others)) == (ips(CLOUD), ips(RELAY), asked)


def test_the_head_asks_whom_ray_lists_however_many_have_lost_the_relay(memberships: dict[str, Membership]) -> None:
    """Their daemons may be dead, or the head has started while the relay is away: each may be cut off, too."""
    others = [numbered(10 + number, f"robot-{number}") for number in range(60)]
    now = network(memberships["cloud"], RELAY, CLOUD, *others)
    alive = tuple(member(str(one.overlay_ip), rank) for rank, one in enumerate(others) if rank > 0)
    found = targets(replace(now, cluster_spec=spec(CLOUD, *others), ray_members=alive), relays_carry=True)
    assert found is not None
    assert (found.members, found.others) == ({}, ips(*others[1:]))
    assert found.alive == found.others.keys()


def test_before_the_directory_is_known_nothing_is_known(memberships: dict[str, Membership]) -> None:
    now = network(memberships["edge-1"], CLOUD)
    assert targets(replace(now, directory=None), relays_carry=True) is None
    assert targets(replace(now, running=None), relays_carry=True) is None


@pytest.mark.parametrize(("kind", "relays"), [("easytier", ips(RELAY)), ("existing", {})])
def test_the_configuration_says_whether_relays_carry(
    memberships: dict[str, Membership], kind: str, relays: dict[str, IPv4Address]
) -> None:
    config = Config.model_validate({"overlay": {"kind": kind}})
    board = board_with(config=config, membership=memberships["edge-1"])
    derive_peers(board, config)
    board.given(directory=Directory(network_id="n", epoch=1, entries=(RELAY, CLOUD)))
    assert board.facts.targets is not None
    assert board.facts.targets.relays == relays


@pytest.mark.parametrize(
    ("answering", "are_enough"),
    [
        ({"cloud", "relay"}, True),
        ({"cloud", "relay-2", "edge-2"}, True),
        ({"cloud"}, False),
        ({"relay", "relay-2"}, False),
        (set(), False),
    ],
)
def test_all_that_are_needed_and_one_relay_are_enough(answering: set[str], *, are_enough: bool) -> None:
    asked = Targets(needed=ips(CLOUD), relays=ips(RELAY, RELAY_2), members=ips(EDGE_2))
    assert asked.are_enough(answering, ()) is are_enough


def test_who_needs_nobody_waits_for_nobody() -> None:
    assert Targets(members=ips(EDGE_2), others=ips(EDGE_3)).are_enough((), ())


BOTH, PROVERS = {"cloud": 1.0, "relay": 1.0}, frozenset({"cloud"})
NEEDED = Targets(ips(CLOUD), ips(RELAY))


@pytest.mark.parametrize(
    ("is_up", "asked", "answering", "proven", "is_connected"),
    [
        (True, NEEDED, BOTH, set(), True),
        (True, NEEDED, {"cloud": 1.0}, set(), False),
        (False, Targets(ips(CLOUD)), {"cloud": 1.0}, set(), False),
        (True, None, {"cloud": 1.0}, set(), False),
        (True, Targets(), {}, set(), True),
        (True, replace(NEEDED, provers=PROVERS), BOTH, {"relay"}, False),
        (True, replace(NEEDED, provers=PROVERS), BOTH, {"cloud"}, True),
        (True, replace(NEEDED, provers=PROVERS), {"relay": 1.0}, {"cloud"}, False),
    ],
    ids=[
        "all answer",
        "no relay",
        "no device",
        "nobody is known",
        "nobody is needed",
        "the head is unproven",
        "the head is proven",
        "the head was proven and is silent",
    ],
)
def test_ray_may_start_once_those_that_it_needs_answer(
    is_up: bool, asked: Targets | None, answering: dict[str, float], proven: set[str], is_connected: bool
) -> None:
    assert peers_connected(Answers(is_up, asked, answering, frozenset(proven))) is is_connected
