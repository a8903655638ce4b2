"""The options of a link budget."""

from __future__ import annotations

import re
from functools import wraps
from typing import Any, cast

import click

from edgelink.cli.options import FILE, F, Parsed, options
from edgelink.training.trainer.link_budget.traffic import observation_bytes

_OBSERVATION = re.compile(r"(?P<shape>\d+(x\d+)*)(:(?P<dtype>\w+))?")
_COUNT = re.compile(r"(?P<number>\d+(\.\d+)?([eE]\d+)?)(?P<unit>[kMGB]?)")
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}


def _observation(text: str) -> float:
    """``84x84x4:uint8``, ``17`` (float32), in bytes."""
    found = _OBSERVATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a shape with a type, as in 224x224x3:uint8")
    shape = [int(size) for size in found["shape"].split("x")]
    if 0 in shape:
        raise ValueError(f"{text!r} has no numbers in it; each size is at least 1")
    try:
        return float(observation_bytes(shape, found["dtype"] or "float32"))
    except KeyError:
        raise ValueError(f"{found['dtype']!r} is not a type of numbers, as uint8 and float32 are") from None


def _count(text: str) -> float:
    """``3.3e9``, ``3.3B``, ``120k``."""
    found = _COUNT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a number, as in 3.3B or 120k")
    if not (count := float(found["number"]) * _UNITS[found["unit"]]) > 0:
        raise ValueError(f"{text!r} is not above 0")
    return count


_POSITIVE = click.FloatRange(min=0, min_open=True)
_options = options(
    click.option(
        "--link-budget", "is_wanted", is_flag=True, help="with --live: measure the links, say what they carry"
    ),
    click.option("--links", "links_file", type=FILE, help="links that --link-budget --json has measured before"),
    click.option(
        "--report", "report_file", type=FILE, help="of a run of edgelink train: predict one like it on these links"
    ),
    click.option(
        "--observation",
        "observations",
        type=Parsed("observation", _observation),
        multiple=True,
        metavar="SHAPE[:TYPE]",
        help="of one env step, as 224x224x3:uint8; once for each camera",
    ),
    click.option(
        "--parameters", type=Parsed("count", _count), help="of the model, as 3.3B or 120k; they cross as bfloat16"
    ),
    click.option("--steps-per-update", "steps", type=click.IntRange(min=1), help="env steps of one update"),
    click.option("--env-steps-per-s", type=_POSITIVE, help="of all environments: refuse a placement that is slower"),
    click.option(
        "--max-policy-lag", type=click.IntRange(min=0), default=1, help="as the training has it  [default: 1]"
    ),
    click.option(
        "--write-net-emulation", "emulation_file", type=FILE, help="write the links as RLinf's cluster.net_emulation"
    ),
)
_OF_BUDGET = ("links_file", "emulation_file", "report_file", "parameters", "steps", "env_steps_per_s")


def link_budget_options(function: F) -> F:
    """``--link-budget`` and what goes with it, which ``function`` gets as one ``budget: BudgetWishes``."""

    @wraps(function)
    def with_budget(*, is_wanted: bool, observations: tuple[float, ...], max_policy_lag: int, **others: Any) -> Any:
        from edgelink.cli.link_budget import BudgetWishes

        asked = {name: others.pop(name) for name in _OF_BUDGET}
        is_wanted = is_wanted or bool(observations) or any(option is not None for option in asked.values())
        total = sum(observations) or None
        wishes = BudgetWishes(is_wanted, observation_bytes=total, max_policy_lag=max_policy_lag, **asked)
        return function(budget=wishes, **others)

    return _options(cast(F, with_budget))
