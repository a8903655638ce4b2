"""Access rules: who may make which, what they come to, and which documents the registry signs."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from authority_world import world  # noqa: F401 (a fixture)
from registry_world import World
from telling import refuses

from edgelink.errors import EdgelinkError, RegistryError, UsageError
from edgelink.protocol.keys import Kind, NodeKey, open_envelope
from edgelink.protocol.payloads import MAX_ACCESS_RANGES, MAX_PAYLOAD_BYTES, Lease, NodeAccess, PortAccess, Role
from edgelink.relay.access import AccessRules, is_meant, parse_ports, ranges_of, resolve
from edgelink.relay.lease_changes import LeaseChange
from edgelink.relay.records import AccessRule

RELAY = NodeKey.generate()


def rules_of(world: World) -> AccessRules:
    return world.authority.access


def allow(world: World, target: str, ports: str, source: str) -> AccessRule:
    rule = rules_of(world).rule(target, ports, source)
    rules_of(world).allow([rule], caller="ops")
    return rule


def open_at(world: World, lease: Lease) -> list[tuple[str, list[str] | None]]:
    """Which ports of a node are open for which addresses, as its signed document says."""
    _, envelope = rules_of(world).documents()[lease.node_id]
    document = open_envelope(envelope, Kind.ACCESS, NodeAccess, world.keys.verify_key_b64)
    assert (document.node_id, document.network_id) == (lease.node_id, world.keys.network_id)
    return [
        (
            f"{opening.protocol}/{opening.first}-{opening.last}",
            None if opening.sources is None else [f"{first}-{last}" for first, last in opening.sources],
        )
        for opening in document.openings
    ]


def only(lease: Lease) -> list[str]:
    return [f"{lease.overlay_ip}-{lease.overlay_ip}"]


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("tcp/8888", ("tcp", 8888, 8888)),
        ("udp/5000-5010", ("udp", 5000, 5010)),
        ("tcp/1-65535", ("tcp", 1, 65535)),
        ("22", ("tcp", 22, 22)),
    ],
)
def test_ports_are_read(text: str, ports: tuple[str, int, int]) -> None:
    assert parse_ports(text) == ports


@pytest.mark.parametrize(
    "text", ["", "-1", "tcp/", "tcp/0", "tcp/65536", "tcp/90-80", "icmp/1", "tcp/80,81", "TCP/80", "tcp/٨", "tcp/8\n"]
)
def test_other_ports_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_ports(text)


def test_addresses_become_ranges() -> None:
    network = IPv4Network("10.10.0.0/24")
    assert ranges_of([network[3], network[1], network[2], network[9]]) == (
        (network[1], network[3]),
        (network[9], network[9]),
    )
    assert ranges_of([]) == ()


def test_each_selector_means_its_nodes(world: World) -> None:
    """A relay's machine that is the head as well is meant by both."""
    relay = world.authority.ensure_relay_lease(RELAY, "relay")
    head, edge = world.join("cloud", Role.HEAD), world.join("edge-1", labels={"site": "lab"})
    both = head.model_copy(update={"is_relay": True})
    table = {
        "all": (relay, head, edge, both),
        "relay": (relay, both),
        "head": (head, both),
        "edge": (edge,),
        "site=lab": (edge,),
        "site=other": (),
        head.node_id: (head, both),
    }
    for selector, meant in table.items():
        assert tuple(lease for lease in (relay, head, edge, both) if is_meant(selector, lease)) == meant, selector


def test_a_rule_opens_ports_of_its_target_to_its_source_alone(world: World) -> None:
    head, edge, other = world.join("cloud", Role.HEAD), world.join("edge-1"), world.join("edge-2")
    allow(world, "head", "tcp/8888", "edge-1")
    assert open_at(world, head) == [("tcp/8888-8888", only(edge))]
    assert open_at(world, edge) == open_at(world, other) == []


def test_rules_for_the_same_ports_add_up(world: World) -> None:
    head, edge, other = world.join("cloud", Role.HEAD), world.join("edge-1"), world.join("edge-2")
    rule = allow(world, "head", "tcp/8888", "edge-1")
    allow(world, "head", "tcp/8888", "edge-2")
    assert int(other.overlay_ip) == int(edge.overlay_ip) + 1
    assert open_at(world, head) == [("tcp/8888-8888", [f"{edge.overlay_ip}-{other.overlay_ip}"])]
    rules_of(world).deny([rule])
    assert open_at(world, head) == [("tcp/8888-8888", only(other))]
    everybody = allow(world, "head", "tcp/8888", "all")
    assert open_at(world, head) == [("tcp/8888-8888", None)]
    rules_of(world).deny([everybody])
    assert open_at(world, head) == [("tcp/8888-8888", only(other))], "the other rule stands"


