"""Tells what Ray's nodes have, and which placement groups and actors wait for room; run by *Ray's* interpreter.

    ray_pending.py ADDRESS

It needs nothing but the standard library and ray, asks the GCS only, and counts as no driver. It prints a line at once
and at each change, until its input ends: ``{"waiting": [{"id": …, "what": …, "strategy": …, "bundles": [{"GPU": 4.0},
…], "never": …}], "nodes": [{"ip": …, "total": {…}, "free": {…}}]}``. ``never``: Ray says that no node has so much.
``nodes`` is null, with ``error``, while Ray has not answered yet.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file must not shadow anybody's modules

import json
import select
from typing import Any

LOOK_S = 2.0
MOST = 20  # of a run that has thousands of actors waiting, these


def groups_waiting(table: "dict[str, dict[str, Any]]") -> "dict[str, dict[str, Any]]":
    """The placement groups that have no room yet, by id."""
    return {
        identity: {
            "id": identity,
            "what": f"placement group {group['name'] or identity[:8]}",
            "strategy": group["strategy"],
            "bundles": list(group["bundles"].values()),
            "never": group["stats"]["scheduling_state"] == "INFEASIBLE",
        }
        for identity, group in table.items()
        if group["state"] in ("PENDING", "RESCHEDULING")
    }


def actors_waiting(actors: "list[Any]", groups: "dict[str, Any]", nodes: "list[dict[str, Any]]") -> "dict[str, Any]":
    """The actors that no node has room for now; one that has room is being started, which may take its time."""
    found = {}
    for actor in actors:
        wanted = dict(actor.required_resources)
        if actor.placement_group_id.hex() in groups or any(fits(wanted, node["free"]) for node in nodes):
            continue
        found[actor.actor_id.hex()] = {
            "id": actor.actor_id.hex(),
            "what": f"actor {actor.name or actor.class_name}",
            "strategy": "",
            "bundles": [wanted],
            "never": not any(fits(wanted, node["total"]) for node in nodes),
        }
    return found


def fits(wanted: "dict[str, float]", has: "dict[str, float]") -> bool:
    """Whether there is so much of each resource."""
    return all(has.get(name, 0.0) >= amount for name, amount in wanted.items())


def connect(address: str) -> Any:
    """Ray's view of the cluster. `ray.init` would start processes, and count as a job."""
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

    state = GlobalState()
    options = GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    return state


def look(state: Any) -> "tuple[dict[str, Any], list[dict[str, Any]]]":
    """Return what waits at this moment, by id, and what each node has."""
    from ray.core.generated import gcs_pb2

    free = state.available_resources_per_node()
    nodes = [
        {"ip": node["NodeManagerAddress"], "total": node["Resources"], "free": free.get(node["NodeID"], {})}
        for node in state.node_table()
        if node["Alive"]
    ]
    groups = groups_waiting(state.placement_group_table())
    rows = state._connect_and_get_accessor().get_actor_table(None, "PENDING_CREATION")
    actors = [gcs_pb2.ActorTableData.FromString(row) for row in rows]
    return {**groups, **actors_waiting(actors, groups, nodes)}, nodes


def main() -> int:
    state: Any = None
    before: dict[str, Any] = {}
    told: dict[str, Any] = {}
    while True:
        try:
            state = state or connect(sys.argv[1])
            waiting, nodes = look(state)
        except Exception as error:  # Ray's own, whatever they are; a GCS that is away is asked again
            state = None
            answer = told or {"waiting": [], "nodes": None, "error": f"{type(error).__name__}: {error}"}
        else:
            # What is there for a moment only, while Ray makes it, is no news.
            twice = sorted(identity for identity in waiting if identity in before)[:MOST]
            before = waiting
            answer = {"waiting": [waiting[each] for each in twice], "nodes": nodes}
        if answer != told:
            told = answer
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        if select.select([sys.stdin], [], [], LOOK_S)[0]:
            return 0


if __name__ == "__main__":
    raise SystemExit(main())
