"""docs/reference/conditions.md against the code: scripts rely on the reasons."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_PAGE = (_ROOT / "docs/reference/conditions.md").read_text()
_NAME = r"[A-Z][A-Za-z]+"
_SETS = re.compile(
    rf"""(?:_down|_wait)\(\s*"({_NAME})"|conditions\.set\w*\([^"]*(?:"{_NAME}",\s*)?(?:Status\.\w+,\s*)?"({_NAME})",\s*f?["(]"""
)


def sources() -> str:
    return "\n".join(path.read_text() for path in sorted((_ROOT / "edgelink").rglob("*.py")))


def test_every_documented_reason_is_in_the_code() -> None:
    """No page tells of a reason that nobody ever sees."""
    code = sources()
    documented = set(re.findall(rf"`({_NAME})`", _PAGE))
    assert {name for name in documented if f'"{name}"' not in code} == set()


def test_every_reason_that_a_condition_is_given_is_documented() -> None:
    """Those that are written out where a condition is set; errors bring their own."""
    found = {name for groups in _SETS.findall(sources()) for name in groups if name}
    assert len(found) > 20
    assert {name for name in found if f"`{name}`" not in _PAGE} == set()
