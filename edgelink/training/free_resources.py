"""Asks Ray what is free on each node, without becoming a driver; run by the *driver's* interpreter.

    free_resources.py ADDRESS

It needs nothing but the standard library and ray. The last line of stdout is ``{"versions": {"ray": …, "grpcio": …},
"nodes": [{"ray_node_id": …, "ip": …, "total": {…}, "free": {…}}, …]}``; ``nodes`` is null, with ``error``, where Ray
does not say.
"""

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # the directory of this file must not shadow anybody's modules

import importlib.metadata as metadata
import json
from typing import Any


def version(package: str) -> "str | None":
    """Of the package as it is installed for this interpreter."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def nodes(address: str) -> "list[dict[str, Any]]":
    """Those that are alive. `ray.init` would take longer, start processes, and count as a job."""
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions  # type: ignore[attr-defined]

    state = GlobalState()
    options = GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    free = state.available_resources_per_node()
    return [
        {
            "ray_node_id": node["NodeID"],
            "ip": node["NodeManagerAddress"],
            "total": node["Resources"],
            "free": free.get(node["NodeID"], {}),
        }
        for node in state.node_table()
        if node["Alive"]
    ]


def main() -> int:
    answer: dict[str, Any] = {"versions": {name: version(name) for name in ("ray", "grpcio")}, "nodes": None}
    try:
        answer["nodes"] = nodes(sys.argv[1])
    except Exception as error:  # Ray's own, whatever they are
        answer["error"] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
