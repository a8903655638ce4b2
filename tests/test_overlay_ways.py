"""By which device packets for members leave: which rules count, what the kernel is asked, and what its answers mean."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

import pytest
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from telling import Words

from edgelink.conditions import ConditionSet
from edgelink.facts.board import Board
from edgelink.facts.facts import Facts
from edgelink.overlay.config_file import OverlaySpec
from edgelink.overlay.kernel_routes import Answer, Question, Rule
from edgelink.overlay.link import LinkState
from edgelink.overlay.own_routes import PRIORITY, TABLE, OwnRoutes
from edgelink.overlay.way_watch import LookAround, WayWatch
from edgelink.overlay.ways import (
    Found,
    Ways,
    distinct,
    forwarded_elsewhere,
    judge,
    others_to_ask,
    questions,
    rules_before_ours,
)
from edgelink.testing import FakeClock
from edgelink.testing.facts import give, settle
from edgelink.testing.overlay import FakeLinks

OWN_IP, NETWORK, HEAD_IP = IPv4Address("10.10.0.3"), IPv4Network("10.10.0.0/24"), IPv4Address("10.10.0.2")
RELAY_IP = IPv4Address("10.10.0.1")
SPEC = OverlaySpec(
    hostname="edge-1",
    network_name="n",
    network_secret="s",
    overlay_ip=IPv4Interface("10.10.0.3/24"),
    peers=(),
    listeners=(),
    device="et0",
    mtu=1360,
    rpc_port=15888,
    instance_id="0b0e6b0e-2d3b-4b4e-9a53-0d7c6a6f0007",
)
ROOT, RAY = 0, 1234
LOCAL, MAIN = 255, 254
PLAIN = {(uid, source) for uid in (ROOT, RAY) for source in (None, str(OWN_IP))}
OVERLAYS = Answer(("et0",), table=TABLE, network=NETWORK, maker=233)


def told(priority: int, table: int, action: int = 1, flags: int = 0, **attributes: Any) -> Any:
    """A rule as the kernel tells of it."""
    message: Any = fibmsg()
    message["action"], message["flags"], message["tos"], message["src_len"], message["dst_len"] = action, flags, 0, 0, 0
    message["attrs"] = [("FRA_TABLE", table), *((f"FRA_{name.upper()}", value) for name, value in attributes.items())]
    message["attrs"] += [("FRA_PRIORITY", priority)] if priority else []
    return message


KERNELS, OURS = told(0, LOCAL, protocol=2), told(PRIORITY, TABLE, protocol=233)


def test_only_rules_before_ours_count() -> None:
    """The kernel's own for table local is no stranger's, one that somebody made like it is."""
    theirs = told(50, 100, protocol=3, uid_range=f"{RAY}:{RAY}")
    later = told(5000, 100)
    before, has_ours = rules_before_ours([KERNELS, theirs, OURS, later])
    assert (before, has_ours) == ([Rule(50, 100, users=range(RAY, RAY + 1), maker=3)], True)
    assert rules_before_ours([KERNELS, OURS]) == ([], True)


def test_without_our_rule_every_rule_counts() -> None:
    """As with an overlay that was there already."""
    before, has_ours = rules_before_ours([KERNELS, told(5000, 100), told(32766, MAIN, protocol=2)])
    assert (before, has_ours) == ([Rule(5000, 100)], False)


@pytest.mark.parametrize(
    ("rule", "asked"),
    [
        (Rule(50, 100), (Question(ROOT), True)),
        (Rule(50, 100, users=range(1000, 2000)), (Question(RAY), True)),
        (Rule(50, 100, users=range(2000, 3000)), (Question(2000), False)),
        (Rule(50, 100, mark=5), (Question(ROOT, mark=5), False)),
        (Rule(50, 100, ip_proto=17), (Question(ROOT, ip_proto=17), True)),
        (Rule(50, 100, ports=range(6379, 6381)), (Question(ROOT, ip_proto=6, port=6379), True)),
        (Rule(50, 100, source_ports=range(9, 10), ip_proto=17), (Question(ROOT, ip_proto=17, source_port=9), True)),
        (Rule(50, 100, tos=16), (Question(ROOT, tos=16), True)),
        (Rule(50, 100, source=IPv4Network("10.0.0.0/8")), (Question(ROOT, source=str(OWN_IP)), True)),
        (Rule(50, 100, source=IPv4Network("192.168.1.0/24")), None),
        (Rule(50, 100, destination=IPv4Network("192.168.1.0/24")), None),
        (Rule(50, 100, destination=IPv4Network("10.10.0.2/32")), (Question(ROOT), True)),
        (Rule(50, 100, in_device="lo"), (Question(ROOT), True)),
        (Rule(50, 100, in_device="docker0"), None),
        (Rule(50, 100, out_device="eth0"), None),
        (Rule(50, 100, is_inverted=True, mark=5), None),
    ],
    ids=str,
)
def test_a_rule_is_asked_with_what_it_picks(rule: Rule, asked: tuple[Question, bool] | None) -> None:
    """A packet that it picks, and whether root or Ray's user sends such packets."""
    assert rule.question(OWN_IP, NETWORK, [ROOT, RAY]) == asked


