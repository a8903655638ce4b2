"""Reading the ``cluster`` section as RLinf's ``ClusterConfig`` does, with all that is wrong with it.

The order of the passes is RLinf's: first ``profiling``, then the shape of all groups, then their contents, then their
ranks, then robots across groups, and ``num_nodes`` last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from edgelink.placement.grammar import parse_node_ranks, span
from edgelink.placement.problems import Findings, RuleBrokenError, Stage
from edgelink.placement.profiling import Profiling, read_profiling
from edgelink.placement.rlinf_rules import RlinfRules
from edgelink.placement.robots import ROBOT_TYPES, Robot, read_robot

RESERVED_LABELS = ("node", "cluster")
_CLUSTER_FIELDS = ("num_nodes", "component_placement", "node_groups", "profiling")
_LATER_FIELDS = ("net_emulation", "tracer")  # since RLinf 0.4
# What RLinf's programs and workers read of it by themselves (0.3.0 and main).
_READ_ELSEWHERE = ("use_pre_process_policy", "use_wait_before_last_iter_policy", "recreate_nccl_groups")
_GROUP_FIELDS = ("label", "node_ranks", "env_configs", "hardware", "hardware_type", "ignore_hardware")
_ENV_FIELDS = ("node_ranks", "env_vars", "python_interpreter_path")
_MOST_NODES = 1_000_000  # what is more is not expanded: the nodes are missing anyway
_ONCE_A_GROUP = (
    "RLinf's guide says once a node, but its code wants each variable once a group: put nodes that need different "
    "values into groups of their own, or export the variable there before Ray is started"
)
_NO_RANKS = "node_ranks with no available ranks"
_NUM_NODES_FIX = "write the number of machines, for example num_nodes: 3"


@dataclass
class EnvConfig:
    """An entry of ``env_configs``."""

    key: str
    raw_ranks: Any
    python: str | None
    variables: list[tuple[str, str]] = field(default_factory=list)
    node_ranks: tuple[int, ...] = ()


@dataclass
class GroupSection:
    """An entry of ``node_groups``."""

    key: str
    raw: Mapping[str, Any]
    label: str
    robots: list[Robot] = field(default_factory=list)
    hardware_type: str | None = None
    ignore_hardware: bool = False
    env_configs: list[EnvConfig] = field(default_factory=list)
    node_ranks: tuple[int, ...] = ()
    is_valid: bool = True


@dataclass
class ClusterSection:
    """The section, as far as it can be read."""

    num_nodes: int | None  # None: not usable
    groups: list[GroupSection]
    has_groups: bool  # ``node_groups`` is there, even if it is empty
    profiling: Profiling | None
    component_placement: Any
    unread: frozenset[str] = frozenset()  # labels, perhaps, of entries of ``node_groups`` that cannot be read


def read_cluster(cluster: Mapping[str, Any], findings: Findings, rules: RlinfRules) -> ClusterSection:
    """Read ``cluster`` by the rules of the installed RLinf. Its problems go to ``findings``."""
    if not isinstance(cluster, Mapping):
        findings.add(
            Stage.PARSE, "cluster", cluster, "cluster not a mapping", "", "write num_nodes: and the rest below it"
        )
        cluster = {}
    misspelt = _misspelt(cluster, ("num_nodes", "component_placement"), _CLUSTER_FIELDS)
    for name in ("num_nodes", "component_placement"):
        if name in misspelt.values():
            written = next(key for key, meant in misspelt.items() if meant == name)
            detail, fix = f"cluster.{name} is missing", f"did you mean {name}?"
            findings.add(Stage.PARSE, f"cluster.{written}", None, "cluster field unknown", detail, fix)
        elif name not in cluster or cluster[name] == "???":
            fix = _NUM_NODES_FIX if name == "num_nodes" else "add component_placement with one entry a component"
            findings.add(Stage.PARSE, f"cluster.{name}", None, "cluster field missing", "", fix)
    for name in ("node_groups", "profiling"):
        _refuse_missing(cluster.get(name), f"cluster.{name}", Stage.PARSE, findings)
    _refuse_missing(cluster.get("component_placement"), "cluster.component_placement", Stage.COMPONENT, findings)
    emulation = cluster.get("net_emulation")
    if "net_emulation" not in rules.unread_keys and isinstance(emulation, Mapping) and emulation.get("enabled"):
        message = "RLinf slows its own traffic down, as if the links were worse than they are"
        findings.notice("links_slowed_down", "cluster.net_emulation.enabled", message, "switch it off in a real run")
    for name in cluster:
        if name not in _CLUSTER_FIELDS and name not in misspelt:
            _note_unknown_key(str(name), findings, rules)
    profiling = read_profiling(cluster.get("profiling"), findings)
    raw_groups = cluster.get("node_groups")
    shaped = list(_shaped_groups(raw_groups, findings))
    groups = [_read_group(key, raw, findings, rules) for key, raw in shaped]
    num_nodes = _read_num_nodes(cluster, findings, has_groups=bool(shaped))
    available = _available(cluster.get("num_nodes"))
    for group in groups:
        _read_ranks(group, available, findings)
    if available is not None:
        _check_robots(groups, findings)
    _check_num_nodes(cluster, findings, has_groups=bool(shaped))
    placement = cluster.get("component_placement", {})  # one that is missing was told above
    unread = _values_of_unread(raw_groups, [raw for _, raw in shaped])
    return ClusterSection(num_nodes, groups, raw_groups is not None, profiling, placement, unread)


def _values_of_unread(raw_groups: Any, shaped: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The values of entries that are not in ``shaped``: one is the label, under a key that is misspelt, say."""
    entries = raw_groups if isinstance(raw_groups, list) else []
    unread = [entry for entry in entries if isinstance(entry, Mapping) and not any(entry is one for one in shaped)]
    return frozenset(str(value) for entry in unread for value in entry.values())


