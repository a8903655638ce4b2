"""Whether the nodes have one and the same code where RLinf carries none: which to look at, and what is said; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgelink.training.code_sync import NAME

_SHOWN = 3
FIX = f"install the same there, or have RLinf carry the head's: {NAME}=auto"


@dataclass(frozen=True)
class Tree:
    """A package as an interpreter imports it: where it lies, and each file's digest by its path there.

    ``where`` is None where there is no such package; ``error``: it could not be looked at.
    """

    where: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    error: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Tree:
        return cls(values.get("where"), values.get("files", {}), values.get("error", ""))


def tree_differences(head: Tree, others: Sequence[tuple[str, Tree]]) -> list[str]:
    """What is to be said of who has another tree than the head, those with the same difference in one sentence.

    Args:
        others: name of the node, with the interpreter if it is not Ray's own; its tree.
    """
    told: dict[str, list[str]] = {}
    for name, tree in others:
        if said := _difference(head, tree):
            told.setdefault(said, []).append(name)
    return [f"{', '.join(names)}: {said}" for said, names in told.items()]


def _difference(head: Tree, other: Tree) -> str:
    if other.error:
        return f"could not be looked at ({other.error})"
    if other.where is None or head.where is None:
        if other.where == head.where:
            return ""
        return "no rlinf, the head has it" if other.where is None else f"{other.where}, the head has none"
    changed = sorted(path for path in head.files if other.files.get(path, head.files[path]) != head.files[path])
    lacks = sorted(set(head.files) - set(other.files))
    more = sorted(set(other.files) - set(head.files))
    parts = [
        f"{len(paths)} {what} ({_named(paths)})"
        for paths, what in ((changed, "with other content"), (lacks, "missing there"), (more, "only there"))
        if paths
    ]
    return f"{other.where} is not the head's {head.where}; files: {', '.join(parts)}" if parts else ""


def _named(paths: Sequence[str]) -> str:
    return ", ".join(paths[:_SHOWN]) + (", …" if len(paths) > _SHOWN else "")
