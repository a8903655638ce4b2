"""Read a cluster file: RLinf's whole training configuration, or just its ``cluster`` section."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from edgelink.errors import PlacementError
from edgelink.placement.problems import Findings, InvalidClusterError, Notice, Stage
from edgelink.strict_yaml import TEXT_TAG, StrictLoader, dotted, lines_below
from edgelink.yaml_mistakes import YamlMistakeError, key_without_colon, told_plainly

_FLOAT = "tag:yaml.org,2002:float"
# Floats that OmegaConf reads next to those of YAML 1.1: ``1e3``, ``1.5e3``.
_EXPONENT = re.compile(r"^[-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$")
# Where a text is meant and a number or a boolean is easily read.
_RANKS = re.compile(r"^component_placement\.|\.(placement|node_group|node_ranks|label)$")
_PLAIN = re.compile(r"^(0|-?[1-9][0-9]*)$")
_WRITE_SECTION = "write num_nodes and component_placement under cluster:, or at the top level"
_MOST_NODES = 1_000_000  # of a YAML document, each alias counted as what it stands for


class _OmegaConfLoader(StrictLoader):
    """Reads plain scalars as OmegaConf does, and refuses a key that is written twice, as it does."""


_OmegaConfLoader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _first in "-+0123456789":
    _resolvers = _OmegaConfLoader.yaml_implicit_resolvers.setdefault(_first, [])
    _OmegaConfLoader.yaml_implicit_resolvers[_first] = [*_resolvers, (_FLOAT, _EXPONENT)]


@dataclass(frozen=True)
class ClusterFile:
    """What a cluster file says, and what could not be seen in it."""

    section: Mapping[str, Any]
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True)
class YamlFile:
    """All that a YAML file says, as OmegaConf reads it."""

    text: str
    content: Any
    notices: tuple[Notice, ...]  # values of the cluster section that YAML changed
    lines: Mapping[str, int]  # of each key of the cluster section


def load_cluster_file(path: Path) -> Mapping[str, Any]:
    """The ``cluster`` section of ``path``, as RLinf's own reader gives it.

    Raises:
        PlacementError: unreadable, not YAML, no such section, or values that EdgeLink cannot know.
    """
    return read_cluster_file(path).section


def read_cluster_file(path: Path) -> ClusterFile:
    """``path`` with notices of values that YAML changed. Raises PlacementError, as :func:`load_cluster_file`."""
    file = read_yaml(path)
    return ClusterFile(section_of(file.content, str(path), file.lines), file.notices)


def read_yaml(path: Path) -> YamlFile:
    """All of ``path``, which is read once: it may be a pipe. Raises PlacementError: unreadable, or not YAML."""
    try:
        text = path.read_text()
        content, changed, lines = parse_yaml(text)
    except OSError as error:
        raise PlacementError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    except UnicodeDecodeError as error:
        raise PlacementError(f"{path}: is not a text file", hint="name a YAML file") from error
    except YamlMistakeError as error:
        raise PlacementError(f"{path}: {error}", hint=error.hint) from error
    section = "cluster." if isinstance(content, Mapping) and "cluster" in content else ""
    below = {f"cluster.{key.removeprefix(section)}": line for key, line in lines.items() if key.startswith(section)}
    return YamlFile(text, content, tuple(_changed_values(changed, section)), below)


def section_of(content: Any, source: str, lines: Mapping[str, int]) -> Mapping[str, Any]:
    """The cluster section in ``content``. Raises PlacementError: there is none, or it has interpolations."""
    section = content.get("cluster", content) if isinstance(content, Mapping) else content
    if not isinstance(section, Mapping) or not {"num_nodes", "component_placement"} & set(section):
        raise PlacementError(f"{source}: no cluster section", hint=_meant(section, lines) + _WRITE_SECTION)
    findings = Findings()
    for key, value in _strings("cluster", section):
        if "${" in value:
            rule, detail = "interpolation not supported yet", "EdgeLink does not resolve ${…} by itself"
            fix = "write the value out; `edgelink plan` resolves it with an interpreter that has omegaconf"
            findings.add(Stage.PARSE, key, value, rule, detail, fix)
    if findings.count:
        raise InvalidClusterError(findings.problems).located(source, lines)
    return section


def _meant(section: Any, lines: Mapping[str, int]) -> str:
    """Where ``cluster`` or one of its keys is misspelt, or has no colon."""
    if isinstance(section, str) and (found := key_without_colon(section)):
        return f"no colon and space after {found[0]}: write `{found[1]}`; "
    for key in section if isinstance(section, Mapping) else ():
        if near := get_close_matches(str(key), ("cluster", "num_nodes", "component_placement"), n=1, cutoff=0.7):
            return f"did you mean {near[0]}, where line {lines.get(f'cluster.{key}')} has {key}? "
    return ""


def parse_yaml(text: str) -> tuple[Any, list[tuple[str, str, Any]], dict[str, int]]:
    """Read ``text`` as OmegaConf does.

    Returns:
        The content, of each plain scalar that is no plain text (key path, text, value), and the line of each key.

    Raises:
        YamlMistakeError: not YAML, a key twice, aliases without end, or a value that does not fit its type.
    """
    with told_plainly(text):
        loader = _OmegaConfLoader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None, [], {}
            _count_nodes(node, {})
            content = loader.construct_document(node)
            lines = {dotted(place): line for place, line in lines_below(node).items()}
            return content, list(_plain_scalars(loader, node, "")), lines
        finally:
            loader.dispose()


def _count_nodes(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Of ``node`` with all aliases written out; a few lines of them may stand for more than any memory holds.

    Args:
        counts: by id of a node, its count; None: it is being counted, so that it holds itself.

    Raises:
        YamlMistakeError: more than _MOST_NODES, or a node that holds itself.
    """
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counts:
        counts[id(node)] = None
        pairs = node.value if isinstance(node, yaml.MappingNode) else [(item,) for item in node.value]
        counts[id(node)] = 1 + sum(_count_nodes(item, counts) for pair in pairs for item in pair)
    count = counts[id(node)]
    if count is None or count > _MOST_NODES:
        problem = "begins what has an alias of itself" if count is None else "begins too many values"
        raise YamlMistakeError(node.start_mark.line + 1, problem, "write the values out, and fewer of them")
    return count


def _plain_scalars(loader: yaml.SafeLoader, node: yaml.Node, key: str) -> Iterator[tuple[str, str, Any]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _plain_scalars(loader, value, f"{key}.{name.value}" if key else str(name.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _plain_scalars(loader, value, f"{key}[{index}]")
    elif isinstance(node, yaml.ScalarNode) and node.style is None and node.tag != TEXT_TAG:
        yield key, node.value, loader.construct_object(node)


def _changed_values(scalars: list[tuple[str, str, Any]], section: str) -> Iterator[Notice]:
    """Values below ``section`` that are meant as text, and that YAML made another of: ``1:0``, ``010``, ``on``."""
    for path, text, value in scalars:
        if not path.startswith(section):  # a program's own matter
            continue
        key = path.removeprefix(section)
        if _RANKS.search(key) and not _PLAIN.match(text) and str(value) != text:
            message = f"YAML reads {text} as {value!r}"
            yield Notice("yaml_changed_value", message, f"cluster.{key}", f"quote it: '{text}'")


def _strings(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Every string below ``value``, with the path of its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _strings(f"{key}.{name}", item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _strings(f"{key}[{index}]", item)
