"""An interpreter of its own for a framework from PyPI, over the Ray and torch of the tests' interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


class FrameworkPython:
    """A virtual environment at ``home``; its packages come before those of the tests' interpreter, which it sees."""

    def __init__(self, home: Path) -> None:
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if uv is None:
            pytest.skip("needs uv")
        self._uv = uv
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, str(home)], check=True)
        self.python = home / "bin/python"
        self.packages = next(home.glob("lib/python*/site-packages"))
        ours = "\n".join(path for path in sys.path if path.endswith("site-packages"))
        (self.packages / "tests_own.pth").write_text(ours)

    def install(self, *wanted: str, env: Mapping[str, str] | None = None) -> None:
        """Without what they depend on. ``wanted``: as for ``pip install``; ``env``: what building them needs, too."""
        command = [self._uv, "pip", "install", "-q", "--no-deps", "--python", str(self.python), *wanted]
        subprocess.run(command, check=True, env={**os.environ, **(env or {})})
