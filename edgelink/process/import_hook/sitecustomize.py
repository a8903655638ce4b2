"""Runs at the start of every Python program that EdgeLink starts, and of every process that such a program starts.

It runs in the user's interpreter, Python 3.8 or later, so it is short, imports nothing and never raises. The user's own
sitecustomize, which this file hides, runs first. The rest begins when a program imports what it is about.
"""

import os
import sys

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

# What a program imports whose command line `edgelink run` compares with what the cluster has. The last is imported by
# `ray job submit`.
REPORTED = ("verl", "openrlhf", "rlinf", "ray.dashboard.modules.job.cli")
HERE = os.path.dirname(__file__)  # noqa: PTH120 - pathlib does, too


def run_hidden() -> None:
    """Run the next sitecustomize on sys.path as ``site`` would have, with all that it raises."""
    ours = sys.modules.pop("sitecustomize")
    # Another user's folder as well, as RLinf gives the driver's PYTHONPATH to workers.
    sys.path[:] = [each for each in sys.path if each != HERE and not os.path.dirname(each).endswith("/import-hook")]  # noqa: PTH120
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


def load(name: str) -> "Any":
    """One of the files beside this one, as a module that nobody else finds."""
    from importlib.machinery import SourceFileLoader

    module = type(sys)("edgelink_" + name)
    SourceFileLoader(module.__name__, HERE + "/" + name + ".py").exec_module(module)
    return module


class Finder:
    """Has grpc_patience.py find ``grpc``, and a framework reported, when the program imports it."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        try:
            if name == "grpc":
                return load("grpc_patience").find_spec(
                    sys.meta_path[sys.meta_path.index(self) + 1 :], name, path, target
                )
            if name in REPORTED and os.environ.get("EDGELINK_RUN_SOCKET"):
                load("report_command").report(name)
        except Exception:  # noqa: S110 - whatever it is, those who come next will find it
            pass
        return None


if __name__ == "sitecustomize":
    try:
        run_hidden()
    finally:
        if os.environ.get("EDGELINK_IMPORT_HOOK"):
            sys.meta_path.insert(0, Finder())
            if "grpc" in sys.modules:  # the user's own sitecustomize imported it, or a .pth file
                try:  # noqa: SIM105 - contextlib takes longer to import than all of this
                    load("grpc_patience").make_patient(sys.modules["grpc"])
                except Exception:  # noqa: S110
                    pass
