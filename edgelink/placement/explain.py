"""A plan in words: by machine, by component, why it is so, and where each variable comes from. Pure: texts only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from edgelink.placement.grammar import span
from edgelink.placement.groups import ACCELERATOR, Group, Placement
from edgelink.placement.plans import Plan
from edgelink.placement.worker_environment import Environments
from edgelink.wording import few

_WHOLE_NODE = "whole node"
_NOTHING_OF_ITS_OWN = (_WHOLE_NODE, "-", "-")
_MOST_LINES = 64  # of one component; what is more is told by node
_SECRET = re.compile(  # in a name; not so in TOKENIZERS_PARALLELISM, COMPASS, PWD
    r"TOKEN(?!IZ)|SECRET|PASSW|PASSPHRASE|(?<!COM)(?<!BY)PASS(?![A-Z])|_PWD|(API|ACCESS|PRIVATE)_?KEY|CREDENTIAL"
    r"|(^|_)(CREDS?|PAT)(_|$)",
    re.IGNORECASE,
)
_PRIVATE_KEY = "PRIVATE KEY-----"
_PASSWORD_OF_URL = re.compile(r"://[^/\s]*@")
_SHOWN_TEXT_CHARS = 100
_SOURCES = {
    "node": "the node's own, at `ray start`",
    "driver": "the driver's shell, pushed to every node",
    "default": "RLinf, because the node has no value",
    "env_configs": "env_configs of group {group}",
    "rlinf": "RLinf, for this process",
    "profiler": "the profiler",
    "worker": "the worker, when it starts",
}

Row = tuple[str, ...]


def machine_rows(plan: Plan) -> list[Row]:
    """By machine: node rank, name, hardware, group labels, and what runs there."""
    on_node: dict[int, dict[str, list[int]]] = {}
    for name, items in plan.placements.items():
        for item in items:
            on_node.setdefault(item.node_rank, {}).setdefault(name, []).append(item.process_rank)
    rows: list[Row] = [("node", "machine", "hardware", "groups", "processes")]
    for node in plan.nodes:
        counts = {node.accelerator if kind == ACCELERATOR else kind: count for kind, count in node.hardware.items()}
        hardware = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        runs = "; ".join(f"{name} {span(ranks)}" for name, ranks in on_node.get(node.number, {}).items())
        rows.append((str(node.rank), node.name, hardware or "-", ", ".join(node.labels) or "-", runs or "-"))
    return rows


def adds_to_machines(rows: Sequence[Row]) -> bool:
    """Whether the rows of :func:`component_rows` say more than the machines' rows: of devices, or an environment."""
    return any(row[-3:] != _NOTHING_OF_ITS_OWN for row in rows[1:])


def component_rows(plan: Plan, only: str | None = None) -> list[Row]:
    """By component: which processes are where, with which hardware; processes that are alike share a row."""
    rows: list[Row] = [("component", "process", "node", "machine", "group", "hardware", "visible", "environment")]
    for name, items in plan.placements.items():
        if only is not None and name != only:
            continue
        lines = list(_alike(items, by_node=False))
        is_short = len(lines) <= _MOST_LINES or only is not None
        for first, last, hardware in lines if is_short else _alike(items, by_node=True):
            rows.append(
                (
                    name,
                    span(range(first.process_rank, last.process_rank + 1)),
                    str(first.node_rank),
                    plan.nodes[first.node_rank].name,
                    first.node_group,
                    hardware or _WHOLE_NODE,
                    (first.visible_devices or "-") if is_short else "…",
                    _own_environment(plan, first) or "-",
                )
            )
    return rows


def _alike(items: Sequence[Placement], *, by_node: bool) -> Iterator[tuple[Placement, Placement, str]]:
    """Consecutive processes that differ in their rank only: the first, the last, and their hardware."""

    def kind(item: Placement) -> tuple[Any, ...]:
        place = (item.node_rank, item.node_group)
        return place if by_node else (*place, item.hardware_ranks, item.accelerators)

    for _, group in groupby(items, key=kind):
        run = list(group)
        used = sorted({rank for item in run for rank in item.hardware_ranks})
        yield run[0], run[-1], span(used) if used else ""


def _own_environment(plan: Plan, item: Placement) -> str:
    """What env_configs give to this process: its interpreter, and the names of its variables."""
    group = _group(plan, item.node_group)
    names = [*group.env_vars.get(item.node_rank, {})]
    return ", ".join(part for part in (group.interpreters.get(item.node_rank), few(names, most=3)) if part)


def _group(plan: Plan, label: str) -> Group:
    return next(group for group in plan.groups if group.label == label)


