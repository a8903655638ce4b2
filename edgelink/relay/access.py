"""Which ports of which nodes may be reached over the overlay, by the operator's word (ADR 0043).

A rule opens ports; nothing closes them but taking the rule away. The registry resolves the rules to addresses, because
edges know neither the labels nor, in a large network, the addresses of others, and signs one document for each node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, Literal

from edgelink.config.overlay_allow import parse_allowed
from edgelink.errors import RegistryError, UsageError
from edgelink.log import get_logger
from edgelink.process.port_ranges import merged
from edgelink.protocol.keys import Kind
from edgelink.protocol.payloads import (
    MAX_ACCESS_ADDRESSES,
    MAX_ACCESS_RANGES,
    MAX_RULES,
    AddressRange,
    Envelope,
    Lease,
    NodeAccess,
    PortAccess,
    Role,
    are_few,
)
from edgelink.relay.authority_keys import AuthorityKeys
from edgelink.relay.records import AccessRule, MadeRule
from edgelink.relay.store import RegistryStore

ALL = "all"
ALLOWED, DENIED = "access allowed", "access denied"  # in the history

_TOLD_CHANGES = 100
_ROLES = frozenset(Role)
_NODE_ID = re.compile(r"[a-z2-7]{26}")
_SELECTORS = "`relay`, `head`, `edge`, `all`, KEY=VALUE of a label, or a node's hostname or node id"

log = get_logger("registry")


def parse_ports(text: str) -> tuple[Literal["tcp", "udp"], int, int]:
    """Read ``tcp/8888``, ``udp/5000-5010``, or ``8888`` for TCP. Raises UsageError."""
    try:
        found = parse_allowed(text) if text.split() == [text] else None  # without `from WHO`
    except ValueError:
        found = None
    if found is None:
        raise UsageError(f"{text!r} names no ports", hint="write tcp/8888 or udp/5000-5010, ports from 1 to 65535")
    return found.protocol, found.first, found.last


def is_meant(selector: str, lease: Lease) -> bool:
    """Whether a selector means the holder of this lease. A label counts only if the operator gave it."""
    if selector == ALL:
        return True
    if selector == Role.RELAY:
        return lease.is_relay
    if selector in _ROLES:
        return lease.role == selector
    name, is_label, value = selector.partition("=")
    if is_label:
        return name in lease.given_labels and lease.labels.get(name) == value
    return lease.node_id == selector


def ranges_of(addresses: Iterable[IPv4Address]) -> tuple[AddressRange, ...]:
    """The same addresses as ranges, in order."""
    ranges = merged((int(address), int(address)) for address in addresses)
    return tuple((IPv4Address(first), IPv4Address(last)) for first, last in ranges)


@dataclass(frozen=True)
class Resolved:
    """What the rules come to with the present leases.

    Attributes:
        openings: what each node answers, by node id.
        left_out: rules that did not fit into a node's document, and are closed there.
    """

    openings: Mapping[str, tuple[PortAccess, ...]]
    left_out: frozenset[AccessRule]


def resolve(rules: Sequence[AccessRule], leases: Sequence[Lease]) -> Resolved:
    """Return what each node answers by ``rules``; pure. Rules for the same ports of a node become one opening."""
    selectors = {side for rule in rules for side in (rule.target, rule.source)}
    meant = {selector: [lease for lease in leases if is_meant(selector, lease)] for selector in selectors}
    targets = {selector: {lease.node_id for lease in found} for selector, found in meant.items()}
    sources = {selector: {lease.overlay_ip for lease in found} for selector, found in meant.items()}
    known: dict[tuple[int, ...], tuple[PortAccess, ...]] = {}
    openings: dict[str, tuple[PortAccess, ...]] = {}
    left_out: set[AccessRule] = set()
    for lease in leases:
        numbers = tuple(number for number, rule in enumerate(rules) if lease.node_id in targets[rule.target])
        if numbers not in known:  # most nodes of a large network are meant by the same rules
            known[numbers], too_many = _merged([rules[number] for number in numbers], sources)
            left_out |= too_many
        openings[lease.node_id] = known[numbers]
    return Resolved(openings, frozenset(left_out))


def _merged(
    rules: Sequence[AccessRule], sources: Mapping[str, set[IPv4Address]]
) -> tuple[tuple[PortAccess, ...], set[AccessRule]]:
    """The openings of one node, and the rules that do not fit: later ones, as a rule."""
    allowed: dict[str, set[IPv4Address] | None] = {}
    openings: dict[str, PortAccess] = {}
    left_out: set[AccessRule] = set()
    for rule in rules:
        before = allowed.get(rule.ports, set())
        after = None if rule.source == ALL or before is None else before | sources[rule.source]
        opening = PortAccess.model_construct(
            protocol=rule.protocol,
            first=rule.first,
            last=rule.last,
            sources=None if after is None else ranges_of(after),
        )
        if are_few({**openings, rule.ports: opening}.values()):
            allowed[rule.ports], openings[rule.ports] = after, opening
        else:
            left_out.add(rule)
    return tuple(opening for opening in openings.values() if opening.sources != ()), left_out


def access_to_dict(
    store: RegistryStore,
    behind: Mapping[str, str],
    only: Sequence[AccessRule] | None = None,
    changed: Sequence[AccessRule] = (),
) -> dict[str, Any]:
    """Return the rules as JSON, for people and scripts.

    Args:
        behind: why a node does not follow the rules at this moment, by node id.
        only: tell of these rules. None: of all.
        changed: who does not follow these is told as well.
    """
    with store.transaction():
        made, leases = store.access.all(), store.leases()
    left_out = resolve([each.rule for each in made], leases).left_out
    names = {lease.node_id: lease.hostname for lease in leases}
    shown = [each for each in made if only is None or each.rule in only]
    targets = {rule.target for rule in (*changed, *(each.rule for each in shown))}
    late = [lease for lease in leases if lease.node_id in behind and any(is_meant(one, lease) for one in targets)]

    def meant(selector: str) -> list[str]:
        return [lease.hostname for lease in leases if is_meant(selector, lease)]

    return {
        "rules": [
            {
                "to": names.get(each.rule.target, each.rule.target),
                "ports": each.rule.ports,
                "from": names.get(each.rule.source, each.rule.source),
                "made_at": each.made_at,
                "made_by": each.made_by,
                "opens_on": meant(each.rule.target),
                "lets_in": meant(each.rule.source),
                "left_out": each.rule in left_out,
            }
            for each in shown
        ],
        "behind": [{"hostname": lease.hostname, "why": behind[lease.node_id]} for lease in late],
        "own_word": [
            {"hostname": lease.hostname, "label": selector}
            for selector in sorted({side for each in shown for side in (each.rule.target, each.rule.source)})
            for lease in leases
            if "=" in selector and _is_own_word(selector, lease)
        ],
        "changes": [entry for entry in store.history() if entry["action"] in (ALLOWED, DENIED)][-_TOLD_CHANGES:],
    }


def _is_own_word(selector: str, lease: Lease) -> bool:
    """Whether the node, and not the operator, says this label of it."""
    name, _, value = selector.partition("=")
    return lease.labels.get(name) == value and name not in lease.given_labels


class AccessRules:
    """The rules of one network, and the documents that follow from them."""

    def __init__(self, store: RegistryStore, keys: AuthorityKeys) -> None:
        self._store = store
        self._book = store.access
        self._keys = keys
        self._signed: dict[str, tuple[NodeAccess, Envelope]] = {}  # the newest, by node id
        self._signed_at: tuple[int, int] | None = None  # generation and epoch of the database that they are of

    def all(self) -> list[MadeRule]:
        """Oldest first."""
        return self._book.all()

    def rule(self, target: str, ports: str, source: str) -> AccessRule:
        """Read a rule as the operator writes it.

        Raises:
            UsageError: no ports, or no selector. RegistryError: no such node.
        """
        protocol, first, last = parse_ports(ports)
        return AccessRule(self._selector(target), protocol, first, last, self._selector(source))

    def allow(self, rules: Sequence[AccessRule], *, caller: str = "") -> list[AccessRule]:
        """Record the rules, all or none. Return those that were not there before.

        Raises:
            RegistryError: too many rules, or too many addresses for one node's document.
        """
        with self._store.transaction():
            new = [rule for rule in dict.fromkeys(rules) if self._book.find(rule) is None]
            for rule in new:
                self._book.put(rule, caller)
                self._store.record(ALLOWED, "", self._in_words(rule), caller)
            made = [made.rule for made in self._book.all()]
            if len(made) > MAX_RULES:
                raise RegistryError(
                    f"a network has {MAX_RULES} access rules at most",
                    hint="take some away, or let one rule mean more nodes: by role or by label",
                    reason="TooManyRules",
                )
            if too_many := resolve(made, self._store.leases()).left_out & set(new):
                raise RegistryError(
                    f"{next(iter(too_many))}: too many addresses for one node: {MAX_ACCESS_RANGES} ranges and "
                    f"{MAX_ACCESS_ADDRESSES} addresses are the most",
                    hint="let them all in with `--from all`, or name fewer",
                    reason="TooManySources",
                )
        return new

    def deny(self, rules: Sequence[AccessRule], *, caller: str = "") -> None:
        """Take the rules away, all or none. Raises RegistryError where one of them was never made."""
        with self._store.transaction():
            for rule in dict.fromkeys(rules):
                if self._book.find(rule) is None:
                    raise RegistryError(
                        f"there is no such rule: {self._in_words(rule)}",
                        hint="`deny` takes away a rule as it was made; `edgelink access list` shows all of them",
                        reason="RuleUnknown",
                    )
                self._book.remove(rule)
                self._store.record(DENIED, "", self._in_words(rule), caller)

    def resolved(self) -> Resolved:
        """What the rules come to now."""
        with self._store.transaction():
            return resolve([made.rule for made in self._book.all()], self._store.leases())

    def documents(self) -> Mapping[str, tuple[NodeAccess, Envelope]]:
        """The document of each node that holds a lease, by node id; the same content is the same text.

        Empty in a network that never had a rule. One that was restored from a backup has documents all the same: its
        nodes may keep rules that this registry does not know.
        """
        if (self._store.generation(), self._store.epoch()) == self._signed_at:  # asked at each status of a node
            return self._signed
        with self._store.transaction():
            now = self._store.generation(), self._store.epoch()
            is_used = now[0] > 0 or self._book.has_been_used()
            resolved = self.resolved() if is_used else Resolved({}, frozenset())
        network_id = self._keys.network_id
        before, self._signed = self._signed, {}
        for node_id, openings in resolved.openings.items():
            known = before.get(node_id)
            if known is None or (known[0].generation, known[0].openings) != (now[0], openings):
                document = NodeAccess(
                    network_id=network_id, node_id=node_id, generation=now[0], epoch=now[1], openings=openings
                )
                known = document, self._keys.sign(Kind.ACCESS, document)
            self._signed[node_id] = known
        self._signed_at = now
        if resolved.left_out:
            log.warning("registry.access_left_out", rules=sorted(map(str, resolved.left_out)))
        return self._signed

    def _in_words(self, rule: AccessRule) -> str:
        """The rule with the present hostnames."""
        sides = (self._store.lease(side) for side in (rule.target, rule.source))
        names = {lease.node_id: f"{lease.hostname} ({lease.node_id})" for lease in sides if lease is not None}
        return f"{names.get(rule.target, rule.target)} {rule.ports} from {names.get(rule.source, rule.source)}"

    def _selector(self, text: str) -> str:
        if text == ALL or text in _ROLES or ("=" in text and not text.startswith("=")):
            return text
        lease = self._store.find_lease(text)
        if lease is not None:
            return lease.node_id
        if _NODE_ID.fullmatch(text):  # of a rule whose node has left
            return text
        raise RegistryError(
            f"no node {text!r} holds a lease",
            hint=f"name {_SELECTORS}: see `edgelink registry list`",
            reason="NodeUnknown",
        )
