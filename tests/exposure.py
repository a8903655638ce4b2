"""What `systemd-analyze security` says of a unit, without a systemd that runs, and what the guide says of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_GUIDE = Path(__file__).parent.parent / "docs/how-to/systemd.md"
_DOCUMENTED_UNDER = "252"


def assert_as_documented(unit: Path) -> None:
    """Not more exposed than the guide's table says; other versions of systemd look at some things more."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    documented = re.search(rf"^\| `{unit.stem}` \| ([\d.]+) \|", _GUIDE.read_text(), re.MULTILINE)
    assert documented is not None, unit.stem
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", unit]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in shown.stderr:
        pytest.skip("systemd-analyze is older than 250")
    found = re.search(r"Overall exposure level.*: ([\d.]+)", shown.stdout)
    assert found is not None, shown
    version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    tolerance = 0.0 if version.split()[1] == _DOCUMENTED_UNDER else 1.0
    assert float(found[1]) <= float(documented[1]) + tolerance
