"""What a head's GCS knows of nodes and actors, for the tests that end it: ``TABLES`` is a program for `python -c`."""

# Takes the GCS's address and prints JSON: the addresses of the nodes that are alive, and the actors of ended jobs that
# are not dead, by name or class. Only detached ones may be.
TABLES = """
import json, sys
from ray._raylet import GcsClientOptions, GlobalStateAccessor
from ray.core.generated import gcs_pb2
options = GcsClientOptions.create(sys.argv[1], None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=True)
accessor = GlobalStateAccessor(options)
accessor.connect()
jobs = [gcs_pb2.JobTableData.FromString(data) for data in accessor.get_job_table()]
running = {job.job_id for job in jobs if not job.is_dead}
actors = [gcs_pb2.ActorTableData.FromString(data) for data in accessor.get_actor_table(None, None)]
left = [actor for actor in actors if actor.state != gcs_pb2.ActorTableData.DEAD and actor.job_id not in running]
print(json.dumps({
    "alive": sorted(node["NodeManagerAddress"] for node in accessor.get_node_table() if node["Alive"]),
    "left": sorted(actor.name or actor.class_name for actor in left),
}))
"""
