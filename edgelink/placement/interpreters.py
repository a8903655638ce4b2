"""Which interpreters a ``cluster:`` section wants on which nodes, and what is wrong where they are not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelink.placement.problems import Findings, InvalidClusterError, Stage
from edgelink.placement.rlinf_rules import RLINF_0_3
from edgelink.placement.sections import ClusterSection, read_cluster

RULE = "interpreter missing on node"
FIX = "install it there, or correct the path (in a nodes file: list it under that node's paths)"


def wanted_of(section: ClusterSection) -> dict[int, list[tuple[str, str]]]:
    """By node rank: (key, path) of each interpreter that has to be there."""
    paths: dict[int, list[tuple[str, str]]] = {}
    for group in section.groups:
        for config in group.env_configs:
            if config.python is not None:
                wanted = f"{config.key}.python_interpreter_path", config.python
                for rank in config.node_ranks:
                    paths.setdefault(rank, []).append(wanted)
    return paths


def wanted_interpreters(cluster: Mapping[str, Any]) -> dict[int, list[str]]:
    """By node rank, the paths of a section that was resolved."""
    return {
        rank: [path for _, path in wanted]
        for rank, wanted in wanted_of(read_cluster(cluster, Findings(), RLINF_0_3)).items()
    }


def refuse_missing(
    cluster: Mapping[str, Any], missing: Mapping[int, Mapping[str, str]], names: Mapping[int, str]
) -> None:
    """Say which interpreters are not where the section wants them.

    Args:
        missing: by node rank, path and why it is not there.
        names: of the nodes by rank.

    Raises:
        InvalidClusterError: with each of them, by its key and node.
    """
    findings = Findings()
    for rank, wanted in wanted_of(read_cluster(cluster, Findings(), RLINF_0_3)).items():
        for key, path in wanted:
            if why := missing.get(rank, {}).get(path):
                findings.add(Stage.DISCOVER, key, path, RULE, f"on node {rank}, {names[rank]}: {why}", FIX)
    if findings.count:
        raise InvalidClusterError(findings.problems)
