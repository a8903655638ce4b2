"""What a worker needs of its node's interpreter, looked for before anything begins. Standard library only."""

from __future__ import annotations

import importlib
import sys

from edgelink.training.trainer.failure import USAGE, TrainerError


def check_modules(*names: str) -> None:
    """Can they be imported here? Whoever asked the worker tells of which node it is.

    Raises:
        TrainerError: naming those that cannot.
    """
    problems = {}
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # a broken installation may fail in any way
            problems[name] = f"{name} cannot be imported: {error or type(error).__name__}"
    if problems:
        raise TrainerError(
            "; ".join(problems.values()),
            f"`{sys.executable} -m pip install {' '.join(problems)}` on that node brings it",
            exit_status=USAGE,
        )
