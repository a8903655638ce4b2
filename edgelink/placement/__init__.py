"""RLinf's ``cluster:`` section: which process of which component runs where, in which environment, before it starts.

The rules are those of RLinf's own code (0.3.0, and 0.4 where it differs), also where its guide says something else.
Pure: no Ray, no RLinf.
"""

from edgelink.placement.cluster_file import load_cluster_file
from edgelink.placement.components import Packed
from edgelink.placement.early import check_before_waiting
from edgelink.placement.groups import Group, Placement
from edgelink.placement.nodes import Driver, Node, load_nodes_file
from edgelink.placement.plans import Plan
from edgelink.placement.problems import InvalidClusterError, Notice, Problem, Stage
from edgelink.placement.resolve import plan
from edgelink.placement.rlinf_rules import RLINF_0_3, RlinfRules, rlinf_rules

__all__ = [
    "RLINF_0_3",
    "Driver",
    "Group",
    "InvalidClusterError",
    "Node",
    "Notice",
    "Packed",
    "Placement",
    "Plan",
    "Problem",
    "RlinfRules",
    "Stage",
    "check_before_waiting",
    "load_cluster_file",
    "load_nodes_file",
    "plan",
    "rlinf_rules",
]
