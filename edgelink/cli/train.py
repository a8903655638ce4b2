"""``edgelink train``: the built-in trainer, run by the interpreter that has Ray and torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

import edgelink.training
from edgelink.errors import UsageError

TRAINER = Path(edgelink.training.__file__).parent / "trainer" / "__main__.py"


@click.command(
    "train",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
def command(*, argv: tuple[str, ...]) -> None:
    """Run the built-in trainer: a learner on the head, rollout and env workers where the cluster file puts them.

    Run it as any driver:  edgelink run --cluster FILE -- edgelink train
    """
    python = os.environ.get("EDGELINK_RAY_PYTHON", sys.executable)
    # Becomes the trainer, so that signals and exit code are its own.
    try:
        os.execv(python, [python, str(TRAINER), *argv])  # noqa: S606
    except OSError as error:
        raise UsageError(
            f"{python} cannot be run: {error.strerror}", hint="it is EDGELINK_RAY_PYTHON; correct ray.python"
        ) from error
