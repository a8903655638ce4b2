"""By which device this machine would send a packet to each other node, as the kernel answers.

Routes of table main tell half of it: a rule may lead into another table, and an address of this machine's own goes
before all. So the kernel is asked (RTM_GETROUTE), for root and for Ray's user, with and without our overlay address as
the source. A rule before ours that picks by user, protocol, port or mark is asked with what it picks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from itertools import islice
from socket import AF_INET
from typing import Any, NamedTuple

from pyroute2 import AsyncIPRoute

from edgelink.overlay.congestion import routes_of
from edgelink.overlay.kernel_routes import (
    DEFAULT_TABLE,
    KERNEL,
    KERNELS_RULES,
    LOCAL,
    LOCAL_TABLE,
    MAIN_TABLE,
    REFUSING,
    TO_TABLE,
    Answer,
    Question,
    Rule,
    as_answer,
    as_rule,
    ask_kernel,
)
from edgelink.overlay.own_routes import TABLE

_MOST_QUESTIONS = 512  # at one look; each takes half a millisecond of the processor
_MAKERS = {
    0: "by hand",
    2: "by the kernel, with an address of that device",
    3: "by hand or a script (`ip`)",
    4: "by an administrator or a network manager (static)",
    16: "by a DHCP client",
}


@dataclass(frozen=True)
class Ways:
    """What the kernel answers.

    Attributes:
        elsewhere: whose packets would leave by another device than the overlay's, and why. Empty: nobody's.
        remedy: what to do about that.
        caveat: which rule before ours leads elsewhere without being anybody's of ours. Empty: none.
        unreached: overlay addresses whose packets leave by another device than the overlay's, or by none.
    """

    elsewhere: str = ""
    remedy: str = ""
    caveat: str = ""
    unreached: frozenset[IPv4Address] = frozenset()

    @property
    def in_words(self) -> str:
        """What is wrong, with what to do; empty when nothing is."""
        return f"{self.elsewhere}; {self.remedy}" if self.elsewhere else ""


class Found(NamedTuple):
    """What the kernel answered about one node.

    Attributes:
        who: the node, in words.
        alike: overlay addresses of the nodes that the answer holds for.
        answer: the route.
        is_ours: whether root or Ray's user was asked about.
    """

    who: str
    alike: tuple[IPv4Address, ...]
    answer: Answer
    is_ours: bool


async def look(
    device: str, own_ip: IPv4Address, network: IPv4Network, members: Mapping[IPv4Address, str], uids: Collection[int]
) -> Ways:
    """Ask the kernel by which device it would send to the other nodes.

    Args:
        device: the overlay's.
        own_ip: this node's overlay address, in ``network``.
        members: hostnames of the nodes, by overlay address. Without any, an address is made up.
        uids: root and Ray's user.

    Raises:
        NetlinkError, OSError: the kernel does not answer.
    """
    async with AsyncIPRoute() as netlink:
        rules = [message async for message in await netlink.rule("dump", family=AF_INET)]
        before, has_ours = rules_before_ours(rules)
        names = {m["index"]: str(m.get_attr("IFLA_IFNAME")) async for m in await netlink.link("dump")}
        tables = {LOCAL_TABLE, TABLE, *(rule.table for rule in before if rule.action == TO_TABLE)}
        tables |= set() if has_ours else {MAIN_TABLE, DEFAULT_TABLE}
        routes = {table: [as_answer(m, names) for m in await routes_of(netlink, table)] for table in sorted(tables)}
        told_apart = [route.network for table in routes.values() for route in table]
        told_apart += [rule.destination for rule in before]
        asked = questions(before, own_ip, network, uids)
        found: list[Found] = []
        others = others_to_ask(own_ip, network, members)
        groups = distinct(others, filter(None, told_apart))
        for alike in groups[: max(1, _MOST_QUESTIONS // len(asked))]:
            for question, is_ours in asked:
                answer = await ask_kernel(netlink, alike[0], question, names)
                found.append(Found(f"{others[alike[0]]} ({alike[0]})", alike, answer, is_ours))
    ways = judge(found, device, before, routes)
    beside = forwarded_elsewhere(before, routes, device, own_ip, network)
    return (
        ways if ways.elsewhere or not beside else replace(ways, caveat="; ".join(filter(None, (ways.caveat, beside))))
    )


def others_to_ask(
    own_ip: IPv4Address, network: IPv4Network, members: Mapping[IPv4Address, str]
) -> Mapping[IPv4Address, str]:
    """Return the other nodes; where none is known, an address that one might have; pure."""
    known = {ip: name for ip, name in members.items() if ip != own_ip}
    return known or {ip: "another node" for ip in islice(network.hosts(), 2) if ip != own_ip}


def rules_before_ours(messages: Iterable[Any]) -> tuple[list[Rule], bool]:
    """Return the rules that the kernel looks at before ours, but for its own, and whether ours is there; pure."""
    before: list[Rule] = []
    for rule in map(as_rule, messages):
        if rule.table == TABLE:
            return before, True
        if replace(rule, maker=KERNEL) not in KERNELS_RULES:
            before.append(rule)
    return before, False


def distinct(members: Iterable[IPv4Address], told_apart: Iterable[IPv4Network]) -> list[tuple[IPv4Address, ...]]:
    """Return the nodes in groups, for each of which one question to the kernel is enough; pure.

    The kernel tells two addresses apart where one is in a network of a route or rule, and the other is not. So a
    thousand nodes cost a few questions. Groups in more networks come first.
    """
    networks = {(each.prefixlen, int(each.network_address)) for each in told_apart}
    masks = {length: (2**length - 1) << (32 - length) for length in {length for length, _ in networks}}
    groups: dict[tuple[int, ...], list[IPv4Address]] = {}
    for ip in members:
        within = [(length, int(ip) & mask) for length, mask in masks.items()]
        key = tuple(number for each in within if each in networks for number in each)
        groups.setdefault(key, []).append(ip)
    return [tuple(groups[key]) for key in sorted(groups, key=len, reverse=True)]


def forwarded_elsewhere(
    before: Iterable[Rule],
    routes: Mapping[int, Sequence[Answer]],
    device: str,
    own_ip: IPv4Address,
    network: IPv4Network,
) -> str:
    """Say which rule leads what others send through this machine, its containers say, past the overlay; pure.

    The kernel answers no question about such packets unless it forwards them, so the rule's table is read.
    """
    for rule in before:
        if not rule.picks_forwarded_only(own_ip, network):
            continue
        known = [(route.network, route) for route in routes.get(rule.table, ()) if route.network is not None]
        inside = [route for part, route in known if part != network and part.subnet_of(network)]
        around = {whole.prefixlen: route for whole, route in known if network.subnet_of(whole)}
        for route in (*inside, *(around[length] for length in sorted(around)[-1:])):
            if route.devices and route.leads_elsewhere(device):
                return _leads_elsewhere(rule, route)
    return ""


def questions(
    before: Iterable[Rule], own_ip: IPv4Address, network: IPv4Network, uids: Collection[int]
) -> list[tuple[Question, bool]]:
    """Return what the kernel is to be asked of each node, and whether it concerns root or Ray's user; pure."""
    plain = [(Question(uid, source), True) for uid in uids for source in (None, str(own_ip))]
    picked = (rule.question(own_ip, network, uids) for rule in before)
    return list(dict.fromkeys([*plain, *(each for each in picked if each is not None)]))


