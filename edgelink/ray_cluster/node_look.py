"""What each node has of the training's code; a short Ray driver of its own, run by the *user's* interpreter.

One JSON question on stdin, one JSON line on stdout for each node as it answers; it judges nothing.

    {"address": "10.10.0.2:6379", "package": "rlinf", "search": ["/home/me/RLinf"], "patience_s": 30,
     "nodes": [{"name", "ray_node_id", "interpreters": {"/opt/venv/bin/python": false}}, …]}

    {"node": "edge-1", "missing": {"/opt/venv/bin/python": "No such file or directory"},
     "trees": {"": {"where": "/…/site-packages/rlinf", "files": {"scheduler/cluster.py": "9f86d081884c7d65"}}}}

``interpreters``: those that have to be there; true: the package's tree as that one imports it is told, too. Without a
``package`` no tree is told, else that of the node's own interpreter ("") always is. ``search``: where Ray has workers
look for code before all else.
"""

import json
import sys
from typing import Any

_HASH_CHARS = 16
_FIND_S = 20.0


def look(interpreters: "dict[str, bool]", package: "str | None", search: "list[str]") -> "dict[str, Any]":
    """Of the node on which this runs. Everything it needs is in it: it is pickled by value."""
    import hashlib
    import json
    import os
    import subprocess
    import sys

    find = (
        "import importlib.util as u, json, os, sys\n"
        "name, *search = json.loads(sys.argv[1])\n"
        "sys.path[:1] = search\n"  # the first is where -c was started
        "spec = u.find_spec(name)\n"
        "places = list(spec.submodule_search_locations or ()) if spec else []\n"
        "print(json.dumps(os.path.realpath(places[0]) if places else None))"
    )

    def tree(python: str) -> "dict[str, Any]":
        done = subprocess.run(
            [python, "-c", find, json.dumps([package, *search])],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_FIND_S,
            cwd="/",
            check=False,
        )
        lines = done.stdout.splitlines()
        if done.returncode != 0 or not lines:
            return {"error": (done.stderr.strip().splitlines() or ["no answer"])[-1][:300]}
        where, files = json.loads(lines[-1]), {}
        for root, directories, names in os.walk(where) if where else ():
            directories[:] = [name for name in directories if name not in (".git", "__pycache__")]
            for name in names:
                path = os.path.join(root, name)  # noqa: PTH118
                if name.endswith(".pyc") or not os.path.isfile(path):  # noqa: PTH113
                    continue
                digest = hashlib.sha256()
                with open(path, "rb") as file:  # noqa: PTH123
                    while block := file.read(1 << 20):
                        digest.update(block)
                files[os.path.relpath(path, where)] = digest.hexdigest()[:_HASH_CHARS]
        return {"where": where, "files": files}

    missing, trees = {}, {}
    for python in interpreters:
        try:
            os.stat(python)  # noqa: PTH116
        except OSError as error:
            missing[python] = error.strerror or str(error)
    wanted = [""] + [python for python, is_asked in interpreters.items() if is_asked and python not in missing]
    for python in wanted if package else ():
        try:
            trees[python] = tree(python or sys.executable)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            trees[python] = {"error": str(error)[:300]}
    return {"missing": missing, "trees": trees}


def ask(question: "dict[str, Any]") -> None:
    """Ask all nodes at once; who does not answer in time is told with an ``error``."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=question["address"], log_to_driver=False, logging_level="ERROR")
    task: Any = ray.remote(look)
    asked = {}
    for node in question["nodes"]:
        pinned = NodeAffinitySchedulingStrategy(node["ray_node_id"], soft=False)
        options = task.options(num_cpus=0, max_retries=0, scheduling_strategy=pinned)
        asked[options.remote(node["interpreters"], question["package"], question["search"])] = node["name"]
    late = list(asked)
    while late:
        done, late = ray.wait(late, timeout=question["patience_s"])
        if not done:
            break
        try:
            tell(asked[done[0]], **ray.get(done[0]))
        except Exception as error:
            tell(asked[done[0]], error=str(error).strip().splitlines()[-1][:300])
    for reference in late:
        tell(asked[reference], error=f"no answer within {question['patience_s']:g} s")


def tell(node: str, **found: Any) -> None:
    sys.stdout.write(json.dumps({"node": node, **found}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    ask(json.loads(sys.stdin.read()))
