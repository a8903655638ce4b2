"""What is wrong between the nodes, judged from what they saw of each other (`ray_cluster/exchange.py`); pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgelink.errors import ExitCode, TrainingError
from edgelink.wording import few

_SKIP = "--no-preflight starts CMD without this check"


class PreflightError(TrainingError):
    """The nodes of a run cannot work together as they are; CMD was not started."""

    reason = "PreflightFailed"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what, where, why, and what to do. ``may_pass``: as networks do, it may mend itself."""

    message: str
    hint: str
    may_pass: bool = True


@dataclass
class Seen:
    """What the exchange told, by its events, and what the head's daemon heard.

    ``heard``: addresses whose pings came in while Ray brought no answer of their nodes; None: nobody listened.
    """

    facts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    silent: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    links: list[Mapping[str, Any]] = field(default_factory=list)
    heard_calls: dict[str, Sequence[str]] = field(default_factory=dict)
    torch: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    gloo: dict[str, str | None] = field(default_factory=dict)
    paths: dict[str, dict[str, str]] = field(default_factory=dict)
    measured: list[Mapping[str, Any]] = field(default_factory=list)
    is_done: bool = False
    heard: frozenset[str] | None = None

    def take(self, event: Mapping[str, Any]) -> None:
        """Note one event of the exchange."""
        match event["event"]:
            case "facts":
                self.facts[event["node"]] = event
            case "silent":
                self.silent |= event["nodes"]
            case "links":
                self.links, self.heard_calls = event["links"], event["heard"]
            case "measured":
                self.measured = event["links"]
            case "torch":
                self.torch = event["nodes"]
            case "gloo":
                self.gloo = event["problems"]
            case "paths":
                self.paths[event["node"]] = event["missing"]
            case "done":
                self.is_done = True


@dataclass(frozen=True)
class Question:
    """What is asked: the nodes that will talk (name to overlay address), the head first.

    ``device``: what all workers are told; None: each is told by its own node.
    """

    nodes: Mapping[str, str]
    device: str | None

    @property
    def head(self) -> str:
        return next(iter(self.nodes))

    def shown(self, name: str) -> str:
        return f"{name} ({self.nodes[name]})"


def judge(question: Question, seen: Seen) -> list[Finding]:
    """All that is wrong, each named with its nodes; empty: they can talk."""
    found = [*_devices(question, seen.facts), *_silent(question, seen)]
    found += [*_unheard(question, seen), *_black_holes(question, seen)]
    if seen.gloo and not found:
        found += _gloo(question, seen.gloo)
    return found


def failed(findings: Sequence[Finding], *, may_skip: bool = True) -> PreflightError:
    """One error of them all. Its exit status is 75 where each of them may pass, else 78."""
    hints = [*dict.fromkeys(finding.hint for finding in findings), *([_SKIP] if may_skip else [])]
    error = PreflightError("; ".join(finding.message for finding in findings), hint="; ".join(hints))
    error.exit_code = ExitCode.TRY_AGAIN if all(finding.may_pass for finding in findings) else ExitCode.CONFIG
    return error


def without_gloo(seen: Seen) -> str:
    """What is to be said where gloo was not tried: without torch somewhere, or on links that are slow."""
    problems = {name: said["problem"] for name, said in seen.torch.items() if not said["version"]}
    return f"gloo was not tried, plain TCP was{': ' if problems else ''}{_by_reason(problems)}"


def slow_links(question: Question, seen: Seen) -> str | None:
    """Which links brought a part of the large packets in time; no reason to refuse them."""
    slow = [f"{link['from']} → {link['to']}" for link in _large_failures(question, seen) if link["arrived"] > 0]
    return f"slow: {', '.join(slow)} brought less than 32 KiB in 3 s" if slow else None


def _devices(question: Question, facts: Mapping[str, Mapping[str, Any]]) -> Iterable[Finding]:
    wrong: dict[str, list[str]] = {}
    for name, fact in facts.items():
        devices: Mapping[str, Mapping[str, Any]] = fact["devices"]
        right = next((device for device, each in devices.items() if each["ip"] == question.nodes[name]), None)
        told = str(question.device or fact.get("told_device"))
        if told != right:
            what = f"{told} is another one" if told in devices else f"there is no {told} with an address"
            wrong.setdefault(f"{what}, the overlay is on {right or 'no device'}", []).append(name)
    for what, names in wrong.items():
        shown = few([question.shown(name) for name in names])
        yield Finding(
            f"wrong device on {shown}: {what}; GLOO_SOCKET_IFNAME, else RLINF_COMM_NET_DEVICES, names it",
            "leave these variables to `edgelink run`, and give the overlay one device name on all nodes "
            "(overlay.device)",
            may_pass=False,
        )


