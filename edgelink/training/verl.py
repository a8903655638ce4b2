"""verl's pools of devices, as its command line tells them; pure.

As in verl 0.9.1 (``trainer/ppo/v1/trainer_base.py``, ``single_controller/ray/base.py``): each of ``nnodes`` placement
groups is STRICT_PACK, so all its ``n_gpus_per_node`` devices are of one node. verl itself compares only the sums, and
then waits for ever for a group that no node has room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgelink.training.command_words import module_of
from edgelink.training.resources import Demand

CPUS_A_DEVICE = 3.0  # RayResourcePool's max_colocate_count in the trainer
_TRAINER = "trainer"
_DEFAULTS = {"trainer.nnodes": "1", "trainer.n_gpus_per_node": "8"}
_WITH_DEFAULTS = ("verl.trainer.main_ppo", "verl.trainer.main_ppo_v0")
_OWN_CONFIG = ("--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd")
_REWARD = ("reward.reward_model", "reward_model")  # since 0.7, and before


@dataclass(frozen=True)
class Asked:
    """``unclear``: settings whose values nobody but the shell or a file knows."""

    demands: tuple[Demand, ...]
    unclear: tuple[str, ...] = ()


def asked(words: Sequence[str]) -> Asked:
    """What a command of verl, given as its words, asks of Ray."""
    given = _overrides(words)
    module = module_of(words, ("verl",))
    is_own = any(word.split("=")[0] in _OWN_CONFIG for word in words)
    if module in _WITH_DEFAULTS and not is_own:
        given = {**_DEFAULTS, **given}
    demands: list[Demand] = []
    unclear: list[str] = []
    prefixes = [_TRAINER, *(prefix for prefix in _REWARD if _is_true(given.get(f"{prefix}.enable_resource_pool", "")))]
    for prefix in prefixes:
        names = (f"{prefix}.nnodes", f"{prefix}.n_gpus_per_node")
        numbers = {name: int(given[name]) for name in names if given.get(name, "").isdecimal()}
        if len(numbers) == len(names):
            nodes, devices = names
            what = " ".join(f"{name}={number}" for name, number in numbers.items())
            demands.append(Demand(what, groups=numbers[nodes], devices=numbers[devices]))
        elif not given.keys().isdisjoint(names):
            unclear += [name for name in names if name not in numbers]
    return Asked(tuple(demands), tuple(unclear))


def with_cpus(demands: Sequence[Demand]) -> tuple[Demand, ...]:
    """The same with the CPUs that verl's bundles ask for beside each device."""
    return tuple(Demand(each.what, each.groups, each.devices, CPUS_A_DEVICE) for each in demands)


def _overrides(words: Sequence[str]) -> Mapping[str, str]:
    """Hydra's overrides; the last of a name counts."""
    found = {}
    for word in words:
        name, separator, value = word.partition("=")
        if separator and not name.startswith("-"):
            found[name.lstrip("+")] = value.strip("'\"")
    return found


def _is_true(value: str) -> bool:
    return value.lower() in ("true", "yes", "on", "1")
