"""OpenRLHF's placement groups, as its command line asks for them; pure.

As in ``openrlhf/cli/train_ppo_ray.py`` of 0.11.2, and of 0.9 and before, which writes its options with underscores. All
groups are PACK, which is a wish: a bundle of one GPU and one CPU goes wherever there is room for it. Without room,
OpenRLHF waits for ever (`ray.get(pg.ready())`).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgelink.errors import ConfigError
from edgelink.training.command_words import arguments_of, module_of
from edgelink.training.resources import Asked, Demand

MINIMUM = {"ray": (2, 48), "grpcio": (1, 74)}  # of OpenRLHF's own requirements since 0.8.10
_CPUS_A_BUNDLE = 1.0
_GROUPS = ("actor", "ref", "critic", "reward")
_TRAINER = re.compile(r"openrlhf\.cli\.train_\w*ray\w*$")
_FORMER = {  # its name since 0.10, and before
    "vllm.num_engines": "vllm_num_engines",
    "vllm.tensor_parallel_size": "vllm_tensor_parallel_size",
    "train.colocate_actor_ref": "colocate_actor_ref",
    "train.colocate_critic_reward": "colocate_critic_reward",
    "train.colocate_all": "colocate_all_models",
    "train.async_enable": "async_train",
    "train.agent_func_path": "agent_func_path",
    "algo.kl.init_coef": "init_kl_coef",
    "algo.advantage.estimator": "advantage_estimator",
    "reward.remote_url": "remote_rm_url",
    **{f"{group}.num_nodes": f"{group}_num_nodes" for group in _GROUPS},
    **{f"{group}.num_gpus_per_node": f"{group}_num_gpus_per_node" for group in _GROUPS},
}
_SWITCHES = ("train.colocate_actor_ref", "train.colocate_critic_reward", "train.colocate_all", "train.async_enable")
_DEFAULTS: dict[str, Any] = {
    "vllm.num_engines": 0,
    "vllm.tensor_parallel_size": 1,
    "algo.kl.init_coef": 0.01,
    "algo.advantage.estimator": "gae",
    **dict.fromkeys(_SWITCHES, False),
    **{f"{group}.num_nodes": 1 for group in _GROUPS},
    **{f"{group}.num_gpus_per_node": 8 for group in _GROUPS},
}
_TYPES = {"algo.kl.init_coef": float, "algo.advantage.estimator": str, "reward.remote_url": str}
_TYPES |= {"train.agent_func_path": str}


def asked(words: Sequence[str]) -> Asked:
    """What a command of OpenRLHF, given as its words, asks of Ray.

    Of a program other than OpenRLHF's own trainer, only what is written counts: its defaults are its own.

    Raises:
        ConfigError: OpenRLHF would refuse it, but only after it has waited for a placement group.
    """
    try:
        given = vars(_parser().parse_known_args(arguments_of(words, ("openrlhf",)))[0])
    except argparse.ArgumentError as error:
        return Asked(unclear=str(error))
    sizes = ("num_nodes", "num_gpus_per_node")
    named = {group for group in _GROUPS if any(f"{group}.{size}" in given for size in sizes)}
    is_trainer = _TRAINER.match(module_of(words, ("openrlhf",)) or "") is not None
    if not is_trainer and not named and "vllm.num_engines" not in given:
        return Asked()
    options = {**_DEFAULTS, **given}
    groups = _groups(options) & (set(_GROUPS) if is_trainer else named)
    return Asked(tuple(_demands(options, groups)))


def too_old(versions: Mapping[str, str]) -> str | None:
    """What of the driver's interpreter OpenRLHF does not work with; ``versions``: of ray and grpcio.

    The first that is too old; a package that is not there is OpenRLHF's to miss.
    """
    for package, minimum in MINIMUM.items():
        version = versions.get(package, "")
        number = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if number and number < minimum:
            return f"{package} {version} is too old: OpenRLHF works with {'.'.join(map(str, minimum))} and later"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS
    )
    for name, former in _FORMER.items():
        if name in _SWITCHES:
            parser.add_argument(f"--{name}", f"--{former}", dest=name, action="store_true")
        else:
            parser.add_argument(f"--{name}", f"--{former}", dest=name, type=_TYPES.get(name, int))
    return parser


def _groups(options: dict[str, Any]) -> set[str]:
    """The groups that there are."""
    found = {"actor"}
    if options["algo.kl.init_coef"] > 0:
        found.add("ref")
    if options["algo.advantage.estimator"] == "gae":
        found.add("critic")
    if not options.get("reward.remote_url") and not options.get("train.agent_func_path"):
        found.add("reward")
    return found


def _demands(options: dict[str, Any], groups: set[str]) -> list[Demand]:
    """One a placement group, in the order in which they are made."""
    colocate_all = options["train.colocate_all"]
    first = {"actor", "ref"} if colocate_all or options["train.colocate_actor_ref"] else {"actor"}
    second = {"critic", "reward"} if "critic" in groups and options["train.colocate_critic_reward"] else set()
    if colocate_all:
        first |= set(_GROUPS) - second
    demands = []
    for together in (first, second, *({group} for group in _GROUPS if group not in first | second)):
        if members := [group for group in _GROUPS if group in together & groups]:
            demands.append(_bundles(", ".join(members), members[0], options))
            _check_colocated(members, options)
    engines, width = options["vllm.num_engines"], options["vllm.tensor_parallel_size"]
    if engines and colocate_all and not options["train.async_enable"]:
        if "actor" in groups and engines * width != _size(options, "actor"):
            raise ConfigError(
                f"--vllm.num_engines {engines} × --vllm.tensor_parallel_size {width} is {engines * width}, but the "
                f"engines share the {_size(options, 'actor')} GPUs of the actor",
                hint="with everything colocated both must be the same",
                reason="BundlesDisagree",
            )
    elif engines:
        what = f"vLLM (--vllm.num_engines {engines} × --vllm.tensor_parallel_size {width})"
        demands.append(Demand(what, engines * width, 1, _CPUS_A_BUNDLE))
    return demands


def _check_colocated(members: Sequence[str], options: dict[str, Any]) -> None:
    """Raises ConfigError: ``members`` do not fit into the placement group of the first of them."""
    first, *others = members
    for other in others:
        # Actor with reference, and critic with reward model, have to be the same; others use the first bundles.
        is_pair = (first, other) in (("actor", "ref"), ("critic", "reward"))
        fits = _numbers(options, other) == _numbers(options, first)
        if not (fits or (not is_pair and _size(options, other) <= _size(options, first))):
            raise ConfigError(
                f"--{other}.num_nodes × --{other}.num_gpus_per_node is {_in_words(options, other)}, but {other} shares "
                f"the {_in_words(options, first)} GPUs of {first}",
                hint=f"give {other} the numbers of {first}, or do not colocate them",
                reason="BundlesDisagree",
            )


def _numbers(options: dict[str, Any], group: str) -> tuple[int, int]:
    return options[f"{group}.num_nodes"], options[f"{group}.num_gpus_per_node"]


def _in_words(options: dict[str, Any], group: str) -> str:
    return " × ".join(map(str, _numbers(options, group)))


def _size(options: dict[str, Any], group: str) -> int:
    nodes, gpus = _numbers(options, group)
    return nodes * gpus


def _bundles(who: str, group: str, options: dict[str, Any]) -> Demand:
    nodes, gpus = _numbers(options, group)
    return Demand(
        f"{who} (--{group}.num_nodes {nodes} × --{group}.num_gpus_per_node {gpus})", nodes * gpus, 1, _CPUS_A_BUNDLE
    )