def _silent(question: Question, seen: Seen) -> Iterable[Finding]:
    head, holes, one_way = question.head, list[str](), list[str]()
    for name, look in seen.silent.items():
        shown, ip = question.shown(name), question.nodes[name]
        if "small" not in look or (look["small"] and look["large"]):
            why = look.get("error") or "its raylet answers, but starts no worker"
            yield Finding(f"{shown} took no part: {why}", f"look at Ray's logs on {name} (`edgelink report`)")
        elif look["small"]:
            holes.append(name)
        elif look["error"] == "Connection refused":
            yield Finding(
                f"{shown} took no part: its raylet's port refuses {head}", f"`edgelink nodes` tells of {name}"
            )
        elif seen.heard is None:
            yield Finding(f"{head} and {shown}: no packet gets there and back", f"look at `edgelink status` on {name}")
        elif ip in seen.heard:
            one_way.append(name)
        else:
            yield Finding(
                f"block: {shown} → {question.shown(head)}: nothing arrives, neither answers nor pings; whether the "
                "other way works cannot be seen",
                _firewall(name, [head]) + f", or {name} is cut off (`edgelink nodes`)",
            )
    if holes:
        yield _black_hole(question, seen, head, holes)
    if one_way:
        yield _one_way(question, head, one_way)


def _unheard(question: Question, seen: Seen) -> Iterable[Finding]:
    """Pairs between which no call gets through, named by direction where the kernel's table of half-open
    connections tells: a call that came in and was not answered was lost on its way back."""
    passed = {(link["from"], link["to"]): link for link in seen.links if link["to"] in question.nodes}
    one_way: dict[str, list[str]] = {}
    cut: dict[str, list[str]] = {}
    for (a, b), link in passed.items():
        back = passed.get((b, a))
        if link["small"]:
            continue
        if back is not None and back["small"]:
            yield Finding(
                f"{a} cannot connect to {b} ({link['error']}), though {b} can to {a}",
                f"let a firewall on {b} accept new TCP connections from the overlay",
            )
            continue
        a_called, b_called = _called(question, seen, a, b), _called(question, seen, b, a)
        if b_called and not a_called:
            one_way.setdefault(a, []).append(b)
        elif a_called == b_called and (b, a) not in [(x, y) for x, ys in cut.items() for y in ys]:
            cut.setdefault(a, []).append(b)
    for a, others in one_way.items():
        yield _one_way(question, a, others)
    for a, others in cut.items():
        yield Finding(
            f"{a} and {few(others)}: no TCP connection in either direction ({passed[a, others[0]]['error']})",
            f"look for firewalls on {few([a, *others])}, and at `edgelink status` there",
        )
    for link in seen.links:
        if link["to"] is None:
            yield Finding(f"{question.shown(link['from'])} took no part: {link['error']}", "try again")


def _called(question: Question, seen: Seen, a: str, b: str) -> bool:
    """Whether a call of ``a`` came in at ``b``."""
    return question.nodes[a] in seen.heard_calls.get(b, ())


def _one_way(question: Question, a: str, others: Sequence[str]) -> Finding:
    shown = [question.shown(name) for name in others]
    return Finding(
        f"one-way block: {question.shown(a)} → {few(shown)}: nothing arrives, the other way does",
        _firewall(a, others),
    )


def _firewall(a: str, others: Sequence[str]) -> str:
    return f"look for a rule that drops it: outgoing on {a}, incoming on {few(others)} (`nft list ruleset`)"


def _large_failures(question: Question, seen: Seen) -> list[Mapping[str, Any]]:
    return [
        link for link in seen.links if link["to"] in question.nodes and link["small"] and link.get("large") is False
    ]


def _black_holes(question: Question, seen: Seen) -> Iterable[Finding]:
    lost: dict[str, list[str]] = {}
    for link in _large_failures(question, seen):
        if link["arrived"] <= 0:
            lost.setdefault(link["from"], []).append(link["to"])
    for a, others in lost.items():
        yield _black_hole(question, seen, a, others)


def _black_hole(question: Question, seen: Seen, a: str, others: Sequence[str]) -> Finding:
    mtus = {
        values["mtu"]
        for name in (a, *others)
        for values in seen.facts.get(name, {}).get("devices", {}).values()
        if values["ip"] == question.nodes[name]
    }
    size = f" of up to {max(mtus)} bytes, its device's MTU," if mtus else ""
    shown = [question.shown(name) for name in others]
    return Finding(
        f"MTU black hole: {question.shown(a)} → {few(shown)}: small packets arrive, large ones{size} do not",
        f"lower overlay.mtu on {few([a, *others])} until they pass, or find what drops large packets on this way",
    )


def _gloo(question: Question, problems: Mapping[str, str | None]) -> Iterable[Finding]:
    wrong = {name: why for name, why in problems.items() if why}
    if wrong:
        yield Finding(
            f"gloo's all-reduce failed over {question.device or 'the overlay'}, though TCP passes: {_by_reason(wrong)}",
            "look at the first error; a firewall between nodes that are not named here may be in the way",
        )


def _by_reason(problems: Mapping[str, str]) -> str:
    reasons: dict[str, list[str]] = {}
    for name, why in problems.items():
        reasons.setdefault(why, []).append(name)
    return "; ".join(f"{few(names)}: {why}" for why, names in reasons.items())