def test_root_and_rays_user_are_always_asked_for() -> None:
    """With and without our address as the source; each question once."""
    found = questions([Rule(50, 100), Rule(51, 100, mark=5)], OWN_IP, NETWORK, [ROOT, RAY])
    assert {(question.uid, question.source) for question, is_ours in found if is_ours} == PLAIN
    assert [question.mark for question, is_ours in found if not is_ours] == [5]
    assert len(found) == len(PLAIN) + 1


def test_of_nodes_that_the_kernel_cannot_tell_apart_one_is_asked_about() -> None:
    """A thousand nodes cost a few questions; those in networks of somebody's come first."""
    members = [HEAD_IP + number for number in range(1000)]
    whole = [IPv4Network("10.10.0.0/16"), IPv4Network("10.0.0.0/8"), IPv4Network("192.168.1.2/32")]
    assert distinct(members, []) == distinct(members, whole) == [tuple(members)]
    half, one = IPv4Network("10.10.0.0/25"), IPv4Network("10.10.0.9/32")
    assert distinct(members, [*whole, half, one]) == [
        (IPv4Address("10.10.0.9"),),
        tuple(ip for ip in members if ip in half and ip not in one),
        tuple(ip for ip in members if ip not in half),
    ]
    assert len(distinct(members, [IPv4Network(ip) for ip in members])) == 1000
    assert distinct([], [half]) == []


WAYS_BESIDE = {
    100: [Answer(("eth0",), table=100, network=IPv4Network("0.0.0.0/0"))],
    101: [Answer(("eth0",), table=101, network=IPv4Network("10.10.0.2/32"))],
    102: [
        Answer(("eth0",), table=102, network=IPv4Network("0.0.0.0/0")),
        Answer(("et0",), table=102, network=IPv4Network("10.0.0.0/8")),
    ],
    103: [Answer(("eth0",), table=103, network=IPv4Network("192.168.0.0/16"))],
    104: [Answer((), kind=7, table=104, network=IPv4Network("0.0.0.0/0"))],
}


@pytest.mark.parametrize(
    ("rule", "is_named"),
    [
        (Rule(50, 100, in_device="docker0"), True),
        (Rule(50, 101, in_device="docker0"), True),
        (Rule(50, 100, source=IPv4Network("172.17.0.0/16")), True),
        (Rule(50, 100, in_device="docker0", destination=IPv4Network("10.10.0.0/24")), True),
        (Rule(50, 102, in_device="docker0"), False),
        (Rule(50, 103, in_device="docker0"), False),
        (Rule(50, 104, in_device="docker0"), False),
        (Rule(50, 105, in_device="docker0"), False),
        (Rule(50, 100, in_device="docker0", destination=IPv4Network("192.168.1.0/24")), False),
        (Rule(50, 100), False),
        (Rule(50, 100, in_device="lo"), False),
        (Rule(50, 100, is_inverted=True, in_device="docker0"), False),
    ],
    ids=str,
)
def test_a_rule_for_what_comes_in_elsewhere_is_judged_by_its_table(rule: Rule, is_named: bool) -> None:
    """The kernel is asked about the others: it answers for what this machine sends."""
    told = forwarded_elsewhere([rule], WAYS_BESIDE, "et0", OWN_IP, NETWORK)
    assert (f"the rule `{rule}` comes before EdgeLink's" in told) is is_named
    assert ("by eth0" in told) is is_named


