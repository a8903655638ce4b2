"""By which device this machine would send a packet to each other node, as the kernel answers.

Routes of table main tell half of it: a rule may lead into another table, and an address of this machine's own goes
before all. So the kernel is asked (RTM_GETROUTE), for root and for Ray's user, with and without our overlay address as
the source. A rule before ours that picks by user, protocol, port or mark is asked with what it picks.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from itertools import islice
from typing import Any, NamedTuple

from pyroute2 import AsyncIPRoute
from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, nlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETROUTE
from pyroute2.netlink.rtnl.rtmsg import rtmsg_base

from edgelink.overlay.congestion import routes_of
from edgelink.overlay.own_routes import TABLE

_AF_INET = 2
_LOCAL_TABLE, _MAIN_TABLE, _DEFAULT_TABLE = 255, 254, 253
_UNICAST, _LOCAL = 1, 2  # kinds of routes
_REFUSING = {6: "blackhole", 7: "unreachable", 8: "prohibit"}  # kinds, too
_TO_TABLE = 1  # FR_ACT_TO_TBL
_INVERTED = 2  # FIB_RULE_INVERT
_TCP = 6
_KERNEL = 2  # RTPROT_KERNEL
_LOOKUP_TABLE = 0x1000  # RTM_F_LOOKUP_TABLE: with the table
_WHOLE_ANSWER = _LOOKUP_TABLE | 0x2000  # RTM_F_FIB_MATCH: and the route as it was made
_MOST_QUESTIONS = 512  # at one look; each takes half a millisecond of the processor
_LOOPBACK = "lo"
_MAKERS = {
    0: "by hand",
    2: "by the kernel, with an address of that device",
    3: "by hand or a script (`ip`)",
    4: "by an administrator or a network manager (static)",
    16: "by a DHCP client",
}


class _RouteQuestion(rtmsg_base, nlmsg):  # type: ignore[misc]  # pyroute2 has no types
    """With the attributes of linux/rtnetlink.h that pyroute2 does not know.

    It is no child of pyroute2's own rtmsg, whose children get the attributes of a class that was used before them.
    """

    nla_map = (
        *rtmsg_base.nla_map,
        ("RTA_PAD", "hex"),
        ("RTA_UID", "uint32"),
        ("RTA_TTL_PROPAGATE", "uint8"),
        ("RTA_IP_PROTO", "uint8"),
        ("RTA_SPORT", "be16"),
        ("RTA_DPORT", "be16"),
    )


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


@dataclass(frozen=True)
class Question:
    """What the kernel is asked, besides the destination. None: not said."""

    uid: int
    source: str | None = None
    mark: int | None = None
    ip_proto: int | None = None
    source_port: int | None = None
    port: int | None = None
    tos: int = 0

    def message(self, to: IPv4Address, flags: int = _WHOLE_ANSWER) -> nlmsg:
        """Return the message that asks it."""
        attributes = {
            "RTA_DST": str(to),
            "RTA_SRC": self.source,
            "RTA_UID": self.uid,
            "RTA_MARK": self.mark,
            "RTA_IP_PROTO": self.ip_proto,
            "RTA_SPORT": self.source_port,
            "RTA_DPORT": self.port,
        }
        message = _RouteQuestion()
        message["family"], message["dst_len"], message["tos"] = _AF_INET, 32, self.tos
        message["src_len"] = 0 if self.source is None else 32
        message["flags"] = flags
        message["attrs"] = [(name, value) for name, value in attributes.items() if value is not None]
        return message


@dataclass(frozen=True)
class Rule:
    """An ``ip rule`` that comes before ours."""

    priority: int
    table: int = 0
    action: int = _TO_TABLE
    is_inverted: bool = False
    source: IPv4Network | None = None
    destination: IPv4Network | None = None
    mark: int | None = None
    users: range | None = None
    ip_proto: int | None = None
    source_ports: range | None = None
    ports: range | None = None
    tos: int = 0
    in_device: str = ""
    out_device: str = ""
    maker: int = 0

    def __str__(self) -> str:
        """As ``ip rule`` shows it, for a person who looks for it there."""
        picks = {
            "to": self.destination,
            "tos": self.tos or None,
            "fwmark": None if self.mark is None else hex(self.mark),
            "iif": self.in_device or None,
            "oif": self.out_device or None,
            "uidrange": _in_words(self.users),
            "ipproto": self.ip_proto,
            "sport": _in_words(self.source_ports),
            "dport": _in_words(self.ports),
            "lookup": self.table or None,
        }
        words = [f"{name} {value}" for name, value in picks.items() if value is not None]
        negation = "not " if self.is_inverted else ""
        return " ".join([f"{self.priority}:", f"{negation}from {self.source or 'all'}", *words])

    def question(
        self, own_ip: IPv4Address, network: IPv4Network, uids: Collection[int]
    ) -> tuple[Question, bool] | None:
        """Return a packet that this rule picks, and whether root or Ray's user sends such packets.

        None: the questions without a rule's selectors tell all of it, or no packet of this machine is picked.
        """
        picks_others = self.source is not None and own_ip not in self.source
        if self.destination is not None and not self.destination.overlaps(network):
            return None
        if self.is_inverted or picks_others or self.out_device or self.in_device not in ("", _LOOPBACK):
            return None
        has_ports = self.source_ports is not None or self.ports is not None
        ours = [uid for uid in uids if self.users is None or uid in self.users]
        uid = ours[0] if ours else (self.users or [0])[0]
        question = Question(
            uid=uid,
            source=None if self.source is None else str(own_ip),
            mark=self.mark,
            ip_proto=_TCP if has_ports and self.ip_proto is None else self.ip_proto,
            source_port=self.source_ports[0] if self.source_ports else None,
            port=self.ports[0] if self.ports else None,
            tos=self.tos,
        )
        return question, bool(ours) and self.mark is None

    def picks_forwarded_only(self, own_ip: IPv4Address, network: IPv4Network) -> bool:
        """Whether it picks packets for the overlay, and none that this machine itself sends."""
        is_for_others = self.destination is not None and not self.destination.overlaps(network)
        picks_others = self.source is not None and own_ip not in self.source
        comes_in = self.in_device not in ("", _LOOPBACK)
        return not self.is_inverted and not is_for_others and (comes_in or picks_others)


_KERNELS_RULES = (
    Rule(0, _LOCAL_TABLE, maker=_KERNEL),
    Rule(32766, _MAIN_TABLE, maker=_KERNEL),
    Rule(32767, _DEFAULT_TABLE, maker=_KERNEL),
)


@dataclass(frozen=True)
class Answer:
    """The route that the kernel takes. Several ``devices`` are those of its hops. A refusal has none."""

    devices: tuple[str, ...] = ()
    kind: int = _UNICAST
    table: int = 0
    network: IPv4Network | None = None
    gateway: str = ""
    maker: int = 0
    refusal: str = ""

    def leads_elsewhere(self, device: str) -> bool:
        """Whether a packet leaves by another device, or stays on this machine."""
        return not self.refusal and (self.kind != _UNICAST or any(each != device for each in self.devices))

    def __str__(self) -> str:
        """As ``ip route`` shows it."""
        kind = {_LOCAL: "local", **_REFUSING}.get(self.kind, "")
        via = f"via {self.gateway}" if self.gateway else ""
        by = f"dev {' '.join(self.devices)}" if self.devices else ""
        table = {_LOCAL_TABLE: "local", _MAIN_TABLE: "main"}.get(self.table, self.table)
        return " ".join(filter(None, (kind, str(self.network), via, by, f"table {table}")))


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
        rules = [message async for message in await netlink.rule("dump", family=_AF_INET)]
        before, has_ours = rules_before_ours(rules)
        names = {m["index"]: str(m.get_attr("IFLA_IFNAME")) async for m in await netlink.link("dump")}
        tables = {_LOCAL_TABLE, TABLE, *(rule.table for rule in before if rule.action == _TO_TABLE)}
        tables |= set() if has_ours else {_MAIN_TABLE, _DEFAULT_TABLE}
        routes = {table: [as_answer(m, names) for m in await routes_of(netlink, table)] for table in sorted(tables)}
        told_apart = [route.network for table in routes.values() for route in table]
        told_apart += [rule.destination for rule in before]
        asked = questions(before, own_ip, network, uids)
        found: list[Found] = []
        others = others_to_ask(own_ip, network, members)
        groups = distinct(others, filter(None, told_apart))
        for alike in groups[: max(1, _MOST_QUESTIONS // len(asked))]:
            for question, is_ours in asked:
                answer = await _ask(netlink, alike[0], question, names)
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
        if replace(rule, maker=_KERNEL) not in _KERNELS_RULES:
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
    leading: list[tuple[Rule | None, int]] = [(None, _LOCAL_TABLE)]
    leading += [(rule, rule.table) for rule in before if rule.action == _TO_TABLE]
    return [(rule, None) for rule in before if rule.action != _TO_TABLE] + [
        (rule, route)
        for rule, table in leading
        for route in routes.get(table, ())
        if route.kind in _REFUSING and route.network is not None and any(ip in route.network for ip in asked)
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
    if answer.kind == _LOCAL and answer.maker == _KERNEL:
        return Ways(
            f"what is for {who} stays on this machine, because {by} has that overlay address",
            f"give {by} another address (`ip addr show dev {by}`)",
        )
    leading = [rule for rule in before if rule.action == _TO_TABLE and rule.table == answer.table]
    led = f"the rule `{leading[0]}`, which comes before EdgeLink's, leads to " if leading else ""
    remedy = f"`ip rule del priority {leading[0].priority}`" if leading else f"`ip route del {answer}`"
    leaves = "stays on this machine" if answer.kind == _LOCAL else f"leaves by {by} instead of {device}"
    return Ways(
        f"what is for {who} {leaves}: {led}the route `{answer}`, made {_maker(answer.maker)}",
        f"{remedy}, and take it out of what makes it",
    )


def _maker(protocol: int) -> str:
    return _MAKERS.get(protocol, f"by a program with the number {protocol} in /etc/iproute2/rt_protos")


async def _ask(netlink: Any, to: IPv4Address, question: Question, names: Mapping[int, str]) -> Answer:
    try:
        answer = as_answer(await _route(netlink, question.message(to)), names)
        if not answer.devices and answer.kind == _UNICAST:  # the route names a next hop by its number only
            taken = as_answer(await _route(netlink, question.message(to, flags=_LOOKUP_TABLE)), names)
            answer = replace(answer, devices=taken.devices, gateway=taken.gateway)
    except NetlinkError as error:
        return Answer(refusal=os.strerror(error.code))
    return answer


async def _route(netlink: Any, question: nlmsg) -> Any:
    answers = await netlink.nlm_request(question, RTM_GETROUTE, NLM_F_REQUEST | NLM_F_ACK)
    (message,) = [message async for message in answers]
    return message


def as_answer(message: Any, names: Mapping[int, str]) -> Answer:
    """Return the kernel's answer from netlink's message; pure."""
    attributes = dict(message["attrs"])
    hops = attributes.get("RTA_MULTIPATH", ())
    indexes = [attributes["RTA_OIF"]] if "RTA_OIF" in attributes else [hop["oif"] for hop in hops]
    return Answer(
        devices=tuple(dict.fromkeys(names.get(index, "?") for index in indexes)),
        kind=message["type"],
        table=attributes.get("RTA_TABLE", message["table"]),
        network=IPv4Network(f"{attributes.get('RTA_DST', '0.0.0.0')}/{message['dst_len']}", strict=False),
        gateway=str(attributes.get("RTA_GATEWAY", "")),
        maker=message["proto"],
    )


def as_rule(message: Any) -> Rule:
    """Return a rule from netlink's message; pure."""
    told = dict(message["attrs"])
    return Rule(
        priority=told.get("FRA_PRIORITY", 0),
        table=told.get("FRA_TABLE", 0),
        action=message["action"],
        is_inverted=bool(message["flags"] & _INVERTED),
        source=_network(told.get("FRA_SRC"), message["src_len"]),
        destination=_network(told.get("FRA_DST"), message["dst_len"]),
        mark=told.get("FRA_FWMARK"),
        users=_range(told.get("FRA_UID_RANGE")),
        ip_proto=told.get("FRA_IP_PROTO"),
        source_ports=_range(told.get("FRA_SPORT_RANGE")),
        ports=_range(told.get("FRA_DPORT_RANGE")),
        tos=message["tos"],
        in_device=told.get("FRA_IIFNAME", ""),
        out_device=told.get("FRA_OIFNAME", ""),
        maker=told.get("FRA_PROTOCOL", 0),
    )


def _network(address: str | None, length: int) -> IPv4Network | None:
    return None if address is None else IPv4Network(f"{address}/{length}")


def _range(told: str | None) -> range | None:
    """``first:last``, as pyroute2 tells a range."""
    if told is None:
        return None
    first, _, last = told.partition(":")
    return range(int(first), int(last) + 1)


def _in_words(numbers: range | None) -> str | None:
    return None if numbers is None else f"{numbers[0]}-{numbers[-1]}"
