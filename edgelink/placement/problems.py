"""What is wrong with a cluster file, and what its author may regret: collected, so that one look shows all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Self

from edgelink.errors import PlacementError

_SHOWN_VALUE_CHARS = 120


class Stage(IntEnum):
    """How far RLinf would come before it stops; within one run a later stage is never reached."""

    PARSE = 0  # reading the ``cluster`` section
    DISCOVER = 1  # looking at the nodes
    COMPONENT = 2  # reading ``component_placement``
    PLACEMENT = 3  # launching a component

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Problem:
    """One broken rule: where, with which value, which rule, and what to do."""

    key: str
    value: Any
    rule: str  # a stable phrase; tests and scripts may rely on it
    detail: str
    fix: str
    stage: Stage = Stage.PARSE
    line: int | None = None  # of the cluster file, counted from 1; None: not known, or of no file

    def __str__(self) -> str:
        line = "" if self.line is None else f"line {self.line}: "
        shown = "" if self.value is None else f" {_shown(self.value)}:"
        detail = f" ({self.detail})" if self.detail else ""
        return f"{line}{self.key}:{shown} {self.rule}{detail}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "key": self.key,
            "value": None if self.value is None else _shown(self.value),
            "rule": self.rule,
            "detail": self.detail,
            "fix": self.fix,
            "stage": str(self.stage),
            "line": self.line,
        }


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_VALUE_CHARS else f"{text[:_SHOWN_VALUE_CHARS]}…"


_MEANT_SO = ("accelerators_shared",)  # as a rule: nearly every configuration that RLinf ships has it


@dataclass(frozen=True)
class Notice:
    """Something worth knowing that is no error; ``code`` is stable."""

    code: str
    message: str
    key: str = ""
    fix: str = ""
    from_rlinf: bool = False  # RLinf warns of it itself

    def __str__(self) -> str:
        where = f"{self.key}: " if self.key and self.key not in self.message else ""
        return f"{where}{self.message}" + (f"; {self.fix}" if self.fix else "")

    @property
    def line(self) -> str:
        """For people, with how much it matters."""
        return f"{'note' if self.code in _MEANT_SO else 'warning'}: {self}"

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"code": self.code, "key": self.key, "message": self.message, "fix": self.fix}


def line_of(key: str, lines: Mapping[str, int]) -> int | None:
    """The line of ``key``, or of the nearest thing that it is below."""
    while key and key not in lines:
        key = key[: max(key.rfind("."), key.rfind("["))] if "." in key or "[" in key else ""
    return lines.get(key)


class RuleBrokenError(Exception):
    """Raised where the key is not known that is read for; turned into a :class:`Problem`."""

    def __init__(self, rule: str, detail: str, fix: str) -> None:
        super().__init__(rule)
        self.rule = rule
        self.detail = detail
        self.fix = fix


class InvalidClusterError(PlacementError):
    """The ``cluster:`` section cannot be resolved.

    ``problems`` holds all that was found; the first is the one with which RLinf would stop, at ``stage``.
    """

    def __init__(self, problems: Sequence[Problem], judged_against: str = "", source: str = "") -> None:
        self.problems = tuple(problems)
        self.judged_against = judged_against
        judged = f"; judged against {judged_against}" if judged_against else ""
        if len(problems) == 1:
            super().__init__(f"{source}{': ' if source else ''}{problems[0]}{judged}", hint=problems[0].fix)
            return
        lines = [f"\n  - {problem}{'. ' if problem.fix else ''}{problem.fix}" for problem in problems]
        super().__init__(
            f"{len(problems)} problems in {source or 'the cluster file'}{judged}:" + "".join(lines),
            hint="correct each as its line says; `edgelink plan FILE` judges the file again without starting anything",
        )

    def located(self, source: str, lines: Mapping[str, int]) -> Self:
        """The same error with file and lines.

        Args:
            source: the cluster file.
            lines: by key. A key that is not in the file has the line of what it belongs to.
        """
        problems = [replace(problem, line=line_of(problem.key, lines)) for problem in self.problems]
        return type(self)(problems, self.judged_against, source)

    @property
    def stage(self) -> str:
        """How far RLinf would have come: ``parse``, ``discover``, ``component`` or ``placement``."""
        return str(self.problems[0].stage)


class Findings:
    """Collects problems and notices while a plan is made."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._problems: list[Problem] = []

    @property
    def problems(self) -> list[Problem]:
        """In the order in which RLinf would meet them."""
        return sorted(self._problems, key=lambda problem: problem.stage)

    @property
    def count(self) -> int:
        """Of problems so far."""
        return len(self._problems)

    def has(self, rule: str) -> bool:
        """Whether ``rule`` was found broken."""
        return any(problem.rule == rule for problem in self._problems)

    def add(self, stage: Stage, key: str, value: Any, rule: str, detail: str = "", fix: str = "") -> None:
        self._problems.append(Problem(key, value, rule, detail, fix, stage))

    def broken(self, error: RuleBrokenError, stage: Stage, key: str, value: Any) -> None:
        """Note the rule that ``error`` tells of."""
        self.add(stage, key, value, error.rule, error.detail, error.fix)

    def notice(self, code: str, key: str, message: str, fix: str = "", *, from_rlinf: bool = False) -> None:
        self.notices.append(Notice(code, message, key, fix, from_rlinf))
