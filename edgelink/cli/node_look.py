"""Between the grant and the driver: do the nodes have the interpreters that the cluster file names, and one rlinf?"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from edgelink.cli.as_ray import as_ray
from edgelink.cli.patience import waiting_for
from edgelink.errors import EdgelinkError
from edgelink.placement.interpreters import refuse_missing, wanted_interpreters
from edgelink.training.code_sync import imported_from, is_off
from edgelink.training.code_trees import FIX, Tree, tree_differences
from edgelink.training.framework import Framework

_PATIENCE_S = 30.0  # with a node: a board with an SD card takes its time to start a worker
_LIMIT_S = 90.0  # whatever else hangs
_PACKAGE = "rlinf"


def look_at_nodes(
    granted: Mapping[str, Any],
    cluster: Mapping[str, Any] | None,
    framework: Framework,
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> None:
    """Ask all nodes, where there is something to ask; a difference of the code is said, a missing interpreter refused.

    Args:
        granted: the head daemon's answer to the run.
        cluster: the section that was resolved.
        environment: the driver's.

    Raises:
        InvalidClusterError: an interpreter is not on a node that the section wants it on.
    """
    nodes = {node["node_rank"]: node for node in granted["nodes"] if node.get("ray_node_id")}
    names = {rank: str(node["hostname"]) for rank, node in nodes.items()}
    interpreters = {} if cluster is None else wanted_interpreters(cluster)
    # What RLinf carries is the same everywhere; without a tree here there is nothing to compare with.
    compares = framework.syncs_code and is_off(environment) and len(nodes) > 1
    compares = compares and imported_from(environment, Path.cwd()) is not None
    asked = set(nodes) if compares else set(interpreters) & set(nodes)
    if not asked:
        return
    question = {
        "address": granted["environment"]["RAY_ADDRESS"],
        "package": _PACKAGE if compares else None,
        "search": [str(Path.cwd()), *filter(None, environment.get("PYTHONPATH", "").split(":"))],
        "patience_s": _PATIENCE_S,
        "nodes": [
            {
                "name": names[rank],
                "ray_node_id": nodes[rank]["ray_node_id"],
                "interpreters": dict.fromkeys(interpreters.get(rank, ()), compares),
            }
            for rank in sorted(asked)
        ],
    }
    found, problem = _answers(granted, question)
    for name in (names[rank] for rank in sorted(asked)):
        if why := found.get(name, {}).get("error", problem if name not in found else ""):
            say(f"warning: {name}: its code and interpreters were not looked at: {why}")
    if compares and (trees := found.get(names[min(nodes)], {}).get("trees")):
        _compare(trees, {name: found[name] for name in names.values() if name in found}, say)
    if cluster is not None:
        refuse_missing(cluster, {rank: found.get(name, {}).get("missing", {}) for rank, name in names.items()}, names)


def _compare(of_head: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]], say: Callable[[str], None]) -> None:
    head = Tree.from_dict(of_head[""])
    others = [
        (f"{name} ({python})" if python else name, Tree.from_dict(tree))
        for name, answer in found.items()
        for python, tree in answer.get("trees", {}).items()
    ]
    differences = tree_differences(head, others)
    for said in differences:
        say(f"warning: rlinf on {said}; {FIX}")
    if not differences and len(found) > 1:
        say(f"rlinf is the same on {len(found)} nodes: {len(head.files)} files")


def _answers(granted: Mapping[str, Any], question: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], str]:
    """What each node said, and why there is no more; asked by Ray's interpreter, as Ray's user where we are root."""
    program = resources.files("edgelink.ray_cluster").joinpath("node_look.py").read_text()
    found: dict[str, dict[str, Any]] = {}
    try:
        with waiting_for("asking the nodes for their code and interpreters"):
            done = subprocess.run(
                **as_ray(granted, "-c", program),
                input=json.dumps(question),
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return found, f"no answer within {_LIMIT_S:g} s"
    except (OSError, KeyError, EdgelinkError) as error:
        return found, f"Ray's interpreter cannot be asked: {error}"
    for line in done.stdout.splitlines():
        if line.startswith('{"node"'):
            answer = json.loads(line)
            found[answer.pop("node")] = answer
    return found, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]
