"""verl's pools of devices, as its command line tells them; pure.

As in verl 0.9.1 (``trainer/ppo/v1/trainer_base.py``, ``single_controller/ray/base.py``): each of ``nnodes`` placement
groups is STRICT_PACK, so all its ``n_gpus_per_node`` devices are of one node. verl itself compares only the sums, and
then waits for ever for a group that no node has room for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from edgelink.training.command_words import module_of
from edgelink.training.resources import Asked, Demand

_TRAINER = "trainer"
_DEFAULTS = {"trainer.nnodes": "1", "trainer.n_gpus_per_node": "8"}
_WITH_DEFAULTS = ("verl.trainer.main_ppo", "verl.trainer.main_ppo_v0")
_OWN_CONFIG = ("--config-name", "--config-path", "--config-dir", "-cn", "-cp", "-cd")
_SWITCHES = {  # of a pool of its own: of a reward model since 0.7 and before, and of the teacher
    "reward.reward_model.enable_resource_pool": "reward.reward_model",
    "reward_model.enable_resource_pool": "reward_model",
    "distillation.enabled": "distillation",
}
_ROLLOUT = "rollout"  # of the trainers that generate apart from it: fully_async_policy, one_step_off_policy


def asked(words: Sequence[str]) -> Asked:
    """What a command of verl, given as its words, asks of Ray."""
    given = _overrides(words)
    is_own = any(word.split("=")[0] in _OWN_CONFIG for word in words)
    if module_of(words, ("verl",)) in _WITH_DEFAULTS and not is_own:
        given = {**_DEFAULTS, **given}
    demands: list[Demand] = []
    unclear: list[str] = []
    for prefix in _pools(given):
        names = (f"{prefix}.nnodes", f"{prefix}.n_gpus_per_node")
        numbers = {name: int(given[name]) for name in names if given.get(name, "").isdecimal()}
        if len(numbers) == len(names):
            nodes, devices = names
            what = " ".join(f"{name}={number}" for name, number in numbers.items())
            demands.append(Demand(what, groups=numbers[nodes], devices=numbers[devices]))
        elif not given.keys().isdisjoint(names):
            unclear += [name for name in names if name not in numbers]
    return Asked(tuple(demands), ", ".join(unclear))


def _overrides(words: Sequence[str]) -> Mapping[str, str]:
    """Hydra's overrides; the last of a name counts."""
    found = {}
    for word in words:
        name, separator, value = word.partition("=")
        if separator and not name.startswith("-"):
            found[name.lstrip("+")] = value.strip("'\"")
    return found


def _pools(given: Mapping[str, str]) -> Iterator[str]:
    """Yield what each pool's two settings begin with. All wait for each other: one that has no room ends nothing."""
    yield _TRAINER
    for switch, pool in _SWITCHES.items():
        if _is_true(given.get(switch, "")):
            yield pool
    if not given.keys().isdisjoint({f"{_ROLLOUT}.nnodes", f"{_ROLLOUT}.n_gpus_per_node"}):
        yield _ROLLOUT
    if given.get("trainer.v1.trainer_mode") == "separate_async":
        yield f"actor_rollout_ref.{_ROLLOUT}"


def _is_true(value: str) -> bool:
    return value.lower() in ("true", "yes", "on", "1")
