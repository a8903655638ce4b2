"""gRPC channels and servers that wait as long as `ride_through`, where the program set nothing of it itself.

Run by sitecustomize.py, once a program imports grpc; it never raises. By itself a gRPC server ends a connection 20 s
after its peer fell silent (``keepalive_timeout_ms``, which becomes TCP_USER_TIMEOUT), and either side when a ping of
HTTP/2 was not answered for a minute (``ping_timeout_ms``): measured with grpcio 1.85.
"""

import functools
import os
import sys
from contextlib import suppress
from typing import Any

OPTIONS = ("grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms")
POSITIONS = {"insecure_channel": 1, "secure_channel": 2, "server": 3}  # of `options`, the same in grpc.aio
# Below Ray's package: what runs for Ray itself, and of that what runs the user's code.
OF_RAY = ("_private", "autoscaler", "dashboard", "scripts", "util")
WORKERS = ("default_worker.py", "setup_worker.py")


def find_spec(finders: Any, *wanted: Any) -> Any:
    """Return what the first of ``finders`` finds, with a loader that makes it patient."""
    for finder in finders:
        spec = finder.find_spec(*wanted) if hasattr(finder, "find_spec") else None
        if spec is not None:
            if hasattr(spec.loader, "exec_module"):
                spec.loader = Loader(spec.loader)
            return spec
    return None


class Loader:
    """The module's own loader, but for what follows the import."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self.loader
        self.loader.exec_module(module)
        make_patient(sys.modules.get(module.__name__))


def make_patient(grpc: Any) -> None:
    """Wrap what makes channels and servers in ``grpc`` and ``grpc.aio``, unless Ray runs this process for itself."""
    with suppress(Exception):  # of a grpc that is too strange; it stays as it is
        timeout_ms = os.environ.get("EDGELINK_GRPC_TIMEOUT_MS", "")
        if not timeout_ms.isdigit() or is_rays_own():
            return
        for module in (grpc, getattr(grpc, "aio", None)):
            for name, position in POSITIONS.items():
                if callable(function := getattr(module, name, None)):
                    setattr(module, name, patient(function, position, int(timeout_ms)))


def is_rays_own() -> bool:
    """Whether this is Ray's dashboard, an agent, a monitor or the like."""
    before, is_in_ray, after = sys.argv[0].rpartition("/ray/")  # a module that was run with -m has its path here
    if not is_in_ray or after.partition("/")[0] not in OF_RAY or after.rpartition("/")[2] in WORKERS:
        return False
    return os.path.exists(before + "/ray/_raylet.so")  # noqa: PTH110 - pathlib may not be imported yet


def patient(function: Any, position: int, timeout_ms: int) -> Any:
    """Return ``function`` that adds our options where none of them is given."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        is_positional = len(arguments) > position
        options = with_patience(arguments[position] if is_positional else named.get("options"), timeout_ms)
        if is_positional:
            return function(*arguments[:position], options, *arguments[position + 1 :], **named)
        return function(*arguments, **{**named, "options": options})

    return call


def with_patience(given: Any, timeout_ms: int) -> Any:
    """Return the options of a channel or server with ours, unless one of ours is among them."""
    try:
        options = list(given or ())
        if any(name in OPTIONS for name, _ in options):
            return options
    except (TypeError, ValueError):  # no options at all: gRPC says so better
        return given
    return [*options, *((name, timeout_ms) for name in OPTIONS)]
