"""What is told about a run: progress lines, and the report, made of what the workers said about themselves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgelink.training.trainer.experience.parcel import About
from edgelink.training.trainer.flow import Counts
from edgelink.training.trainer.slots import ROLLOUT, Slot
from edgelink.training.trainer.whereabouts import Traffic, Whereabouts


class Sums:
    """A counter of each pair's worker, over all its lives: one that is made anew begins at 0."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._now: dict[int, int] = {}

    def read(self, rank: int, value: int) -> None:
        """What the worker says at present."""
        self._now[rank] = value

    def lost(self, rank: int) -> None:
        """It is gone; what it said last counts."""
        self._before[rank] = self.total(rank)
        self._now.pop(rank, None)

    def total(self, rank: int) -> int:
        return self._before.get(rank, 0) + self._now.get(rank, 0)


@dataclass
class Account:
    """Everything that was observed about a run, filled in as it goes."""

    seed: int
    kinds: Sequence[str]
    whereabouts: dict[Slot, Whereabouts] = field(default_factory=dict)
    traffic_before: dict[Slot, Traffic] = field(default_factory=dict)
    traffic_after: dict[Slot, Traffic] = field(default_factory=dict)
    environments: dict[Slot, dict[str, Any]] = field(default_factory=dict)
    learned: Counter[int] = field(default_factory=Counter)  # samples by rank of the rollout worker
    produced: Sums = field(default_factory=Sums)  # samples, whether they reached the learner or not
    iterations: int = 0
    first_iteration: int = 1  # not 1 after --resume
    env_steps_before: int = 0  # learned from before --resume
    return_before: float | None = None
    return_after: float | None = None
    evaluated_on: str = ""
    evaluations: list[dict[str, Any]] = field(default_factory=list)  # those meanwhile: version and mean return
    events: list[dict[str, Any]] = field(default_factory=list)  # pairs of workers that went and came
    counts: Counts = field(default_factory=Counts)
    sent_bytes: Counter[str] = field(default_factory=Counter)  # by component, packed; of what was learned from
    raw_bytes: Counter[str] = field(default_factory=Counter)  # of the same before it was packed
    frames: int = 0
    weights_bytes: Sums = field(default_factory=Sums)  # that have come to each pair
    float32_bytes: int = 0  # of one version's weights
    link_budget: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def came(self, about: About) -> None:
        """A fragment is there, whether it is learned from or not."""
        self.produced.read(about.rank, about.produced)
        self.weights_bytes.read(about.rank, about.weights_bytes)

    def lost(self, rank: int) -> None:
        """The workers of a pair are gone; others may take their place, and count from 0."""
        self.produced.lost(rank)
        self.weights_bytes.lost(rank)

    @property
    def env_steps(self) -> int:
        """Learned from in all, with what was before --resume."""
        return self.env_steps_before + sum(self.learned.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        total = sum(self.learned.values())
        return {
            "seed": self.seed,
            "iterations": self.iterations,
            "first_iteration": self.first_iteration,
            "seconds": round(self.seconds, 2),
            "stages": {name: round(value, 2) for name, value in self.stages.items()},
            "return_before": self.return_before,
            "return_after": self.return_after,
            "evaluated_on": self.evaluated_on,
            "env_steps_per_s": round(total / self.stages["train"], 1) if self.stages.get("train") else None,
            "evaluations": self.evaluations,
            "events": self.events,
            "flow": {**asdict(self.counts), "mean_lag": round(self.counts.mean_lag, 3)},
            "bytes": self._bytes(total),
            "link_budget": self.link_budget,
            "samples": total,
            "env_steps": self.env_steps,
            "sample_share": {str(rank): round(count / max(1, total), 4) for rank, count in self.learned.items()},
            "workers": [self._worker(slot, found) for slot, found in self.whereabouts.items()],
            "nodes": self._nodes(),
        }

    def _weights_by_node(self) -> dict[str, int]:
        """Each process reads all of them, and the node has fetched them once."""
        found: dict[str, int] = {}
        for slot in self.whereabouts:
            if slot.component == ROLLOUT and (size := self.weights_bytes.total(slot.process_rank)):
                found[str(slot.node_rank)] = max(size, found.get(str(slot.node_rank), 0))
        return found

    def _bytes(self, samples: int) -> dict[str, Any]:
        by_node = self._weights_by_node()
        sent = {**self.sent_bytes, "weights": sum(by_node.values())}
        raw = {name: self.raw_bytes[name] for name in self.sent_bytes}
        return {
            "sent": sent,
            "per_env_step": {name: round(size / max(1, samples), 3) for name, size in sent.items()},
            "share_of_raw": {name: round(self.sent_bytes[name] / size, 4) for name, size in raw.items() if size},
            "frames": self.frames,
            "weights_by_node": by_node,
            "float32_weights": self.float32_bytes,
        }

    def _worker(self, slot: Slot, found: Whereabouts) -> dict[str, Any]:
        rank = slot.process_rank
        worker = {
            "component": slot.component,
            "process_rank": rank,
            **asdict(found),
        }
        if slot.component != "actor":
            worker |= {
                "kind": self.kinds[rank],
                "samples": self.learned[rank],
                "samples_produced": self.produced.total(rank),
            }
        if slot in self.environments:
            worker["environment"] = self.environments[slot]
        return worker

    def _nodes(self) -> list[dict[str, Any]]:
        """One entry a node that has a worker, with the counters that one of its workers read."""
        nodes = {}
        for slot, found in self.whereabouts.items():
            if slot.node_rank in nodes or slot not in self.traffic_before:
                continue
            before = self.traffic_before[slot]
            after = self.traffic_after.get(slot, Traffic(None, None))
            nodes[slot.node_rank] = {
                "node_rank": found.node_rank,
                "hostname": found.hostname,
                "ray_node_id": found.ray_node_id,
                "overlay_ip": found.device_address,
                "device": found.device,
                "rx_bytes_before": before.rx_bytes,
                "tx_bytes_before": before.tx_bytes,
                "rx_bytes_after": after.rx_bytes,
                "tx_bytes_after": after.tx_bytes,
            }
        return [nodes[rank] for rank in sorted(nodes)]


def placement_lines(whereabouts: Mapping[Slot, Whereabouts], kinds: Sequence[str]) -> list[str]:
    """Who landed where, for people."""
    lines = []
    for slot, found in whereabouts.items():
        kind = f" ({kinds[slot.process_rank]})" if slot.component == "env" else ""
        address = found.device_address or found.node_ip
        lines.append(
            f"  {slot.name + kind:<16} node {slot.node_rank}  {found.hostname:<16} {address:<15} pid {found.pid}"
        )
        if found.notice:
            lines.append(f"    {found.notice}")
    return lines


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def mean(values: Sequence[float]) -> float | None:
    return rounded(sum(values) / len(values)) if values else None


def rounded(value: float) -> float:
    """To six digits, not to decimals: rewards, and what is learned from them, may be of any size."""
    return float(f"{value:.6g}")
