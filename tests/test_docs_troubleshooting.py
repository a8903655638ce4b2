"""The page of symptoms: what it says EdgeLink says is in the code, and each row names a test that brings it about, in a
comment that readers do not see."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from reference_pages.errors import reasons

from edgelink.condition_table import KINDS, declared
from edgelink.doctor import CHECKS
from edgelink.doctor.check import name_of

_ROOT = Path(__file__).parent.parent
_SYMPTOMS = (
    "worker cannot reach the head",
    "security group or firewall",
    "Fewer nodes than num_nodes",
    "`ray status` shows one node",
    "Mixed clusters, a foreign Ray",
    "Versions of Ray or Python do not match",
    "127.0.0.1",
    "`ray.init()`: connection refused",
    "training does not start",
    "cannot import the latest code",
    "model or data path is missing",
    "placement group times out",
    "NCCL or gloo times out",
)
_NAMES = re.compile(r"`([^`]+)`")
_CONDITIONS = {kind.name for kind in KINDS}  # what is brought about is a reason of one


@cache
def sections() -> dict[str, list[list[str]]]:
    """The rows of each symptom's table: says, why, what to do, tests."""
    _, *parts = (_ROOT / "docs/troubleshooting.md").read_text().split("\n## ")
    return {
        part.partition("\n")[0]: [
            [cell.strip() for cell in re.split(r" \| |<!--|-->", line.strip("| ")) if cell.strip()]
            for line in part.splitlines()
            if line.startswith("| ") and not line.startswith(("| EdgeLink", "|--"))
        ]
        for part in parts
    }


@pytest.mark.parametrize("symptom", _SYMPTOMS)
def test_every_symptom_is_there_and_leads_to_a_name(symptom: str) -> None:
    """With a condition's reason, an error's reason or a check of the doctor's in at least one row."""
    (rows,) = [rows for title, rows in sections().items() if symptom in title]
    assert any(kind_of(row[0]) for row in rows)


def test_every_name_is_one_of_the_code() -> None:
    """`Condition` `Reason`; error `Reason`; doctor `check`."""
    known = _CONDITIONS
    checks, raised = {name_of(check) for check in CHECKS}, reasons()
    for rows in sections().values():
        for says, *_ in rows:
            errors, _, doctors = says.partition("doctor ")
            assert set(_NAMES.findall(doctors)) <= checks, says
            names = [name for name in _NAMES.findall(errors) if re.fullmatch(r"[A-Z]\w+", name)]
            if kind_of(says) == "condition":
                assert names[0] in known, says
                assert [name for name in names[1:] if name not in known and not declared(names[0], name)] == [], says
            elif kind_of(says):
                assert names or doctors, says
                assert set(names) <= raised.keys(), says


def test_every_row_is_whole_and_its_tests_are_about_what_it_says() -> None:
    """By file and function; each name that the row says is in what one of its tests runs."""
    wrong = []
    for title, rows in sections().items():
        assert rows, title
        for row in rows:
            assert len(row) == 4, row
            assert all(row), row
            sources = [source_of(*test.split("::")) for test in row[3].split(", ")]
            for name in _NAMES.findall(row[0]):
                if re.fullmatch(r"[A-Z]\w+|[a-z]+(-[a-z]+)*", name) and name not in _CONDITIONS:
                    spellings = {name, name.replace("-", "_")}  # a check is a function, too
                    if not any(spelling in source for spelling in spellings for source in sources):
                        wrong.append(f"{name}: {row[3]}")
    assert wrong == []


@cache
def source_of(file: str, function: str) -> str:
    """The text of a test with its decorators, and of whatever of its file it names."""
    files = (_ROOT / place / file for place in ("tests", "netns-tests"))
    (text,) = [text for path in files if path.exists() and f"def {function}(" in (text := path.read_text())]
    found: dict[str, ast.stmt] = {}
    for statement in ast.parse(text).body:
        names = [node.id for node in ast.walk(statement) if isinstance(node, ast.Name)]
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[statement.name] = statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= dict.fromkeys(names, statement)
    parts, due, seen = [], [function], {function}
    while due:
        statement = found[due.pop()]
        first = min([statement.lineno, *(it.lineno for it in getattr(statement, "decorator_list", []))])
        parts += text.splitlines()[first - 1 : statement.end_lineno]
        named = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
        named |= {node.arg for node in ast.walk(statement) if isinstance(node, ast.arg)}  # fixtures
        due += (named & found.keys()) - seen
        seen |= named
    return "\n".join(parts)


def kind_of(says: str) -> str:
    """What the first words of a row announce; empty for what has no name (a warning, an exit status)."""
    if says.startswith(("error ", "doctor ")):
        return says.split()[0]
    return "condition" if re.match(r"`[A-Z]\w+` `[A-Z]", says) else ""
