"""What a worker needs of its node's interpreter, looked for before anything begins. Standard library only."""

from __future__ import annotations

import importlib
import re
import sys

from edgelink.training.trainer.failure import USAGE, TrainerError

# The oldest versions that the trainer knows: those of the extra `train`.
LEAST = {"torch": "2.5", "gymnasium": "1.0", "zstandard": "0.22"}


def check_modules(*names: str) -> None:
    """Can they be imported here, and are they new enough? Whoever asked the worker tells of which node it is.

    Raises:
        TrainerError: naming those that are not.
    """
    problems = {}
    for name in names:
        try:
            version = str(getattr(importlib.import_module(name), "__version__", ""))
        except Exception as error:  # a broken installation may fail in any way
            problems[name] = f"{name} cannot be imported: {error or type(error).__name__}"
            continue
        least = LEAST.get(name, "")
        if () < _numbers(version) < _numbers(least):
            problems[f"'{name}>={least}'"] = f"{name} {version} is too old: {least} or newer is needed"
    if problems:
        raise TrainerError(
            "; ".join(problems.values()),
            f"`{sys.executable} -m pip install {' '.join(problems)}` on that node brings it",
            exit_status=USAGE,
        )


def _numbers(version: str) -> tuple[int, ...]:
    """What versions are compared by: the first two numbers. Vendors' have more (2.5.0a0+872d972e41.nv24.08).

    Empty where there are none, as in `unknown`: nothing is said of such a build.
    """
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
