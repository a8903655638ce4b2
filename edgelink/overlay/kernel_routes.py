"""The kernel's rules and routes: what may be asked of it by netlink, and what it answers."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network
from socket import AF_INET
from typing import Any

from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST, nlmsg
from pyroute2.netlink.exceptions import NetlinkError
from pyroute2.netlink.rtnl import RTM_GETROUTE
from pyroute2.netlink.rtnl.rtmsg import rtmsg_base

LOCAL_TABLE, MAIN_TABLE, DEFAULT_TABLE = 255, 254, 253
UNICAST, LOCAL = 1, 2  # kinds of routes
REFUSING = {6: "blackhole", 7: "unreachable", 8: "prohibit"}  # kinds, too
TO_TABLE = 1  # FR_ACT_TO_TBL
_INVERTED = 2  # FIB_RULE_INVERT
_TCP = 6
KERNEL = 2  # RTPROT_KERNEL
_LOOKUP_TABLE = 0x1000  # RTM_F_LOOKUP_TABLE: with the table
_WHOLE_ANSWER = _LOOKUP_TABLE | 0x2000  # RTM_F_FIB_MATCH: and the route as it was made
_LOOPBACK = "lo"


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
        message["family"], message["dst_len"], message["tos"] = AF_INET, 32, self.tos
        message["src_len"] = 0 if self.source is None else 32
        message["flags"] = flags
        message["attrs"] = [(name, value) for name, value in attributes.items() if value is not None]
        return message


@dataclass(frozen=True)
class Rule:
    """An ``ip rule`` that comes before ours."""

    priority: int
    table: int = 0
    action: int = TO_TABLE
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


KERNELS_RULES = (
    Rule(0, LOCAL_TABLE, maker=KERNEL),
    Rule(32766, MAIN_TABLE, maker=KERNEL),
    Rule(32767, DEFAULT_TABLE, maker=KERNEL),
)


@dataclass(frozen=True)
class Answer:
    """The route that the kernel takes. Several ``devices`` are those of its hops. A refusal has none."""

    devices: tuple[str, ...] = ()
    kind: int = UNICAST
    table: int = 0
    network: IPv4Network | None = None
    gateway: str = ""
    maker: int = 0
    refusal: str = ""

    def leads_elsewhere(self, device: str) -> bool:
        """Whether a packet leaves by another device, or stays on this machine."""
        return not self.refusal and (self.kind != UNICAST or any(each != device for each in self.devices))

    def __str__(self) -> str:
        """As ``ip route`` shows it."""
        kind = {LOCAL: "local", **REFUSING}.get(self.kind, "")
        via = f"via {self.gateway}" if self.gateway else ""
        by = f"dev {' '.join(self.devices)}" if self.devices else ""
        table = {LOCAL_TABLE: "local", MAIN_TABLE: "main"}.get(self.table, self.table)
        return " ".join(filter(None, (kind, str(self.network), via, by, f"table {table}")))


async def ask_kernel(netlink: Any, to: IPv4Address, question: Question, names: Mapping[int, str]) -> Answer:
    try:
        answer = as_answer(await _route(netlink, question.message(to)), names)
        if not answer.devices and answer.kind == UNICAST:  # the route names a next hop by its number only
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
