"""The link budget of a plan: measure the links that it uses, and say what they carry."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import yaml

from edgelink.cli.layout import tell
from edgelink.cli.patience import call
from edgelink.cli.preflight import exchange, nodes_that_talk
from edgelink.cli.rlinf_program import InstalledRlinf
from edgelink.config.paths import Paths
from edgelink.errors import UsageError
from edgelink.files import write_named
from edgelink.placement import Plan
from edgelink.training.link_budget import RlinfConfig, crossing_lines, net_emulation
from edgelink.training.preflight import Finding, Question, failed, judge
from edgelink.training.trainer.link_budget.links import Measured, measured
from edgelink.training.trainer.link_budget.of_run import work_of_report
from edgelink.training.trainer.link_budget.predict import better, predict
from edgelink.training.trainer.link_budget.traffic import (
    DISCRETE_ACTION_BYTES,
    RLINF_BY_ENV,
    RLINF_BY_ROLLOUT,
    TRAINER,
    WEIGHT_BYTES,
    Seats,
    Work,
    talking_pairs,
)
from edgelink.training.trainer.link_budget.words import lines, mbit, to_dict, warning
from edgelink.wording import json_mistake

_STEPS = 512  # of each env worker in an update, where nobody says
_COLLECTOR = "embodied_trajectory.py"  # of RLinf since rollout workers put trajectories together
_ACTION_BYTES = 28  # seven numbers of a robot's arm


@dataclass(frozen=True)
class BudgetWishes:
    """``--link-budget`` and what goes with it; None: take it from the file, or do without."""

    is_wanted: bool = False
    links_file: Path | None = None
    observation_bytes: float | None = None
    parameters: float | None = None
    steps: int | None = None
    env_steps_per_s: float | None = None
    max_policy_lag: int = 1
    emulation_file: Path | None = None
    report_file: Path | None = None


@dataclass(frozen=True)
class Budget:
    """What is said of the links of one plan."""

    told: list[str]
    warning: str
    content: dict[str, Any]
    is_refused: bool


def link_budget(
    plan: Plan,
    file: Path,
    content: Any,
    rlinf: InstalledRlinf | None,
    wishes: BudgetWishes,
    say: Callable[[str], None],
) -> Budget:
    """Measure the links that ``plan`` uses, and predict.

    Args:
        content: all of ``file``, composed where that could be done.
        rlinf: the RLinf that is installed here.

    Raises:
        PlacementError: the placement has no actor, rollout and env that could talk.
        PreflightError: the nodes do not reach each other.
        UsageError: the file of measured links cannot be used.
    """
    placements = plan.to_dict(env=False)["placements"]
    seats = Seats.of(placements)
    if seats is None:
        hint = "a link budget is about actor, rollout and env; name them so in component_placement"
        raise UsageError(f"{file} places no actor, rollout and env", hint=hint)
    config = RlinfConfig.of(content)
    names = {int(node.rank): node.hostname or node.ip for node in plan.nodes if node.rank is not None}
    rules = _rlinf_rules(rlinf) if config else (TRAINER,)
    if wishes.links_file:
        links = _read(wishes.links_file, names)
    else:
        links = _measure(plan, talking_pairs(seats, rules[0]), names, say)
    if wishes.emulation_file is not None:
        _write_emulation(wishes.emulation_file, links, placements, config or RlinfConfig())
    told = crossing_lines(seats, rules) if config else []
    work = _work(seats, wishes, config, rules[0])
    if work is None:
        missing = "give --observation (and --parameters) for what a training makes of them"
        return Budget([*_link_lines(links), *told, missing], "", {"measured": links.to_dict()}, is_refused=False)
    prediction = predict(seats, work, links)
    others = better(seats, work, links, env_may_move=not _has_robots(plan))
    if not work.weights_bytes:
        told.append("how large the model is is not known, so its weights are not counted: give --parameters")
    told = [*lines(prediction, work, links), *told]
    as_json = to_dict(prediction, work, links, others)
    return Budget(told, warning(prediction, work, links, others), as_json, prediction.is_too_much)


def _work(seats: Seats, wishes: BudgetWishes, config: RlinfConfig | None, rules: str) -> Work | None:
    """None: too little is known of it."""
    if wishes.report_file is not None:
        return _work_of_report(wishes.report_file, seats, wishes)
    parameters = wishes.parameters or (config.parameters if config else None)
    if wishes.observation_bytes is None:
        return None
    count = len(seats.env)
    together = wishes.steps or (config.steps if config else None)
    steps = max(1, together // count) if together else _STEPS
    return Work(
        wishes.observation_bytes,
        _ACTION_BYTES if config else DISCRETE_ACTION_BYTES,
        (parameters or 0.0) * WEIGHT_BYTES,
        (steps,) * count,
        max_policy_lag=0 if config else wishes.max_policy_lag,
        wanted_env_steps_per_s=wishes.env_steps_per_s,
        rules=rules,
        environments=max(1, (config.environments or 0) // count) if config else 1,
    )


def _work_of_report(file: Path, seats: Seats, wishes: BudgetWishes) -> Work:
    try:
        work = work_of_report(json.loads(file.read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = "name what `edgelink train --report FILE` wrote, of a run of a few updates at least"
        raise UsageError(f"--report {file}: {_why(error)}", hint=hint) from error
    if len(work.fragment_steps) != len(seats.env):
        raise UsageError(
            f"--report {file} is of {len(work.fragment_steps)} env workers, the placement has {len(seats.env)}",
            hint="predict a placement with as many processes",
        )
    return replace(work, wanted_env_steps_per_s=wishes.env_steps_per_s)


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError)):
        return json_mistake(error)
    return str(error) if type(error) is ValueError else "it tells nothing of traffic"


def _rlinf_rules(rlinf: InstalledRlinf | None) -> tuple[str, ...]:
    """Return the rules of traffic of the installed RLinf. Without one: those of all versions, the dearest first."""
    if rlinf is None:
        return RLINF_BY_ENV, RLINF_BY_ROLLOUT
    return (RLINF_BY_ROLLOUT if any(rlinf.at.rglob(_COLLECTOR)) else RLINF_BY_ENV,)


def _has_robots(plan: Plan) -> bool:
    """Whether an env process is placed by a robot: that does not move."""
    types = {group.label: group.hardware_type for group in plan.groups}
    return any(types.get(item.node_group) not in (None, "Accelerator") for item in plan.placements.get("env", ()))


def _measure(
    plan: Plan, pairs: Sequence[tuple[int, int]], names: Mapping[int, str], say: Callable[[str], None]
) -> Measured:
    """By a short job of Ray on the nodes that talk."""
    paths = Paths.from_environment()
    if not pairs:
        return Measured({}, names)
    granted: Any = call(paths.node_socket, "GET", "/driver-environment")
    if granted.get("edges_open_to") == "head" and any(0 not in pair for pair in pairs):
        found = Finding(
            "no edge answers another one between runs (`access: per-run` on the head), so that nothing can be measured",
            "give the links with --links, or measure with `access: members`",
        )
        raise failed([found], may_skip=False)
    ips = {int(node.rank): node.ip for node in plan.nodes if node.rank is not None}
    ranks = sorted({0, *(rank for pair in pairs for rank in pair)})
    question = Question(
        {names[rank]: ips[rank] for rank in ranks}, granted["environment"].get("RLINF_COMM_NET_DEVICES")
    )
    body = {
        "address": granted["environment"]["RAY_ADDRESS"],
        "nodes": nodes_that_talk(question),
        "device": question.device,
        "exchange": True,
        "reduce": False,
        "paths": {},
        "measure": [[names[a], names[b]] for a, b in pairs],
    }
    seen = exchange(granted, question, body, paths.node_socket, say)
    if findings := judge(question, seen):
        raise failed(findings, may_skip=False)
    links, problems = measured(seen.measured, {name: rank for rank, name in names.items()})
    if problems:
        raise failed(
            [Finding(f"cannot be measured: {'; '.join(problems)}", "look at `edgelink nodes`")], may_skip=False
        )
    return links


def _read(file: Path, names: Mapping[int, str]) -> Measured:
    try:
        content = json.loads(file.read_text())
        found = Measured.from_dict(content.get("link_budget", content).get("measured", content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "name a file that `edgelink plan FILE --live --link-budget --json` wrote"
        raise UsageError(f"--links {file}: {_why(error)}", hint=hint) from error
    # By name where the file has names: a node may have another rank now.
    ranks = {name: rank for rank, name in names.items()}
    now = {then: ranks.get(found.names[then]) if then in found.names else then for link in found.links for then in link}
    moved = {}
    for link in found.links.values():
        source, target = now[link.source], now[link.target]
        if source is not None and target is not None:
            moved[source, target] = replace(link, source=source, target=target)
    if found.links and not moved:
        raise UsageError(
            f"--links {file}: it is of {', '.join(found.names.values())}, and the plan of {', '.join(names.values())}",
            hint="measure the links of these nodes: `edgelink plan FILE --live --link-budget --json` on their head",
        )
    return Measured(moved, names)


def _write_emulation(
    file: Path, links: Measured, placements: Mapping[str, Sequence[Mapping[str, Any]]], config: RlinfConfig
) -> None:
    section = {"cluster": {"net_emulation": net_emulation(links, placements, config.group_names)}}
    write_named(file, yaml.safe_dump(section, sort_keys=False))


def _link_lines(links: Measured) -> list[str]:
    return [
        f"{links.name(link.source)} → {links.name(link.target)}: {link.rtt_ms:.0f} ms, {mbit(link.mbit_per_s)}"
        for link in links.links.values()
    ]


def show(budget: Budget) -> None:
    """The links on stdout as the plan is, the warning on stderr."""
    click.echo()
    for line in budget.told:
        tell(line)
    if budget.warning:
        tell(f"{'refused' if budget.is_refused else 'warning'}: {budget.warning}", err=True)