def test_somebody_is_asked_for_where_nobody_is_known() -> None:
    """As on the relay that holds the registry. Nobody can be in a network of one address."""
    assert others_to_ask(OWN_IP, NETWORK, {OWN_IP: "edge-1", HEAD_IP: "cloud"}) == {HEAD_IP: "cloud"}
    assert list(others_to_ask(IPv4Address("10.10.0.1"), NETWORK, {})) == [HEAD_IP]
    assert others_to_ask(OWN_IP, IPv4Network("10.10.0.3/32"), {}) == {}


AWAY = Answer(("eth0",), table=100, network=IPv4Network("10.0.0.0/8"), gateway="192.168.11.1", maker=3)
BY_DHCP = Answer(("eth0",), table=MAIN, network=IPv4Network("10.10.0.0/25"), gateway="192.168.11.1", maker=16)
BRIDGE = Answer(("br-lab",), kind=2, table=LOCAL, network=IPv4Network("10.10.0.2/32"), maker=2)
CAUGHT = Answer(("lo",), kind=2, table=LOCAL, network=IPv4Network("10.10.0.2/32"), maker=3)
HALF = Answer(("et0", "eth0"), table=MAIN, network=NETWORK, maker=4)
REFUSED = Answer(refusal="Permission denied")
DROPS = Answer(kind=6, table=100, network=IPv4Network("10.10.0.2/32"), maker=3)
OF_ANOTHER = Answer(kind=6, table=100, network=IPv4Network("10.10.0.77/32"), maker=3)
RULE = Rule(50, 100, users=range(RAY, RAY + 1))


@pytest.mark.parametrize(
    ("answer", "before", "routes", "remedy"),
    [
        (AWAY, [RULE], [AWAY], "`ip rule del priority 50`"),
        (BY_DHCP, [], [], "`ip route del 10.10.0.0/25 via 192.168.11.1 dev eth0"),
        (BRIDGE, [], [BRIDGE], "br-lab"),
        (CAUGHT, [], [CAUGHT], "`ip route del local 10.10.0.2/32 dev lo table local`"),
        (HALF, [], [], "`ip route del"),
        (REFUSED, [Rule(50, action=8)], [], "`ip rule del priority 50`"),
        (REFUSED, [RULE], [DROPS], "priority 50`"),
        (REFUSED, [], [replace(DROPS, table=LOCAL)], "`ip route del blackhole 10.10.0.2/32 table local`"),
    ],
    ids=["a rule", "a DHCP client", "a bridge", "this machine", "half", "refused", "dropped", "dropped, table local"],
)
def test_a_way_that_is_not_the_overlays_is_named(
    answer: Answer, before: list[Rule], routes: list[Answer], remedy: str, words: Words
) -> None:
    """With the route or rule, who made it, and what to do."""
    alike = (HEAD_IP, IPv4Address("10.10.0.4"), IPv4Address("10.10.0.5"))
    relay, cloud = (
        Found("relay (10.10.0.1)", (RELAY_IP,), OVERLAYS, True),
        Found("cloud (10.10.0.2)", alike, answer, True),
    )
    found = judge([relay, cloud, cloud], "et0", before, {route.table: [route] for route in routes})
    assert found.unreached == set(alike)
    assert remedy in found.remedy
    words(found.elsewhere)
    words(found.remedy)


@pytest.mark.parametrize(
    ("answer", "is_ours", "unreached"),
    [(OVERLAYS, True, ()), (OVERLAYS, False, ()), (REFUSED, True, (HEAD_IP,)), (REFUSED, False, ())],
    ids=["the overlay", "the overlay, for others", "the device is away", "the device is away, for others"],
)
def test_what_is_as_it_should_be_is_not_told_of(
    answer: Answer, is_ours: bool, unreached: tuple[IPv4Address, ...]
) -> None:
    """While the device is away our own route refuses. That fault is the device's, and told as such."""
    found = [Found("cloud", (HEAD_IP,), answer, is_ours)]
    assert judge(found, "et0", [RULE], {100: [AWAY, OF_ANOTHER]}) == Ways(unreached=frozenset(unreached))


