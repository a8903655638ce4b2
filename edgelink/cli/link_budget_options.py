"""The options of a link budget."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from edgelink.training.trainer.link_budget.traffic import observation_bytes

F = TypeVar("F", bound=Callable[..., Any])

_FILE = click.Path(path_type=Path, dir_okay=False)
_OBSERVATION = re.compile(r"(?P<shape>\d+(x\d+)*)(:(?P<dtype>\w+))?")
_COUNT = re.compile(r"(?P<number>\d+(\.\d+)?([eE]\d+)?)(?P<unit>[kMGB]?)")
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


class Observation(click.ParamType[float]):
    """``84x84x4:uint8``, ``17`` (float32); the value is bytes."""

    name = "observation"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _OBSERVATION.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not a shape with a type, as in 224x224x3:uint8", param, ctx)
        shape = [int(size) for size in found["shape"].split("x")]
        if 0 in shape:
            self.fail(f"{value!r} has no numbers in it; each size is at least 1", param, ctx)
        try:
            return float(observation_bytes(shape, found["dtype"] or "float32"))
        except KeyError:
            self.fail(f"{found['dtype']!r} is not a type of numbers, as uint8 and float32 are", param, ctx)


class Count(click.ParamType[float]):
    """``3.3e9``, ``3.3B``, ``120k``."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = _COUNT.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not a number, as in 3.3B or 120k", param, ctx)
        if not (count := float(found["number"]) * _UNITS[found["unit"]]) > 0:
            self.fail(f"{value!r} is not above 0", param, ctx)
        return count


def link_budget_options(function: F) -> F:
    """``--link-budget`` and what goes with it, which ``function`` gets as one ``budget: BudgetWishes``."""

    @wraps(function)
    def with_budget(
        *,
        is_wanted: bool,
        links_file: Path | None,
        observations: tuple[float, ...],
        parameters: float | None,
        steps: int | None,
        env_steps_per_s: float | None,
        max_policy_lag: int,
        emulation_file: Path | None,
        report_file: Path | None,
        **others: Any,
    ) -> Any:
        from edgelink.cli.link_budget import BudgetWishes

        of_budget = (links_file, emulation_file, report_file, parameters, steps, env_steps_per_s, *observations)
        wishes = BudgetWishes(
            is_wanted or any(option is not None for option in of_budget),
            links_file,
            sum(observations) or None,
            parameters,
            steps,
            env_steps_per_s,
            max_policy_lag,
            emulation_file,
            report_file,
        )
        return function(budget=wishes, **others)

    command = cast(F, with_budget)
    positive = click.FloatRange(min=0, min_open=True)
    for option in (
        click.option(
            "--write-net-emulation",
            "emulation_file",
            type=_FILE,
            help="write the links as RLinf's cluster.net_emulation",
        ),
        click.option(
            "--max-policy-lag", type=click.IntRange(min=0), default=1, help="as the training has it  [default: 1]"
        ),
        click.option("--env-steps-per-s", type=positive, help="of all environments: refuse a placement that is slower"),
        click.option("--steps-per-update", "steps", type=click.IntRange(min=1), help="env steps of one update"),
        click.option("--parameters", type=Count(), help="of the model, as 3.3B or 120k; they cross as bfloat16"),
        click.option(
            "--observation",
            "observations",
            type=Observation(),
            multiple=True,
            metavar="SHAPE[:TYPE]",
            help="of one env step, as 224x224x3:uint8; once for each camera",
        ),
        click.option(
            "--report",
            "report_file",
            type=_FILE,
            help="of a run of edgelink train: predict one like it on these links",
        ),
        click.option("--links", "links_file", type=_FILE, help="links that --link-budget --json has measured before"),
        click.option(
            "--link-budget", "is_wanted", is_flag=True, help="with --live: measure the links, say what they carry"
        ),
    ):
        command = option(command)
    return command
