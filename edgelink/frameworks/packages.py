"""What packages the driver's interpreter has: looked for, not imported."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HELPER = Path(__file__).with_name("installed.py")
_ANSWER_S = 60.0  # an interpreter on a busy machine or a slow disk


@dataclass(frozen=True)
class Package:
    """One package. ``version`` and ``at``, its directory, are empty where nobody can tell."""

    version: str
    at: str


def packages_of(
    python: str, names: Sequence[str], environment: Mapping[str, str], directory: Path | None = None
) -> dict[str, Package]:
    """Return which of the packages ``names`` an interpreter has.

    Args:
        environment: what the interpreter runs with.
        directory: where it runs.

    Raises:
        OSError, SubprocessError, ValueError: it does not answer.
    """
    done = subprocess.run(
        [python, str(HELPER), *names],
        env=dict(environment),
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ANSWER_S,
        check=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1] if done.stdout else "")
    return {name: Package(**found) for name, found in answer.items() if found is not None}