def judge(found: Sequence[Found], device: str, before: Sequence[Rule], routes: Mapping[int, Sequence[Answer]]) -> Ways:
    """Put the answers into words; pure.

    Args:
        found: the answers.
        device: the overlay's.
        before: the rules before ours.
        routes: those of each table that one of the rules leads to.
    """
    refusing = _refusing(before, routes, [each.alike[0] for each in found])
    failed = [each for each in found if each.is_ours and (each.answer.refusal or each.answer.leads_elsewhere(device))]
    unreached = frozenset(ip for each in failed for ip in each.alike)
    wrong = [each for each in failed if refusing or not each.answer.refusal]
    if wrong:
        whose = len({ip for each in wrong for ip in each.alike})
        more = f", and for {whose - 1} more" if whose > 1 else ""
        ways = _elsewhere(f"{wrong[0].who}{more}", wrong[0].answer, device, before, refusing)
        return replace(ways, unreached=unreached)
    others = [each.answer for each in found if not each.is_ours and each.answer.leads_elsewhere(device)]
    if others:
        rule = next((rule for rule in before if rule.table == others[0].table), None)
        return Ways(caveat=_leads_elsewhere(rule, others[0]), unreached=unreached)
    return Ways(unreached=unreached)


def _refusing(
    before: Sequence[Rule], routes: Mapping[int, Sequence[Answer]], asked: Collection[IPv4Address]
) -> list[tuple[Rule | None, Answer | None]]:
    """Return what is looked at before our rule and may refuse packets to one of these addresses: rules, and routes with
    the rule that leads to them, which is the kernel's own for table local."""
    leading: list[tuple[Rule | None, int]] = [(None, LOCAL_TABLE)]
    leading += [(rule, rule.table) for rule in before if rule.action == TO_TABLE]
    return [(rule, None) for rule in before if rule.action != TO_TABLE] + [
        (rule, route)
        for rule, table in leading
        for route in routes.get(table, ())
        if route.kind in REFUSING and route.network is not None and any(ip in route.network for ip in asked)
    ]


def _leads_elsewhere(rule: Rule | None, route: Answer) -> str:
    by = ", ".join(route.devices)
    return f"the rule `{rule}` comes before EdgeLink's and sends what it picks for members by {by}"


def _elsewhere(
    who: str,
    answer: Answer,
    device: str,
    before: Sequence[Rule],
    refusing: Sequence[tuple[Rule | None, Answer | None]],
) -> Ways:
    if answer.refusal:
        rule, route = refusing[0]
        whys = [] if rule is None else [f"the rule `{rule}` comes before EdgeLink's"]
        whys += [] if route is None else [f"the route `{route}`, made {_maker(route.maker)}"]
        remedy = f"`ip route del {route}`" if rule is None else f"`ip rule del priority {rule.priority}`"
        return Ways(
            f"the kernel sends nothing to {who} ({answer.refusal}): {', and leads to '.join(whys)}",
            f"{remedy}, and take it out of what makes it",
        )
    by = ", ".join(answer.devices)
    if answer.kind == LOCAL and answer.maker == KERNEL:
        return Ways(
            f"what is for {who} stays on this machine, because {by} has that overlay address",
            f"give {by} another address (`ip addr show dev {by}`)",
        )
    leading = [rule for rule in before if rule.action == TO_TABLE and rule.table == answer.table]
    led = f"the rule `{leading[0]}`, which comes before EdgeLink's, leads to " if leading else ""
    remedy = f"`ip rule del priority {leading[0].priority}`" if leading else f"`ip route del {answer}`"
    leaves = "stays on this machine" if answer.kind == LOCAL else f"leaves by {by} instead of {device}"
    return Ways(
        f"what is for {who} {leaves}: {led}the route `{answer}`, made {_maker(answer.maker)}",
        f"{remedy}, and take it out of what makes it",
    )


def _maker(protocol: int) -> str:
    return _MAKERS.get(protocol, f"by a program with the number {protocol} in /etc/iproute2/rt_protos")
