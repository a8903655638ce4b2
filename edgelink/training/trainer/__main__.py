"""Start of the trainer: ``<ray.python> …/edgelink/training/trainer/__main__.py [options]``; with ``robot-export`` or
``robot-replay`` as the first word, of what else the user's interpreter does with robots; with ``check-options``, of
nothing, once the options that follow are read.

Runs from a bare copy of the package in a temporary directory, which is also what goes to the workers: so the daemon's
``site-packages``, in which this file lies, never gets on the ``sys.path`` of the user's interpreter.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_OTHERS = {"robot-export": "robot.lerobot_export", "robot-replay": "robot.replay"}


def _load_package_module() -> Any:
    """``package.py`` by its path: nothing of EdgeLink is importable yet, and must not be."""
    spec = importlib.util.spec_from_file_location("_edgelink_package", _HERE / "package.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _main() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal or log that has no → gets a question mark
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != _HERE]
    for name in [name for name in sys.modules if name.partition(".")[0] == "edgelink"]:
        del sys.modules[name]  # there after `python -m`; the copy is to be used throughout
    with tempfile.TemporaryDirectory(prefix="edgelink-train-") as directory:
        package = _load_package_module().stage(_HERE, Path(directory))
        sys.path.insert(0, directory)
        status: int
        if sys.argv[1:2] == ["check-options"]:
            importlib.import_module("edgelink.training.trainer.options").parse(sys.argv[2:])
            status = 0
        elif other := _OTHERS.get("".join(sys.argv[1:2])):
            status = importlib.import_module(f"edgelink.training.trainer.{other}").main(sys.argv[2:])
        else:
            status = importlib.import_module("edgelink.training.trainer.run").main(sys.argv[1:], package)
        return status


if __name__ == "__main__":
    sys.exit(_main())