def _misspelt(raw: Mapping[str, Any], needed: Sequence[str], known: Sequence[str]) -> dict[str, str]:
    """By a key that is not known, the field that is missing and that it is most like."""
    missing = [name for name in needed if name not in raw]
    near = {str(name): get_close_matches(str(name), missing, n=1, cutoff=0.7) for name in raw if name not in known}
    return {name: found[0] for name, found in near.items() if found}


def _refuse_missing(value: Any, key: str, stage: Stage, findings: Findings) -> None:
    """``???`` is Hydra's mark for a value that has to be given on the command line."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _refuse_missing(item, f"{key}.{name}", stage, findings)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_missing(item, f"{key}[{index}]", stage, findings)
    elif value == "???" and key != "cluster.component_placement":
        findings.add(stage, key, value, "mandatory value missing", "Hydra's mark for a value to come", "write it")


def _note_unknown_key(name: str, findings: Findings, rules: RlinfRules) -> None:
    """RLinf says nothing here, so that ``node_group:`` for ``node_groups:`` goes unnoticed."""
    if name in _READ_ELSEWHERE or (name in _LATER_FIELDS and name not in rules.unread_keys):
        return
    if name == "auto_scheduler":
        message = (
            "with auto_scheduler, RLinf's reasoning programs place the actor on all accelerators; this plan does not"
        )
        fix = "plan it against nodes with an interpreter that has rlinf (--python)"
        findings.notice("placed_by_program", f"cluster.{name}", message, fix)
        return
    meant = get_close_matches(name, _CLUSTER_FIELDS, n=1, cutoff=0.7)
    fix = f"did you mean {meant[0]}?" if meant else f"RLinf knows {', '.join(_CLUSTER_FIELDS)}"
    message = f"cluster.{name} is not a key that RLinf {rules.version} knows; it is ignored"
    if name in _LATER_FIELDS:
        message, fix = f"RLinf {rules.version} ignores cluster.{name}; 0.4.0 reads it", "it changes no placement"
    findings.notice("unknown_key_ignored", f"cluster.{name}", message, fix)


def _shaped_groups(value: Any, findings: Findings) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each entry that is a mapping with all fields that are needed and none that is unknown."""
    key = "cluster.node_groups"
    fix = "write a list: '- label: edge' and 'node_ranks: 1-2' below it"
    if value is None:
        return
    if isinstance(value, (str, Mapping)):
        if value:
            findings.add(Stage.PARSE, key, value, "node group not a mapping", "node_groups is not a list", fix)
        return
    if not isinstance(value, Sequence):
        findings.add(Stage.PARSE, key, value, "wrong YAML type", "node_groups is not a list", fix)
        return
    for index, raw in enumerate(value):
        here = f"{key}[{index}]"
        if not isinstance(raw, Mapping):
            findings.add(Stage.PARSE, here, raw, "node group not a mapping", "", "write label: and node_ranks:")
        elif _has_fields(raw, here, "node group", ("label", "node_ranks"), _GROUP_FIELDS, findings):
            yield here, raw