def test_a_rule_that_picks_none_of_ours_is_a_caveat() -> None:
    answers = ((OVERLAYS, True), (AWAY, False))
    found = judge([Found("cloud", (HEAD_IP,), *each) for each in answers], "et0", [Rule(50, 100, mark=5)], {})
    assert found.elsewhere == ""
    assert "50: from all fwmark 0x5 lookup 100" in found.caveat


class Routes(OwnRoutes):
    """What somebody undoes as often as ``undoings`` says."""

    def __init__(self) -> None:
        self.undone = self.follows = 0
        self.undoings = 0

    async def follow(self) -> None:
        self.follows += 1
        if self.undoings:
            self.undoings -= 1
            self.undone += 1


class World:
    """The part with a kernel that answers ``answers``, the last of them for ever."""

    def __init__(self) -> None:
        self.clock, self.routes, self.links = FakeClock(), Routes(), FakeLinks()
        self.answers: list[Ways | OSError] = [Ways()]
        self.asked: list[tuple[Any, ...]] = []
        self.board = Board(Facts())
        self.part = WayWatch(
            board=self.board,
            routes=self.routes,
            links=self.links,
            device="et0",
            look=self.look,
            ray_uid=lambda: RAY,
            clock=self.clock,
        )
        give(self.board, overlay_spec=SPEC, holders={HEAD_IP: "cloud"})

    async def look(self, *asked: Any) -> Ways:
        self.asked.append(asked)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def settle(self) -> float:
        return await settle(self.part, self.board, ConditionSet(self.clock, ["OverlayUp"]), self.clock)


async def test_the_kernel_is_asked_about_all_nodes_for_root_and_rays_user() -> None:
    world = World()
    await world.settle()
    assert world.asked == [("et0", OWN_IP, NETWORK, {HEAD_IP: "cloud"}, [ROOT, RAY])]
    give(world.board, holders={HEAD_IP: "cloud", IPv4Address("10.10.0.4"): "edge-2"})
    await world.settle()
    assert len(world.asked[-1][3]) == 2


async def test_without_an_address_nobody_is_asked() -> None:
    world = World()
    give(world.board, overlay_spec=None)
    await world.settle()
    assert world.asked == []


async def test_what_was_taken_away_is_put_back_before_it_is_told() -> None:
    """Our rule went between the two: the kernel is asked once more, after another look at the rule."""
    world = World()
    world.answers = [Ways("by eth0", "x"), Ways()]
    await world.settle()
    assert world.board.facts.ways == Ways()
    assert world.routes.follows == 2
    world.answers = [Ways("by eth0", "x")]
    world.links.state = LinkState()  # tells of a change
    await world.settle()
    assert world.board.facts.ways.elsewhere == "by eth0"


async def test_the_kernels_silence_changes_nothing() -> None:
    world = World()
    world.answers = [Ways("by eth0", "x")]
    await world.settle()
    world.answers = [OSError("no buffer space")]
    await world.part.act(LookAround(SPEC, {}, 2))
    assert world.board.facts.ways.elsewhere == "by eth0"


async def test_who_undoes_it_again_and_again_is_told_of_and_costs_no_processor() -> None:
    """The pauses grow, to a second at most."""
    world = World()
    world.routes.undoings = 1000
    waits_s = []
    for _ in range(20):
        world.links.state = LinkState()  # tells of a change
        waits_s.append(await world.settle())
        await world.clock.advance(waits_s[-1])
    assert max(waits_s) > 0.4
    assert max(waits_s) <= 30
    assert world.routes.follows <= 40
    assert "again and again" in world.board.facts.ways.caveat
    world.routes.undoings = 0
    for _ in range(4):
        await world.clock.advance(30)
        await world.settle()
    assert world.board.facts.ways.caveat == ""
