"""Helpers of EdgeLink that the user's own interpreter runs: it has hydra or rlinf, this one need not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgelink.errors import ConfigError

_TIMEOUT_S = 60.0


def interpreters(named: Path | None) -> list[Path]:
    """Return ``named`` alone, else ``ray.python``, else this interpreter and the ``python3`` of the caller."""
    from edgelink.config import load_config  # here: with pydantic, and few files have to be composed

    if named is not None:
        return [named]
    with suppress(ConfigError):  # what is wrong with it is no matter of a cluster file
        if (ray_python := load_config().ray.python) is not None:
            return [ray_python]
    found = [sys.executable, shutil.which("python3")]
    return [Path(path) for path in dict.fromkeys(found) if path]


def ask(
    python: Path,
    helper: Path,
    arguments: Sequence[str],
    question: str = "",
    environment: Mapping[str, str] | None = None,
) -> tuple[int | None, dict[str, Any]]:
    """Run ``helper`` and return its exit status and the JSON of its last line.

    The status is None if there was no answer. What went wrong stands below ``error``.

    Args:
        environment: what the helper runs with; None: our own.
    """
    try:
        if os.geteuid() == 0 and python.stat().st_uid != 0:
            return None, {"error": "root does not run an interpreter that belongs to somebody else"}
        command = [str(python), str(helper), *arguments]
        done = subprocess.run(
            command,
            input=question,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
        answer = json.loads((done.stdout.strip().splitlines() or ["{}"])[-1])
    except subprocess.TimeoutExpired:
        return None, {"error": f"gave no answer within {_TIMEOUT_S:g} s"}
    except (OSError, ValueError) as error:
        return None, {"error": f"gave no answer: {error}"}
    answer = answer if isinstance(answer, dict) else {}
    if done.returncode:
        answer.setdefault("error", f"exit status {done.returncode}")
    return done.returncode, answer