def _has_fields(
    raw: Mapping[str, Any], key: str, what: str, needed: Sequence[str], known: Sequence[str], findings: Findings
) -> bool:
    before = findings.count
    misspelt = _misspelt(raw, needed, known).values()
    for name in needed:
        if name not in raw and name not in misspelt:
            findings.add(Stage.PARSE, f"{key}.{name}", None, f"{what} field missing", "", f"add {name}:")
    for name in raw:
        if name not in known:
            meant = get_close_matches(str(name), known, n=1)
            fix = (f"did you mean {meant[0]}? " if meant else "") + f"known fields are {', '.join(known)}"
            shown = _without_values(raw[name])  # perhaps a misspelt env_vars
            findings.add(Stage.PARSE, f"{key}.{name}", shown, f"{what} field unknown", "", fix)
    return findings.count == before


def _read_group(key: str, raw: Mapping[str, Any], findings: Findings, rules: RlinfRules) -> GroupSection:
    before = findings.count
    group = GroupSection(key, raw, str(raw["label"]), ignore_hardware=bool(raw.get("ignore_hardware")))
    kind = raw.get("hardware_type")
    group.hardware_type = None if kind is None else str(kind)
    if raw.get("hardware") is not None:
        _read_hardware(group, raw["hardware"], findings, rules)
        if kind is not None:
            detail, fix = f"hardware_type is {kind!r}", "keep one of the two"
            findings.add(Stage.PARSE, key, group.label, "hardware and hardware_type both given", detail, fix)
        if group.ignore_hardware:
            fix = "remove ignore_hardware, or hardware"
            findings.add(Stage.PARSE, key, group.label, "hardware with ignore_hardware", "", fix)
    _read_env_configs(group, raw.get("env_configs"), findings)
    if group.label in RESERVED_LABELS:
        detail = "'cluster' and 'node' always exist and mean all nodes"
        findings.add(Stage.PARSE, f"{key}.label", group.label, "reserved label", detail, "choose another label")
    group.is_valid = findings.count == before
    return group


def _read_hardware(group: GroupSection, value: Any, findings: Findings, rules: RlinfRules) -> None:
    key = f"{group.key}.hardware"
    if not isinstance(value, Mapping):
        findings.add(Stage.PARSE, key, value, "hardware not a mapping", "", "write type: and configs: below it")
        return
    if not _has_fields(value, key, "hardware", ("type", "configs"), ("type", "configs"), findings):
        return
    kind, configs = str(value["type"]), value["configs"]
    if kind not in ROBOT_TYPES:
        fix = f"RLinf knows {', '.join(sorted(ROBOT_TYPES))}, written exactly so"
        findings.add(Stage.PARSE, f"{key}.type", value["type"], "hardware type unsupported", "", fix)
        return
    group.hardware_type = kind
    fix = "write a list: '- node_rank: 1' and the robot's fields below it"
    if isinstance(configs, (str, Mapping)):
        if configs:
            detail = "configs is not a list"
            findings.add(Stage.PARSE, f"{key}.configs", configs, "hardware entry not a mapping", detail, fix)
        return
    if not isinstance(configs, Sequence):
        findings.add(Stage.PARSE, f"{key}.configs", configs, "wrong YAML type", "configs is not a list", fix)
        return
    known = ("node_rank", *ROBOT_TYPES[kind].fields)
    entries: list[tuple[str, Mapping[str, Any]]] = []
    for index, entry in enumerate(configs):
        here = f"{key}.configs[{index}]"
        if not isinstance(entry, Mapping):
            findings.add(Stage.PARSE, here, entry, "hardware entry not a mapping", "", fix)
        elif _has_fields(entry, here, "hardware", ("node_rank",), known, findings):
            entries.append((here, entry))
    _check_unique(entries, findings, rules)
    read = [read_robot(kind, entry, here, findings) for here, entry in entries]
    group.robots = [robot for robot in read if robot is not None]


