"""Read a cluster file: RLinf's whole training configuration, or just its ``cluster`` section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from edgelink.errors import PlacementError
from edgelink.placement.problems import InvalidClusterError, Problem


def load_cluster_file(path: Path) -> Mapping[str, Any]:
    """The ``cluster`` section of ``path``, as YAML gives it.

    Raises:
        PlacementError: unreadable, not YAML, no such section, or values that EdgeLink cannot know.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise PlacementError(f"{path}: cannot be read: {error.strerror}", hint="check the path") from error
    except UnicodeDecodeError as error:
        raise PlacementError(f"{path}: is not a text file", hint="name a YAML file") from error
    except yaml.YAMLError as error:
        raise PlacementError(f"{path}: is not valid YAML: {error}", hint="correct the line that is named") from error
    section = content.get("cluster", content) if isinstance(content, Mapping) else content
    if not isinstance(section, Mapping) or not {"num_nodes", "component_placement"} & set(section):
        raise PlacementError(
            f"{path}: no cluster section",
            hint="write num_nodes and component_placement under cluster:, or at the top level",
        )
    problems = [
        Problem(key, value, "interpolation not supported yet", "EdgeLink does not resolve ${…}", "write the value out")
        for key, value in _strings("cluster", section)
        if "${" in value
    ]
    if problems:
        raise InvalidClusterError(problems)
    return section


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
