"""Which versions a node's Ray would run with, and where they differ from the head's; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# Their processes exchange pickled objects and tensors: looked up in the interpreter's metadata, never imported.
COMPARED_PACKAGES = ("torch", "rlinf")


@dataclass(frozen=True)
class Versions:
    """``packages``: of :data:`COMPARED_PACKAGES` those that are installed; None where nobody looked."""

    ray: str | None = None
    python: str | None = None
    packages: Mapping[str, str] | None = None

    @property
    def python_series(self) -> str | None:
        """Major and minor: what Ray wants equal on all nodes."""
        return None if self.python is None else ".".join(self.python.split(".")[:2])


class Difference(NamedTuple):
    """``is_refused``: a node with it does not join; else it is only told."""

    text: str
    is_refused: bool


def differences(node: Versions, head: Versions) -> list[Difference]:
    """Where ``node`` differs from ``head``; what is not known of either is no difference.

    Ray must be the same, Python but for its last number. Of a package the local part of the version (``+cu126``) is
    left out: edges have another torch build than the cloud on purpose.
    """
    found = []
    if None not in (node.python, head.python) and node.python_series != head.python_series:
        found.append(Difference(f"Python {node.python}, head has {head.python}", is_refused=True))
    if None not in (node.ray, head.ray) and node.ray != head.ray:
        found.append(Difference(f"Ray {node.ray}, head has {head.ray}", is_refused=True))
    for name, wanted in (head.packages or {}).items():
        if node.packages is None:
            break
        here = node.packages.get(name)
        if here is None:
            found.append(Difference(f"no {name}, head has {wanted}", is_refused=False))
        elif here.partition("+")[0] != wanted.partition("+")[0]:
            found.append(Difference(f"{name} {here}, head has {wanted}", is_refused=False))
    return found


def refusal(found: list[Difference]) -> str:
    """What keeps the node out, in words; empty if nothing does."""
    return "; ".join(difference.text for difference in found if difference.is_refused)


def warnings(found: list[Difference]) -> tuple[str, ...]:
    """What does not keep it out, and may fail later."""
    return tuple(difference.text for difference in found if not difference.is_refused)
