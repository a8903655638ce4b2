"""A whole installation on one machine, in network and mount namespaces: for the demo, for tests, for learning."""

from edgelink.lab.lab import DEFAULT_NAME, Lab
from edgelink.lab.topology import CLOUD, INTERNET, RELAY, edge_name

__all__ = ["CLOUD", "DEFAULT_NAME", "INTERNET", "RELAY", "Lab", "edge_name"]
