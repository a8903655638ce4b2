"""The reconcilers of Ray: an edge joins the head's cluster, the head makes the cluster and says what it is.

Both leave a Ray that works alone, whatever else is down, and adopt the one of a predecessor. A change of what Ray was
started with (incarnation of the head, own rank, address, configuration) starts it anew on this node.
"""

from edgelink.ray_cluster.edge_reconciler import RayEdgeReconciler
from edgelink.ray_cluster.head_reconciler import RayHeadReconciler
from edgelink.ray_cluster.ray_reconciler import RayInputs

__all__ = ["RayEdgeReconciler", "RayHeadReconciler", "RayInputs"]
