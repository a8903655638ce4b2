"""What a cluster file and a training configuration of RLinf tell of traffic; and links as RLinf emulates them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgelink.training.trainer.link_budget.links import Measured
from edgelink.training.trainer.link_budget.traffic import (
    RLINF_BY_ENV,
    RLINF_BY_ROLLOUT,
    Seats,
    crossings,
)

# Of RLinf's actor.model.model_type; what it loads from disk may be a little more.
_PARAMETERS = {"openvla": 7.5e9, "openvla_oft": 7.5e9, "openpi": 3.3e9}
_COMPONENTS = ("actor", "rollout", "env")
_RULES = {
    RLINF_BY_ENV: "env puts trajectories together (RLinf to 0.3.0)",
    RLINF_BY_ROLLOUT: "rollout does (since #1365)",
}


@dataclass(frozen=True)
class RlinfConfig:
    """What RLinf's training configuration says of its traffic.

    Attributes:
        group_names: of the worker groups, by component.
        parameters: of the model; None: its type is not known here.
        steps: exchanges of an observation for actions in one update, of all environments; None: not written there.
        environments: of all env workers; None: not written there.
    """

    group_names: Mapping[str, str] = field(default_factory=dict)
    model_type: str | None = None
    parameters: float | None = None
    steps: int | None = None
    environments: int | None = None

    @classmethod
    def of(cls, content: Any) -> RlinfConfig | None:
        """From all of a file; None: it is no such configuration, but a cluster file."""
        if not isinstance(content, Mapping) or not {"actor", "rollout", "env"} & set(content):
            return None
        names = {name: str(_at(content, name, "group_name") or f"{name.capitalize()}Group") for name in _COMPONENTS}
        model_type = _at(content, "actor", "model", "model_type")
        chunks = _number(_at(content, "actor", "model", "num_action_chunks")) or 1
        environments = _number(_at(content, "env", "train", "total_num_envs"))
        steps = _number(_at(content, "env", "train", "max_steps_per_rollout_epoch"))
        epochs = _number(_at(content, "algorithm", "rollout_epoch")) or 1
        return cls(
            names,
            str(model_type) if model_type else None,
            _PARAMETERS.get(str(model_type)),
            environments * steps * epochs // chunks if environments and steps else None,
            environments,
        )


def crossing_lines(seats: Seats, rules: Sequence[str]) -> list[str]:
    """How often each observation crosses a link under RLinf, by these of its versions' rules; empty: never."""
    told = []
    for rule in rules:
        counts = crossings(seats, rule)
        if any(counts):
            often = f"{min(counts)} to {max(counts)} times" if min(counts) != max(counts) else f"{counts[0]} times"
            often = "once" if set(counts) == {1} else often
            told.append(f"each observation crosses {often} where {_RULES[rule]}")
    return told


def net_emulation(
    measured: Measured, placements: Mapping[str, Sequence[Mapping[str, Any]]], group_names: Mapping[str, str]
) -> dict[str, Any]:
    """RLinf's ``cluster.net_emulation``, as its ``NetEmulationConfig`` reads it: half of each round trip as delay, and
    for each node but the actor's the slower direction as bandwidth, of which RLinf has one for both. Links of nodes
    without a process are left out.
    """
    on_node: dict[int, list[str]] = {}
    for component, processes in placements.items():
        group = group_names.get(component) or f"{component.capitalize()}Group"
        for process in processes:
            on_node.setdefault(process["node_rank"], []).append(
                f"{group.removesuffix('Group')}:{process['process_rank']}"
            )
    home = placements["actor"][0]["node_rank"]
    pairs, slowest = [], dict[int, float]()
    for (source, target), link in sorted(measured.links.items()):
        if not {source, target} <= on_node.keys():
            continue
        if source < target:  # lists of their own, else YAML would have names for them
            src, dst = list(on_node[source]), list(on_node[target])
            pairs.append({"src": src, "dst": dst, "delay_ms": _significant(link.rtt_ms / 2)})
        for node in {source, target} - {home}:
            slowest[node] = min(link.mbit_per_s, slowest.get(node, link.mbit_per_s))
    groups = [
        {"members": on_node[node], "bandwidth_mbps": _significant(mbit)} for node, mbit in sorted(slowest.items())
    ]
    return {"enabled": True, "symmetric": True, "crossdc_pairs": pairs, "bandwidth_groups": groups}


def _significant(value: float) -> float:
    """Rounded, but never to 0, which RLinf reads as no limit."""
    return float(f"{value:.4g}")


def _at(content: Any, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