def _check_unique(entries: Sequence[tuple[str, Mapping[str, Any]]], findings: Findings, rules: RlinfRules) -> None:
    """RLinf compares entries as YAML texts. Those of 0.3.0 are of its own objects, where no list is like another."""
    first: dict[str, str] = {}
    for key, entry in entries:
        text = repr(sorted((str(name), value) for name, value in entry.items()))
        other = first.setdefault(text, key)
        if other == key:
            continue
        holds_lists = any(isinstance(value, (list, tuple, Mapping)) for value in entry.values())
        if holds_lists and not rules.compares_lists:
            message = f"{key} is the same as {other}: RLinf {rules.version} takes them for two robots"
            findings.notice("robot_defined_twice", key, message, "remove one of them")
        else:
            fix = "remove one of them"
            findings.add(Stage.PARSE, key, dict(entry), "hardware entries duplicated", f"the same as {other}", fix)


def _read_env_configs(group: GroupSection, value: Any, findings: Findings) -> None:
    key = f"{group.key}.env_configs"
    if value is None:
        return
    fix = "write a list: '- node_ranks: 0' and 'env_vars:' below it"
    if not isinstance(value, Sequence) or isinstance(value, str):
        shown = _without_values(value)
        findings.add(Stage.PARSE, key, shown, "env_configs not a list", "perhaps '-' is missing", fix)
        return
    for index, raw in enumerate(value):
        here = f"{key}[{index}]"
        if not isinstance(raw, Mapping):
            findings.add(Stage.PARSE, here, _without_values(raw), "env config not a mapping", "", fix)
        elif _has_fields(raw, here, "env config", ("node_ranks",), _ENV_FIELDS, findings):
            python = raw.get("python_interpreter_path")
            config = EnvConfig(here, raw["node_ranks"], None if python is None else str(python))
            _read_env_vars(config, raw.get("env_vars"), findings)
            group.env_configs.append(config)


def _read_env_vars(config: EnvConfig, value: Any, findings: Findings) -> None:
    key, fix = f"{config.key}.env_vars", "write a list with one variable an entry: '- NAME: \"value\"'"
    if value is None:
        return
    if not isinstance(value, Sequence) or isinstance(value, str):
        findings.add(Stage.PARSE, key, _without_values(value), "env_vars not a list", "perhaps '-' is missing", fix)
        return
    for index, entry in enumerate(value):
        here = f"{key}[{index}]"
        if not isinstance(entry, Mapping):
            findings.add(Stage.PARSE, here, _without_values(entry), "env var entry not a mapping", "", fix)
        elif len(entry) != 1:
            rule, shown = "env var entry not single-key", _without_values(entry)
            findings.add(Stage.PARSE, here, shown, rule, f"{len(entry)} keys", fix)
        else:
            ((name, text),) = entry.items()
            config.variables.append((str(name), str(text)))


def _without_values(value: Any) -> Any:
    """Names of variables only: their values may be secrets, which no error shows."""
    if isinstance(value, Mapping):
        return sorted(str(name) for name in value)
    if isinstance(value, list):
        return [_without_values(item) for item in value]
    return re.split("[=:]", value)[0] if isinstance(value, str) else value


def _read_num_nodes(cluster: Mapping[str, Any], findings: Findings, *, has_groups: bool) -> int | None:
    """With groups, RLinf counts the ranks first and stumbles over what is no number."""
    value = cluster.get("num_nodes")
    if has_groups and "num_nodes" in cluster and value != "???" and not isinstance(value, int):
        detail = "num_nodes not a positive integer"
        findings.add(Stage.PARSE, "cluster.num_nodes", value, "wrong YAML type", detail, _NUM_NODES_FIX)
    return value if _is_count(value) else None


def _check_num_nodes(cluster: Mapping[str, Any], findings: Findings, *, has_groups: bool) -> None:
    value = cluster.get("num_nodes")
    if "num_nodes" not in cluster or value == "???" or _is_count(value):
        return
    if isinstance(value, int) or not has_groups:
        rule = "num_nodes not a positive integer"
        findings.add(Stage.PARSE, "cluster.num_nodes", value, rule, "", _NUM_NODES_FIX)


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _available(num_nodes: Any) -> range | None:
    """The node ranks there are; True is 1 here, as in RLinf."""
    return range(num_nodes) if isinstance(num_nodes, int) and num_nodes <= _MOST_NODES else None


