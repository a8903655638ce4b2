"""The page of symptoms: what it says EdgeLink says is in the code, and each row names a test that brings it about."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from edgelink.cli.error_reference import reasons
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


@cache
def sections() -> dict[str, list[list[str]]]:
    """The rows of each symptom's table: says, why, what to do, shown by."""
    _, *parts = (_ROOT / "docs/troubleshooting.md").read_text().split("\n## ")
    return {
        part.partition("\n")[0]: [
            [cell.strip() for cell in line.strip("| ").split(" | ")]
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
    known = {kind.name for kind in KINDS}
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


def test_every_row_is_whole_and_its_test_exists() -> None:
    """By file and function."""
    for title, rows in sections().items():
        assert rows, title
        for row in rows:
            assert len(row) == 4, row
            assert all(row), row
            file, _, function = row[3].strip("`").partition("::")
            texts = [path.read_text() for place in ("tests", "netns-tests") for path in (_ROOT / place).glob(file)]
            assert any(f"def {function}(" in text for text in texts), row


def kind_of(says: str) -> str:
    """What the first words of a row announce; empty for what has no name (a warning, an exit status)."""
    if says.startswith(("error ", "doctor ")):
        return says.split()[0]
    return "condition" if re.match(r"`[A-Z]\w+` `[A-Z]", says) else ""