def test_a_label_that_a_machine_gives_itself_lets_it_in_nowhere(world: World) -> None:
    """A token for any edge would otherwise be one for each group of edges."""
    head = world.join("cloud", Role.HEAD)
    allow(world, "head", "tcp/8888", "site=lab")
    key = NodeKey.generate()
    liar = world.lease(world.enrol(key, world.token(), "liar", labels={"site": "lab"}))
    assert liar.labels == {"site": "lab"}
    assert open_at(world, head) == []
    world.authority.change_lease("liar", LeaseChange(labels={"site": "lab"}))
    assert open_at(world, head) == [("tcp/8888-8888", only(liar))], "the operator has said so"
    world.authority.change_lease("liar", LeaseChange(unlabel=("site",)))
    assert open_at(world, head) == []


def test_a_label_of_the_token_counts_whatever_the_machine_says(world: World) -> None:
    head = world.join("cloud", Role.HEAD)
    allow(world, "head", "tcp/8888", "site=lab")
    token = world.token(labels={"site": "lab"})
    edge = world.lease(world.enrol(NodeKey.generate(), token, "edge-1", labels={"site": "x", "gpu": "no"}))
    assert edge.given_labels == ("site",)
    assert open_at(world, head) == [("tcp/8888-8888", only(edge))]


@pytest.mark.parametrize("leaves", [False, True])
def test_what_a_node_said_of_itself_does_not_become_the_operators_word_with_its_successor(
    world: World,
    leaves: bool,
) -> None:
    head = world.join("cloud", Role.HEAD)
    allow(world, "head", "tcp/8888", "site=lab")
    world.enrol(NodeKey.generate(), world.token(), "liar", labels={"site": "lab"})
    token = world.token(replaces="liar")
    if leaves:
        world.authority.release("liar")
    successor = world.lease(world.enrol(NodeKey.generate(), token, "liar"))
    assert successor.labels == {"site": "lab"}
    assert open_at(world, head) == []


def test_nobody_inherits_a_right_with_a_free_hostname(world: World) -> None:
    """A machine may choose its hostname where the token does not."""
    head = world.join("cloud", Role.HEAD)
    world.join("franka-1")
    allow(world, "head", "tcp/8888", "franka-1")
    world.authority.release("franka-1", at_once=True)
    world.join("franka-1")
    assert open_at(world, head) == []


def test_a_machine_in_the_place_of_another_takes_its_rules_over(world: World) -> None:
    head, robot = world.join("cloud", Role.HEAD), world.join("franka-1")
    allow(world, "head", "tcp/8888", "franka-1")
    allow(world, "franka-1", "tcp/22", "head")
    successor = world.lease(world.enrol(NodeKey.generate(), world.token(replaces="franka-1"), "fresh"))
    assert successor.node_id != robot.node_id
    assert open_at(world, head) == [("tcp/8888-8888", only(successor))]
    assert open_at(world, successor) == [("tcp/22-22", only(head))]


def test_rules_follow_a_node_that_is_renamed_or_moved(world: World) -> None:
    head = world.join("cloud", Role.HEAD)
    world.join("edge-1")
    allow(world, "head", "tcp/8888", "edge-1")
    moved = world.authority.change_lease("edge-1", LeaseChange("robot", IPv4Address("10.10.0.99")))
    assert open_at(world, head) == [("tcp/8888-8888", only(moved))]


def test_a_node_that_is_not_there_is_refused_by_name(world: World) -> None:
    for target, source in (("frnka-1", "edge"), ("edge", "frnka-1"), ("edge", "=x"), ("edge", "")):
        with pytest.raises(RegistryError) as refused:
            rules_of(world).rule(target, "tcp/1", source)
        assert refused.value.condition_reason == "NodeUnknown"


def test_rules_are_recorded_all_or_none_with_who_and_when(world: World) -> None:
    one, two = (rules_of(world).rule("edge", f"tcp/{port}", "head") for port in (1, 2))
    assert rules_of(world).allow([one, one], caller="ops") == [one]
    assert rules_of(world).allow([one, two], caller="eve") == [two], "the first stands as it was"
    assert [(made.rule, made.made_by) for made in rules_of(world).all()] == [(one, "ops"), (two, "eve")]
    assert {made.made_at for made in rules_of(world).all()} == {world.clock.now().isoformat()}
    unknown = rules_of(world).rule("edge", "tcp/3", "head")
    with refuses(RegistryError, "edge tcp/3 from head", reason="RuleUnknown"):
        rules_of(world).deny([one, unknown])
    assert [made.rule for made in rules_of(world).all()] == [one, two]
    rules_of(world).deny([one], caller="eve")
    world.reopen()
    assert [made.rule for made in rules_of(world).all()] == [two]
    history = [(entry["action"], entry["detail"], entry["caller"]) for entry in world.store.history()]
    assert history == [
        ("access allowed", "edge tcp/1 from head", "ops"),
        ("access allowed", "edge tcp/2 from head", "eve"),
        ("access denied", "edge tcp/1 from head", "eve"),
    ]


