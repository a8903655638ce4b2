"""What is wrong with a ``cluster:`` section whatever the nodes turn out to be: said before anyone is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgelink.placement.problems import Findings, InvalidClusterError, Notice, Stage
from edgelink.placement.resolve import check_without_nodes
from edgelink.placement.rlinf_rules import RLINF_0_3, RlinfRules
from edgelink.placement.sections import read_cluster

_MOST_NODES = 65_533  # an overlay network is a /16 at most


def check_before_waiting(cluster: Mapping[str, Any], rules: RlinfRules = RLINF_0_3) -> tuple[Notice, ...]:
    """Read ``cluster``, knowing nothing of the nodes; what may be regretted.

    Raises:
        InvalidClusterError: with every problem that no node can mend.
    """
    findings = Findings()
    section = read_cluster(cluster, findings, rules)
    if section.num_nodes is not None and section.num_nodes > _MOST_NODES:
        fix = "write the number of machines, for example num_nodes: 3"
        rule = "more nodes than a network can have"
        findings.add(Stage.PARSE, "cluster.num_nodes", section.num_nodes, rule, "", fix)
    check_without_nodes(section, findings)
    if findings.count:
        raise InvalidClusterError(findings.problems)
    return tuple(findings.notices)
