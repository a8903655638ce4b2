"""RLinf's ``cluster:`` section: which process of which component runs on which node, before anything is started.

Supported now: ``num_nodes``, ``node_groups`` (``label``, ``node_ranks``, ``ignore_hardware``) and
``component_placement`` on CPU-only and accelerator nodes, with RLinf's exact meaning. What is not supported yet
(``hardware``, ``hardware_type``, ``env_configs``, ``profiling``) is refused by name, never ignored.
"""

from edgelink.placement.early import check_before_waiting
from edgelink.placement.load import load_cluster_file
from edgelink.placement.model import Group, Node, Notice, Placement, Plan
from edgelink.placement.problems import InvalidClusterError, Problem
from edgelink.placement.resolve import plan

__all__ = [
    "Group",
    "InvalidClusterError",
    "Node",
    "Notice",
    "Placement",
    "Plan",
    "Problem",
    "check_before_waiting",
    "load_cluster_file",
    "plan",
]
