"""Paths that a run needs on its nodes: asked for by name, or named by RLinf's configuration; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgelink.errors import UsageError
from edgelink.training.preflight import Finding

# Keys under which RLinf's configurations name what has to be there already. What is to be written (logs, videos,
# checkpoints) is made by the run itself.
_READ = re.compile(
    r"(.*_)?(model|tokenizer|data|dataset|demo|asset|lora|ckpt)s?_(path|dir|root|file)s?|tokenizer_model|resume_dir"
    r"|(.*_)?load_path"
)
_OVERRIDE = re.compile(r"(?:^|[\s'\"])\+{0,2}([A-Za-z_][\w.]*)=([^\s'\"]*)")  # Hydra's
_MOST_PATHS = 200


@dataclass(frozen=True)
class NeededPath:
    """One path, with the nodes that need it. ``key``: where the configuration names it; None: ``--require-path``.

    ``is_shared``: no component is named, so it is enough that one node has it.
    """

    path: str
    nodes: tuple[str, ...]
    key: str | None = None
    is_shared: bool = False


def asked_for(
    required: Sequence[tuple[str | None, str]], nodes: Mapping[int, str], placement: Mapping[str, Any] | None
) -> list[NeededPath]:
    """``--require-path``, each with its nodes.

    Args:
        required: name of a component or node group, or None for all nodes; path.
        nodes: by rank, those that take part.
        placement: the plan's ``to_dict``.

    Raises:
        UsageError: no component or group has that name.
    """
    found = []
    for name, path in required:
        ranks = list(nodes) if name is None else _ranks(name, placement)
        found.append(NeededPath(path, tuple(nodes[rank] for rank in ranks if rank in nodes)))
    return found


def named_by_config(
    content: Any, nodes: Mapping[int, str], placement: Mapping[str, Any], argv: Sequence[str] = ()
) -> list[NeededPath]:
    """The local absolute paths that the configuration of a training program reads, each with its nodes.

    Those under the key of a component are its nodes'; of the others any node may be meant.

    Args:
        argv: the command, whose overrides (``actor.model.model_path=/models/x``) count.
    """
    if not isinstance(content, Mapping):
        return []
    written = [each for top, values in content.items() for each in _read(str(top), values)]
    overrides = {key: path for key, path in _OVERRIDE.findall(" ".join(argv)) if _is_read(key)}
    read = [*overrides.items(), *((key, path) for key, path in written if key not in overrides)]
    found = []
    for key, path in read:
        top = key.partition(".")[0]
        if top == "cluster" or not path.startswith("/"):
            continue
        is_component = top in placement["placements"]
        ranks = _ranks(top, placement) if is_component else list(nodes)
        on = tuple(nodes[rank] for rank in ranks if rank in nodes)
        found.append(NeededPath(path, on, key, is_shared=not is_component))
    return found[:_MOST_PATHS]


def by_node(needed: Sequence[NeededPath]) -> dict[str, list[str]]:
    """What to look for on each node."""
    found: dict[str, dict[str, None]] = {}
    for each in needed:
        for name in each.nodes:
            found.setdefault(name, {})[each.path] = None
    return {name: list(paths) for name, paths in found.items()}


def judge_paths(
    needed: Sequence[NeededPath], missing: Mapping[str, Mapping[str, str]]
) -> tuple[list[Finding], list[str]]:
    """What keeps CMD from being started, and what is only to be said.

    What ``--require-path`` names has to be on each of its nodes. What the configuration names may be read by some
    processes only: it is refused where none of the component's nodes has it, else the nodes without it are told.

    Args:
        missing: of each node that was asked, path to reason.
    """
    wrong, told = [], []
    for each in needed:
        without = {name: missing[name][each.path] for name in each.nodes if each.path in missing.get(name, {})}
        if not without:
            continue
        where = ", ".join(f"{name} ({why})" for name, why in without.items())
        if each.key is None:
            wrong.append(Finding(f"--require-path {each.path}: missing on {where}", "put it there", may_pass=False))
        elif len(without) == len(each.nodes):
            wrong.append(
                Finding(
                    f"{each.key}: {each.path}: missing on {where}",
                    "put it there or correct the file; --no-preflight does not look",
                    may_pass=False,
                )
            )
        elif not each.is_shared:
            told.append(f"{each.key}: {each.path}: missing on {where}")
    return wrong, told


def _ranks(name: str, placement: Mapping[str, Any] | None) -> list[int]:
    if placement is None:
        raise UsageError(f"--require-path {name}:…: only a cluster file says what {name} is", hint="give --cluster")
    if name in placement["placements"]:
        return sorted({process["node_rank"] for process in placement["placements"][name]})
    groups = {group["label"]: group["node_ranks"] for group in placement["groups"]}
    if name not in groups:
        names = ", ".join([*placement["placements"], *groups])
        raise UsageError(f"--require-path {name}:…: no such component or node group", hint=f"there are {names}")
    return list(groups[name])


def _read(key: str, value: Any) -> Iterator[tuple[str, str]]:
    """Key path and path of each that is read."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _read(f"{key}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _read(key, inner)
    elif isinstance(value, str) and value.startswith("/") and "${" not in value and _is_read(key):
        yield key, value


def _is_read(key: str) -> bool:
    return _READ.fullmatch(key.rpartition(".")[2]) is not None