def test_there_is_an_end_of_rules(world: World) -> None:
    with refuses(RegistryError, 256, reason="TooManyRules"):
        rules_of(world).allow([rules_of(world).rule("edge", f"tcp/{port}", "head") for port in range(1, 258)])
    assert rules_of(world).all() == []
    rules_of(world).allow([rules_of(world).rule("edge", f"tcp/{port}", "head") for port in range(1, 257)])


def test_a_network_without_rules_has_no_documents(world: World) -> None:
    world.join("edge-1")
    assert rules_of(world).documents() == {}
    rule = allow(world, "edge", "tcp/1", "head")
    rules_of(world).deny([rule])
    (document, _) = next(iter(rules_of(world).documents().values()))
    assert document.openings == (), "who had a rule is told that it is gone"


def test_numbers_of_documents_grow_with_their_content(world: World) -> None:
    """Who kept one number has kept the content that goes with it; the same content is not signed anew."""
    head, edge = world.join("cloud", Role.HEAD), world.join("edge-1")
    steps: list[Callable[[], object]] = [
        lambda: allow(world, "head", "tcp/1", "edge"),
        lambda: world.join("edge-2"),
        lambda: world.authority.change_lease("edge-2", LeaseChange(rank=7)),
        lambda: rules_of(world).deny([rules_of(world).rule("head", "tcp/1", "edge")]),
        world.reopen,
    ]
    numbers: dict[str, list[tuple[tuple[int, int], object]]] = {head.node_id: [], edge.node_id: []}
    for step in steps:
        step()
        for node_id, told in numbers.items():
            document, envelope = rules_of(world).documents()[node_id]
            assert rules_of(world).documents()[node_id] == (document, envelope)
            told.append(((document.generation, document.epoch), document.openings))
    for told in numbers.values():
        assert [number for number, _ in told] == sorted(number for number, _ in told)
        assert len(dict(told)) == len(set(told)), "one number, one content"
    changed = [number for number, _ in numbers[head.node_id]]
    assert changed[1] == changed[2], "a rank opens nothing"
    assert len({number for number, _ in numbers[edge.node_id][:4]}) == 1


def test_a_restored_registry_counts_more_and_speaks_also_without_rules(world: World) -> None:
    """Its nodes may keep rules that were made after the backup."""
    relay = world.authority.ensure_relay_lease(RELAY, "relay")
    edge = world.join("edge-1")
    assert rules_of(world).documents() == {}
    world.store.note_restoration(relay.node_id, keep_addresses=False)
    document, _ = rules_of(world).documents()[edge.node_id]
    assert document.generation > 0
    assert document.openings == ()


def test_what_does_not_fit_is_refused_and_what_outgrows_is_closed(tmp_path: Path) -> None:
    """Every other address: the most ranges."""
    network = IPv4Network("10.0.0.0/16")
    world = World(tmp_path / "state", cidr=network)
    template = world.join("edge-1", labels={"side": "a"})

    def lease(number: int, **change: object) -> Lease:
        key = f"{number:a>26}".translate(str.maketrans("0189", "wxyz"))
        return template.model_copy(update={"node_id": key, "overlay_ip": network[number], **change})

    head = template.model_copy(update={"role": Role.HEAD})
    fits, outgrown = AccessRule("head", "tcp", 1, 1, "side=a"), AccessRule("head", "tcp", 2, 2, "edge")
    whole = AccessRule("head", "tcp", 3, 3, "all")
    leases = [head, *(lease(2 * number + 2) for number in range(4000))]
    found = resolve([fits, outgrown, whole], leases)
    assert found.left_out == {outgrown}
    assert [opening.first for opening in found.openings[head.node_id]] == [1, 3]
    NodeAccess(network_id="n", node_id=head.node_id, generation=0, epoch=0, openings=found.openings[head.node_id])


def test_the_largest_document_fits_into_one_message(world: World) -> None:
    """Ranges in the longest writing, none beside another."""
    ends = [IPv4Address(int(IPv4Address("172.100.100.100")) + 4 * number) for number in range(MAX_ACCESS_RANGES)]
    opening = PortAccess(protocol="tcp", first=10000, last=65535, sources=tuple((first, first + 1) for first in ends))
    document = NodeAccess(network_id="n" * 16, node_id="a" * 26, generation=1, epoch=1, openings=(opening,))
    assert len(world.keys.sign(Kind.ACCESS, document).model_dump_json().encode()) < MAX_PAYLOAD_BYTES


def test_every_refusal_says_what_to_do(world: World) -> None:
    access = rules_of(world)
    for call in (lambda: access.rule("edge", "ssh", "head"), lambda: access.rule("nobody", "tcp/1", "head")):
        with pytest.raises(EdgelinkError) as refused:
            call()
        assert refused.value.hint
