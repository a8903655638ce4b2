"""Runs at the start of every Python program that EdgeLink starts, and of every process that such a program starts.

It runs in the user's interpreter, Python 3.8 or later, so it is short, imports nothing and never raises. The user's own
sitecustomize, which this file hides, runs first. What begins with gRPC only is in grpc_patience.py.
"""

import os
import sys

TYPE_CHECKING = False  # typing takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

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


def patience() -> "Any":
    """grpc_patience.py as a module of nobody's."""
    from importlib.machinery import SourceFileLoader

    module = type(sys)("edgelink_grpc_patience")
    SourceFileLoader(module.__name__, HERE + "/grpc_patience.py").exec_module(module)
    return module


class GrpcFinder:
    """Has grpc_patience.py find ``grpc`` when the program imports it."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name != "grpc":
            return None
        try:
            found = patience().find_spec(sys.meta_path[sys.meta_path.index(self) + 1 :], name, path, target)
        except Exception:  # whatever it is, those who come next will find grpc
            return None
        return found


if __name__ == "sitecustomize":
    try:
        run_hidden()
    finally:
        if os.environ.get("EDGELINK_IMPORT_HOOK"):
            sys.meta_path.insert(0, GrpcFinder())
            if "grpc" in sys.modules:  # the user's own sitecustomize imported it, or a .pth file
                patience().make_patient(sys.modules["grpc"])
