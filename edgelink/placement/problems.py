"""What is wrong with a cluster file: collected, so that one look shows all of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgelink.errors import PlacementError


@dataclass(frozen=True)
class Problem:
    """One broken rule: where, with which value, which rule, and what to do."""

    key: str
    value: Any
    rule: str  # a stable phrase; tests and scripts may rely on it
    detail: str
    fix: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f" {self.value!r}"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.key}:{shown}: {self.rule}{detail}"


class RuleBrokenError(Exception):
    """Raised by the grammar, which does not know the key it reads for; turned into a :class:`Problem`."""

    def __init__(self, rule: str, detail: str, fix: str) -> None:
        super().__init__(rule)
        self.rule = rule
        self.detail = detail
        self.fix = fix

    def at(self, key: str, value: Any) -> Problem:
        return Problem(key, value, self.rule, self.detail, self.fix)


class InvalidClusterError(PlacementError):
    """The ``cluster:`` section cannot be resolved; ``problems`` holds all that was found, in the file's order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__(str(problems[0]), hint=problems[0].fix)
            return
        lines = [f"\n  - {problem}. {problem.fix}" for problem in problems]
        super().__init__(f"{len(problems)} problems in the cluster file:" + "".join(lines))
