"""What a check is: it looks at its surroundings and answers, changes nothing, and needs nothing to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from edgelink.config import Config, Paths


class Verdict(StrEnum):
    """``LIMITED``: it works, but holds less than it could here. ``SKIPPED``: there is nothing to judge."""

    OK = "ok"
    LIMITED = "limited"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """``figure``: the number behind the verdict, with its unit; ``remedy``: what to do, empty when nothing is to be."""

    verdict: Verdict
    message: str
    figure: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Surroundings:
    """What the checks may look at. ``daemons``: the status of each that answers on this machine.

    ``root``: the machine's files; ``run``: what a program prints, None where it fails.
    """

    config: Config
    paths: Paths
    environ: Mapping[str, str]
    daemons: Sequence[Mapping[str, Any]]
    proc_sys: Path
    root: Path
    run: Callable[[Sequence[str]], str | None]

    @property
    def ride_through_s(self) -> int:
        """As a node's daemon knows it from the head; else as configured here."""
        nodes = [daemon for daemon in self.daemons if daemon["role"] != "bootstrap"]
        known = [int(node["ride_through_s"]) for node in nodes if "ride_through_s" in node]  # older daemons say nothing
        return known[0] if known else self.config.ride_through_s


class Check(Protocol):
    """One question. Its first docstring line says what is asked."""

    __name__: str

    def __call__(self, surroundings: Surroundings, /) -> Finding:
        """Answer it; raises nothing but defects."""


def name_of(check: Check) -> str:
    """``tcp-resumes``: how people and scripts call it."""
    return check.__name__.replace("_", "-")