def explain(plan: Plan, cluster: Mapping[str, Any], component: str) -> list[str]:
    """Why the processes of ``component`` are where they are. Raises KeyError: there is no such component."""
    items = plan.placements[component]
    value = _written(cluster, component)
    text, labels = value, "cluster (no node_group is named)"
    if isinstance(value, Mapping):
        text = value["placement"]
        labels = str(value.get("node_group", labels))
    used = [_group(plan, label) for label in dict.fromkeys(_labels_of(value))]
    lines = [f"{component}: placement {text!r} in node group {labels}"]
    for group in used:
        lines.append(
            f"  group {group.label}: node {span([node.number for node in group.nodes])}; a number means one "
            f"{group.numbers_mean}, because {_why(group)}; there are {len(group.resources)}"
        )
        without = [
            node.number for node in group.nodes if group.hardware_type and not node.hardware.get(group.hardware_type)
        ]
        if without:
            lines.append(f"    node {span(without)} has no {group.numbers_mean}, and so no number in this group")
    if len(used) > 1:
        lines.append("  numbers run through the groups in the order in which they are named")
    if items and items[0].strategy == "NODE":
        lines.append("  so processes are placed on whole nodes, and each sees all devices of its node")
    elif items:
        isolated = items[0].isolate and any(group.hardware_type == ACCELERATOR for group in used)
        sees = "its own accelerators only" if isolated else "all devices of its node"
        lines.append(f"  so processes are placed by hardware, and each sees {sees}")
    if items:
        master = plan.nodes[items[0].node_rank]
        lines.append(
            f"  {len(items)} processes, counted from 0; they meet at process 0: node {master.rank}, {master.name}"
        )
    return lines


def _written(cluster: Mapping[str, Any], component: str) -> Any:
    for key, value in cluster["component_placement"].items():
        if component in [name.strip() for name in str(key).split(",")]:
            return value
    raise KeyError(component)


def _labels_of(value: Any) -> list[str]:
    if not isinstance(value, Mapping) or "node_group" not in value:
        return ["cluster"]
    text = str(value["node_group"])
    return [part.strip() for part in text.split(",")] if "," in text else [text]


def _why(group: Group) -> str:
    if group.label == "node":
        return "the group 'node' always means nodes"
    if group.hardware_type == ACCELERATOR:
        first = next((node for node in group.nodes if node.accelerator_count), None)
        return "hardware_type says so" if first is None else f"node {first.rank} has {first.accelerator_count} of them"
    if group.hardware_type is not None:
        return f"its hardware is {group.hardware_type}"
    if any(node.accelerator_count for node in group.nodes):
        return "it has ignore_hardware"
    return "none of its nodes has an accelerator"


def environment_lines(plan: Plan, component: str, process_rank: int) -> list[str]:
    """Each variable of a process with its source, and what it replaces; secrets are masked."""
    item = plan.placements[component][process_rank]
    layers = plan.environments.layers(component, plan.placements[component], process_rank)
    final = plan.env(component, process_rank)
    told: list[str] = [f"{item.actor_name} on node {item.node_rank}, {plan.nodes[item.node_rank].name}:"]
    if plan.nodes[item.node_rank].env is None:
        told.append("  (of the node's own environment, no more than RLINF_* is known)")
    owner: dict[str, str] = {}
    dropped: dict[str, list[str]] = {}
    for source, variables in layers:
        for name, text in variables.items():
            if name in owner and not Environments.merges(name) and _value(layers, owner[name], name) != text:
                before = _value(layers, owner[name], name)
                dropped.setdefault(name, []).append(f"{_shown(name, before)} of {owner[name]}")
            owner[name] = source
    for source, words in _SOURCES.items():
        mine = sorted(name for name in final if owner.get(name) == source)
        if mine:
            verb = "passed" if source == "node" else "set"
            told.append(f"  {verb} by {words.format(group=item.node_group)}:")
        for name in mine:
            instead = f"   (dropped: {', '.join(dropped[name])})" if name in dropped else ""
            told.append(f"    {name}={_shown(name, final[name])}{instead}")
    return told


def masked(name: str, text: str) -> str:
    """The value of a variable for people and scripts: no secret, no private key, and no password of a proxy."""
    is_secret = _SECRET.search(name) or _PRIVATE_KEY in text
    return "***" if is_secret else _PASSWORD_OF_URL.sub("://***@", text)


def _value(layers: Sequence[tuple[str, Mapping[str, str]]], source: str, name: str) -> str:
    return dict(layers)[source][name]


def _shown(name: str, text: str) -> str:
    text = masked(name, text)
    return text if len(text) <= _SHOWN_TEXT_CHARS else f"{text[:_SHOWN_TEXT_CHARS]}…"