def _read_ranks(group: GroupSection, available: range | None, findings: Findings) -> None:
    raw = group.raw["node_ranks"]
    try:
        group.node_ranks = parse_node_ranks(raw, available)
    except RuleBrokenError as broken:
        if broken.rule != _NO_RANKS or not findings.has(_NO_RANKS):  # one slip, however many groups there are
            findings.broken(broken, Stage.PARSE, f"{group.key}.node_ranks", raw)
        group.is_valid = False
        available = None
    for config in group.env_configs:
        _read_env_ranks(config, group, findings, is_known=available is not None)
    _check_env_configs(group.env_configs, findings)


def _check_env_configs(configs: Sequence[EnvConfig], findings: Findings) -> None:
    """Each node in one entry only, and each variable once in the group."""
    taken: dict[int, str] = {}
    variables: dict[str, str] = {}
    for config in configs:
        overlap = [rank for rank in config.node_ranks if rank in taken]
        if overlap:
            detail = f"node {span(overlap)} is in {taken[overlap[0]]}, too"
            fix = "put each node of a group into one entry"
            key = f"{config.key}.node_ranks"
            findings.add(Stage.PARSE, key, config.raw_ranks, "env configs overlap on a node", detail, fix)
        taken.update(dict.fromkeys(config.node_ranks, config.key))
        for name, _ in config.variables:
            if name in variables:
                detail = f"already in {variables[name]}" if variables[name] != config.key else "twice in one list"
                rule = "env var duplicated in group"
                findings.add(Stage.PARSE, f"{config.key}.env_vars", name, rule, detail, _ONCE_A_GROUP)
            variables.setdefault(name, config.key)


def _read_env_ranks(config: EnvConfig, group: GroupSection, findings: Findings, *, is_known: bool) -> None:
    key, members = f"{config.key}.node_ranks", group.node_ranks
    try:
        config.node_ranks = parse_node_ranks(config.raw_ranks, members if is_known else None)
    except RuleBrokenError as broken:
        rule, detail, fix = broken.rule, broken.detail, broken.fix
        if rule == "node_ranks range descending":
            rule, detail = "env config node_ranks out of group range", f"{rule}: {detail}"
        elif rule == "node_ranks out of cluster range":
            rule, detail = "env config node_ranks out of group range", f"the group has node ranks {span(members)}"
            fix = "name nodes of this group only"
        elif rule == _NO_RANKS:
            detail, fix = "the group has no nodes", "give the group node_ranks, or remove this entry"
        findings.add(Stage.PARSE, key, config.raw_ranks, rule, detail, fix)
        return
    outside = sorted(set(config.node_ranks).difference(members)) if is_known else []
    if outside:
        detail = f"{span(outside)}, but the group has node ranks {span(members)}"
        fix = "name nodes of this group only"
        findings.add(Stage.PARSE, key, config.raw_ranks, "env config node_ranks not a subset", detail, fix)
        config.node_ranks = tuple(rank for rank in config.node_ranks if rank not in outside)


def _check_robots(groups: Sequence[GroupSection], findings: Findings) -> None:
    """Each robot inside its group, and the robots of one type on a node in one group only."""
    owners: dict[tuple[int, str], GroupSection] = {}
    for group in groups:
        members = set(group.node_ranks)
        for robot in group.robots if group.is_valid else ():
            if robot.node_rank not in members:
                detail = f"the group has node ranks {span(group.node_ranks)}"
                fix = "name a node of this group, or add the node to node_ranks"
                key = f"{robot.key}.node_rank"
                findings.add(Stage.PARSE, key, robot.node_rank, "hardware node_rank outside group", detail, fix)
            owner = owners.setdefault((robot.node_rank, robot.type), group)
            if owner.label != group.label:
                detail = f"{robot.type} on node {robot.node_rank} is in group {owner.label!r}, too"
                fix = "list all robots of one type on a node in one group"
                rule = "hardware type defined for a node in two groups"
                findings.add(Stage.PARSE, f"{robot.key}.node_rank", robot.node_rank, rule, detail, fix)
