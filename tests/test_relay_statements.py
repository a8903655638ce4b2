"""SQL that every Python takes that EdgeLink runs on, whichever one runs the tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from edgelink import relay


def test_no_parameter_has_a_number() -> None:
    """sqlite3 takes ``?1`` for a name: Python 3.12 warns where a tuple is bound to it, 3.14 refuses."""
    numbered = [
        f"{file.name}:{node.lineno}"
        for file in Path(relay.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\?\d", node.value)
    ]
    assert numbered == []
