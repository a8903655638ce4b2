"""Where the cluster file puts the trainer's workers: reads the resolved placement that EdgeLink hands over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edgelink.training.trainer.accelerators import Accelerators, one_each
from edgelink.training.trainer.failure import USAGE, TrainerError

ACTOR, ROLLOUT, ENV = "actor", "rollout", "env"


@dataclass(frozen=True)
class Slot:
    """One worker's place."""

    component: str
    process_rank: int
    node_rank: int
    ip: str
    hostname: str
    accelerators: Accelerators = field(default_factory=Accelerators)

    @property
    def name(self) -> str:
        """As in Ray and RLinf: ``env:1``."""
        return f"{self.component}:{self.process_rank}"

    def __str__(self) -> str:
        where = f"{self.hostname}, {self.ip}" if self.hostname else self.ip
        return f"{self.name} on node {self.node_rank} ({where})"


@dataclass(frozen=True)
class Slots:
    """All places: learners, and pairs of rollout and env workers, each pair on one node."""

    learners: tuple[Slot, ...]
    rollouts: tuple[Slot, ...]
    envs: tuple[Slot, ...]

    def __iter__(self) -> Any:
        return iter((*self.learners, *self.rollouts, *self.envs))

    @property
    def learner(self) -> Slot:
        """The one that speaks for all learners."""
        return self.learners[0]


def read_slots(path: Path) -> Slots:
    """The placement in ``path``, checked for what this trainer needs.

    Raises:
        TrainerError: the file is unusable, or the cluster file does not suit the trainer.
    """
    try:
        content = json.loads(path.read_text())
        by_component = _by_component(content)
    except OSError as error:
        raise TrainerError(
            f"the placement file {path} cannot be read: {error.strerror}",
            "start the trainer with `edgelink run --cluster FILE -- edgelink train`",
            exit_status=USAGE,
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TrainerError(
            f"the placement file {path} is not a resolved placement: {type(error).__name__} {error}",
            "start the trainer with `edgelink run --cluster FILE -- edgelink train`",
            exit_status=USAGE,
        ) from error
    return _check(by_component)


def _by_component(content: Mapping[str, Any]) -> dict[str, list[Slot]]:
    nodes = {node["rank"]: node for node in content["nodes"]}
    return {
        component: [
            Slot(
                component,
                item["process_rank"],
                item["node_rank"],
                nodes[item["node_rank"]]["ip"],
                nodes[item["node_rank"]].get("hostname") or "",
                Accelerators(
                    item.get("accelerator_type") or "", tuple(str(index) for index in item.get("accelerators") or ())
                ),
            )
            for item in placements
        ]
        for component, placements in content["placements"].items()
    }


def _check(by_component: Mapping[str, list[Slot]]) -> Slots:
    missing = [name for name in (ACTOR, ROLLOUT, ENV) if not by_component.get(name)]
    if missing:
        raise _unsuitable(f"component_placement lacks {', '.join(missing)}", "add the components to the cluster file")
    actors, rollouts, envs = (by_component[name] for name in (ACTOR, ROLLOUT, ENV))
    if len(rollouts) != len(envs):
        raise _unsuitable(
            f"{len(rollouts)} rollout and {len(envs)} env processes do not pair up", "give both the same placement"
        )
    for rollout, env in zip(rollouts, envs, strict=True):
        if rollout.node_rank != env.node_rank:
            raise _unsuitable(f"{rollout} and {env} must share a node", "give both the same placement")
    own = one_each((actor.node_rank, actor.accelerators) for actor in actors)
    learners = (replace(actor, accelerators=each) for actor, each in zip(actors, own, strict=True))
    return Slots(tuple(learners), tuple(rollouts), tuple(envs))


def grown(slots: Slots, node_rank: int, ip: str, hostname: str) -> Slots:
    """With one more pair, on a node that was not in the placement."""
    rank = len(slots.envs)
    rollout, env = (Slot(component, rank, node_rank, ip, hostname) for component in (ROLLOUT, ENV))
    return replace(slots, rollouts=(*slots.rollouts, rollout), envs=(*slots.envs, env))


def _unsuitable(message: str, hint: str) -> TrainerError:
    return TrainerError(f"the cluster file does not suit the built-in trainer: {message}", hint, exit_status=USAGE)
