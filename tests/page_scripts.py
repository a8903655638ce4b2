"""The page's scripts without a browser: Node.js runs what of them needs no document."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

NODE = shutil.which("node")


def put_scripts(directory: Path) -> None:
    """The page's files, where Node.js takes them for modules."""
    for file in resources.files("edgelink.api.web").joinpath("static").iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    (directory / "package.json").write_text('{"type": "module"}')


def answer_of(directory: Path, script: str) -> Any:
    """What ``script`` prints beside the page's files, as JSON."""
    (directory / "asked.js").write_text(script)
    assert NODE is not None
    ran = subprocess.run(
        [NODE, "asked.js"],
        cwd=directory,
        env={**os.environ, "TZ": "UTC"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
