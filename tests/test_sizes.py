"""No file has over 400 lines and no constructor over 8 parameters, but for the reasons in ``sizes.txt``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import edgelink

MAX_LINES, MAX_PARAMETERS = 400, 8
ROOT = Path(edgelink.__file__).parent

REASONS = dict(
    line.split(": ", 1)
    for line in Path(__file__).with_name("sizes.txt").read_text().splitlines()
    if not line.startswith("#")
)


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield str(path.relative_to(ROOT)), path.read_text()


def constructors(source: str) -> Iterator[tuple[str, int]]:
    """Each class with a constructor, and how many parameters that takes beside the object."""
    classes = [item for item in ast.walk(ast.parse(source)) if isinstance(item, ast.ClassDef)]
    for cls in classes:
        for function in cls.body:
            if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                taken = function.args
                yield cls.name, len(taken.posonlyargs) + len(taken.args) + len(taken.kwonlyargs) - 1


def test_no_file_is_long_without_a_reason() -> None:
    assert {name for name, text in sources() if text.count("\n") > MAX_LINES} == {
        name for name in REASONS if name.endswith(".py")
    }


def test_no_constructor_takes_much_without_a_reason() -> None:
    found = {f"{name} {cls}" for name, text in sources() for cls, taken in constructors(text) if taken > MAX_PARAMETERS}
    assert found == {name for name in REASONS if not name.endswith(".py")}
