"""RLinf's reasoning and agent programs place by a class of their own (rlinf/utils/placement.py, 0.3.0 and main)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from edgelink.cli.users_python import ask, interpreters
from edgelink.errors import PlacementError
from edgelink.frameworks.packages import HELPER as INSTALLED
from edgelink.placement import Notice, Packed, Plan

OWN_PLACEMENT = "placed_by_program"
_HELPER = Path(__file__).parent.parent / "frameworks" / "rlinf_placement.py"
_REFUSED = 4  # of the helper
_CLASSES = {  # by runner.task_type, as rlinf/config.py and the programs below examples/reasoning and examples/agent
    "reasoning": "ModelParallelComponentPlacement",
    "coding_online_rl": "ModelParallelComponentPlacement",
    "reasoning_eval": "ModelParallelEvalComponentPlacement",
}


@dataclass(frozen=True)
class InstalledRlinf:
    """The RLinf of an interpreter. ``at``: its directory. ``versions``: what ``rlinf_rules`` takes."""

    python: Path
    at: Path
    versions: Mapping[str, str | None]


def installed_rlinf(python: Path | None) -> InstalledRlinf | None:
    """Return the RLinf of the first interpreter that has one. None: none has."""
    for candidate in interpreters(python):
        status, answer = ask(candidate, INSTALLED, ["rlinf", "torch"])
        if status == 0 and answer.get("rlinf") is not None:
            versions = {"version": answer["rlinf"]["version"], "torch": (answer["torch"] or {}).get("version")}
            return InstalledRlinf(candidate, Path(answer["rlinf"]["at"]), versions)
    return None


def note_own_placement(content: Any) -> Iterator[Notice]:
    """Say that the program gives each process of rollout several accelerators."""
    rollout = content.get("rollout") if isinstance(content, Mapping) else None
    if not isinstance(rollout, Mapping):
        return
    sizes = [rollout.get(f"{each}_parallel_size", 1) for each in ("tensor", "pipeline")]
    if all(isinstance(size, int) for size in sizes) and prod(sizes) > 1:
        message = (
            f"RLinf's reasoning and agent programs give each process of rollout {prod(sizes)} accelerators, by its "
            "parallel sizes; this plan gives what component_placement alone says"
        )
        fix = "plan it against nodes with an interpreter that has rlinf (--python)"
        yield Notice(OWN_PLACEMENT, message, "rollout.tensor_parallel_size", fix)


def own_placement(
    content: Any, plan: Plan, installed: InstalledRlinf | None, say: Callable[[str], None]
) -> dict[str, Packed]:
    """Ask the installed RLinf how its program places what ``plan`` placed by the section alone.

    Returns:
        By component; empty if the program follows the section, or if there is no RLinf to ask.

    Raises:
        PlacementError: RLinf refuses it.
    """
    name = _class_of(content, plan)
    if name is None or installed is None:
        return {}
    count = sum(node.accelerator_count for node in plan.nodes)
    ranks = {component: list(each) for component, each in plan.component_ranks.items()}
    question = json.dumps({"class": name, "config": content, "ranks": ranks, "accelerators": count}, default=str)
    say(f"asking RLinf of {installed.python} how its {name} places")
    status, answer = ask(installed.python, _HELPER, [], question)
    if status == _REFUSED:
        raise PlacementError(
            f"cluster.component_placement: RLinf's {name} refuses it: {answer['error']}",
            hint="correct it: the training program would end with the same words",
        )
    return {component: Packed(*each) for component, each in answer["packed"].items()} if status == 0 else {}


def _class_of(content: Any, plan: Plan) -> str | None:
    """Return the class by which the program of this configuration places; None if it follows the section."""
    runner = content.get("runner") if isinstance(content, Mapping) else None
    name = _CLASSES.get(str(runner.get("task_type"))) if isinstance(runner, Mapping) else None
    # Several engines, or an actor beside an evaluation, are of wideseek, which has classes of its own.
    several = any(component.startswith("rollout_") for component in plan.placements)
    beside = name == _CLASSES["reasoning_eval"] and "actor" in plan.placements
    return None if several or beside else name
