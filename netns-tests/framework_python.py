"""An interpreter of its own for a framework from PyPI, over the Ray and torch of the tests' interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def other_python(version: str) -> Path:
    """The interpreter of another minor version, on PATH or of pyenv; where there is none the test is skipped."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = shutil.which(f"python{version}")
    for found in (on_path, *sorted(pyenv.glob(f"versions/{version}*/bin/python{version}"), reverse=True)):
        # A version manager's shim exists also where its Python does not: so run it.
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return Path(found)
    pytest.skip(f"needs a Python {version}, on PATH or of pyenv")


class FrameworkPython:
    """A virtual environment at ``home``.

    Its packages come before those of the tests' interpreter, which it sees. One of another ``interpreter`` has its own
    packages only.
    """

    def __init__(self, home: Path, interpreter: Path | None = None) -> None:
        uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
        if uv is None:
            pytest.skip("needs uv")
        self._uv = uv
        subprocess.run([uv, "venv", "-q", "--python", str(interpreter or sys.executable), str(home)], check=True)
        self.python = home / "bin/python"
        self.packages = next(home.glob("lib/python*/site-packages"))
        if interpreter is None:
            ours = "\n".join(path for path in sys.path if path.endswith("site-packages"))
            (self.packages / "tests_own.pth").write_text(ours)
        self.install(Path(__file__).with_name("build.lock"))

    def install(self, lock: Path, env: Mapping[str, str] | None = None) -> None:
        """Exactly what ``lock`` names, by its hashes, built with ``build.lock``; ``env``: what that needs besides."""
        command = [self._uv, "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--require-hashes"]
        command += ["--python", str(self.python), "-r", str(lock)]
        subprocess.run(command, check=True, env={**os.environ, **(env or {})})
